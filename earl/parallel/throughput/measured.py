"""Recalibration by a user's own measurements: Bayes' rule over the coefficients of one installation.

rows of a file ─▶ errors of predictions ─▶ posterior ─▶ Coefficients of every engine of the plan
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from earl.documents import parse_json
from earl.errors import EarlError
from earl.parallel.throughput.rollout import Vector, Workload, gradient, interval, tokens_per_second
from earl.parallel.throughput.step import Coefficients, Engine, Matrix, Values, fitted

FREEDOM = 4.0
"""Degrees of freedom of Student's t distribution, which errors are taken to follow: an outlier counts little."""
ROUNDS = 12
LONGEST, ENOUGH = 0.5, 0.01  # step of a logarithm: the largest that is taken, and the one that ends the iteration


def posterior(
    mean: Vector,
    covariance: Matrix,
    errors: Callable[[Vector], tuple[Vector, Matrix]],
    spread: float,
    start: Vector | None = None,
) -> tuple[Vector, Matrix]:
    """The most probable point [P] and its covariance [P, P], by Gauss and Newton's method with reweighting.

    `errors` gives log(predicted / measured) [R] and its derivatives [R, P]; `spread` is their standard deviation.
    """
    point = mean if start is None else start
    for _ in range(ROUNDS):
        off, slopes = errors(point)
        weights = (FREEDOM + 1) / (FREEDOM + (off / spread) ** 2)
        crossed = covariance @ slopes.T
        gain = np.linalg.solve(slopes @ crossed + np.diag(spread**2 / weights), crossed.T).T
        step = mean - gain @ (off + slopes @ (mean - point)) - point
        longest = float(np.abs(step).max())
        point = point + step * min(1.0, LONGEST / max(longest, LONGEST))
        if longest < ENOUGH:
            break
    return point, covariance - gain @ crossed.T


@dataclass(frozen=True, slots=True)
class EngineMeasurement:
    """One measurement of one copy of an engine."""

    engine: Engine
    workload: Workload
    tokens_per_second: float  # written tokens, of the whole copy

    def predicted(self, own: Values) -> float:
        return tokens_per_second(self.engine, self.workload, own)


@dataclass(frozen=True, slots=True)
class Recalibration:
    """The coefficients of an installation, and how far its measurements moved predictions of themselves."""

    known: Coefficients
    text: str


def recalibrated(rows: Sequence[EngineMeasurement]) -> Recalibration:
    """Rows of one installation, at least one: they differ in tp and load alone."""
    prior = fitted(rows[0].engine)
    known = updated(prior, [(row.predicted, row.tokens_per_second) for row in rows])
    moved = median(row.predicted(known.values) / row.predicted(prior.values) - 1 for row in rows)
    before, after = (median(_half_width(row, own) for row in rows) for own in (prior, known))
    return Recalibration(
        known,
        f"recalibrated by {len(rows)} measured row{'s' * (len(rows) != 1)}: predictions of them moved by {moved:+.1%}, "
        f"their 80 % interval from ±{before:.0%} to ±{after:.0%}",
    )


def _half_width(row: EngineMeasurement, known: Coefficients) -> float:
    low, high = interval(row.predicted, known)
    return (high - low) / 2 / row.predicted(known.values)


def updated(prior: Coefficients, seen: Sequence[tuple[Callable[[Values], float], float]]) -> Coefficients:
    """The coefficients after measurements: each a prediction by coefficients, and the measured value."""

    def errors(point: Vector) -> tuple[Vector, Matrix]:
        own = dict(zip(prior.values, map(math.exp, point), strict=True))
        off = [math.log(value(own) / measured) for value, measured in seen]
        return np.array(off), np.stack([gradient(value, own) for value, _ in seen])

    point, covariance = posterior(np.log([*prior.values.values()]), prior.covariance, errors, prior.spread)
    return Coefficients(dict(zip(prior.values, map(math.exp, point), strict=True)), covariance, prior.spread)


# Files of measurements.

FORM = "tp,context,concurrency,tokens_per_second (of one engine, written), and a row such as 4,8192,64,2150"
MOST = 1e9


def read(path: Path, engine: Callable[[int], Engine]) -> list[EngineMeasurement]:
    """Rows of a table in CSV, of objects in JSON, of what `vllm bench serve --save-result` or `earl profile --json`
    wrote; `engine` is that of a split. Raises EarlError for a file or a value that cannot be used."""
    try:
        text = path.read_text(encoding="utf-8")
        rows = _objects(text) if text.lstrip()[:1] in ("[", "{") else list(csv.DictReader(text.splitlines()))
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, csv.Error) as error:
        raise EarlError(f"--measured {path} cannot be read: {error!r}; give a table in CSV or JSON: {FORM}") from error
    if not rows:
        raise EarlError(f"--measured {path} has no rows; give one at least: {FORM}")
    return [_measurement(row, f"--measured {path}, row {number}", engine) for number, row in enumerate(rows, 1)]


def _objects(text: str) -> list[Mapping[str, Any]]:
    content = parse_json(text.encode())
    if isinstance(content, dict) and "cells" in content:
        return [_profiled(cell) for cell in content["cells"] if cell["choice"]["stage"] == "rollout"]
    rows = content if isinstance(content, list) else [content]
    return [_benched(row) if "output_throughput" in row else row for row in rows]


def _benched(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of vLLM's benchmark, which does not say the split: `--metadata tp=4` adds it."""
    prompt, reply = (row[f"total_{kind}_tokens"] / row["completed"] for kind in ("input", "output"))
    load = {"prompt_tokens": prompt, "reply_tokens": reply, "concurrency": row["max_concurrency"] or row["num_prompts"]}
    return {**row, **load, "tokens_per_second": row["output_throughput"]}


def _profiled(cell: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `earl profile`: seconds in which all copies of the sampler together write `sequences` contexts."""
    layout = cell["choice"]["layout"]
    each = cell["sequences"] / layout["dp"]
    written = each * cell["tokens"] / cell["seconds"]
    return {"tp": layout["tp"], "context": cell["tokens"], "concurrency": max(1, each), "tokens_per_second": written}


def _measurement(row: Mapping[str, Any], where: str, engine: Callable[[int], Engine]) -> EngineMeasurement:
    tp, concurrency, speed = (_number(row, name, where) for name in ("tp", "concurrency", "tokens_per_second"))
    whole = row.get("context") is not None
    prompt = 0.0 if whole else _number(row, "prompt_tokens", where, least=0.0)
    reply = _number(row, "context" if whole else "reply_tokens", where)
    one = engine(int(tp))
    if tp < 1 or one.shape.heads % tp:
        raise EarlError(f"{where}: tp = {tp:g} does not divide the model's {one.shape.heads} heads; give its GPUs")
    return EngineMeasurement(one, Workload(prompt, reply, max(1, round(concurrency))), speed)


def _number(row: Mapping[str, Any], name: str, where: str, least: float = math.ulp(0.0)) -> float:
    if name not in row:
        raise EarlError(f"{where} has no {name!r}; it has to have {FORM}; or prompt_tokens,reply_tokens for context")
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = math.nan
    if not least <= value <= MOST:
        rule = "a number above 0" if least else "a number from 0"
        raise EarlError(f"{where}: {name} = {row[name]!r} is not {rule} and at most {MOST:g}; give one, such as 8")
    return value
