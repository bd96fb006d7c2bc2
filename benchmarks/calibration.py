"""Fits the throughput model to published tables, and measures its errors on fitted and on left-out rows.

rows ─▶ fit ─▶ errors in sample
  └──▶ all but one version, GPU, precision, … ─▶ fit ─▶ errors and choices for the rest
                                                  └─▶ three of the rest ─▶ recalibrated ─▶ errors

In published/serving_throughput.csv, trtllm-0.17 and trtllm-0.14-online (behind Triton) are from
https://github.com/NVIDIA/TensorRT-LLM at 258c754, docs/source/performance/perf-overview.md (Apache-2.0), and
lambda-vllm-0.5.4 from https://github.com/LambdaLabsML/vllm-benchmark at 0e8fc5d, benchmark_v0.md. A blank value: not
run, or did not fit. A rate of inf: all requests at once. Numbers of requests that the pages leave out are those of the
scripts that make TensorRT-LLM's data sets, and prompts and replies of vLLM's chats those that its benchmark's filter
leaves. `chat` is 1 where lengths vary as in chats. Numbers are facts; the pages' text and programs are not copied.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from math import exp, inf, log
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tomli_w

from earl.benchmarks.repeats import grouped
from earl.parallel.hardware import devices
from earl.parallel.memory import catalogue
from earl.parallel.throughput import step
from earl.parallel.throughput.measured import posterior, updated
from earl.parallel.throughput.rollout import (
    Vector,
    Workload,
    gradient,
    interval,
    mean_step,
    running,
    tokens_per_second,
)
from earl.parallel.throughput.step import Calibration, Coefficients, Engine, StepLoad, Values, fitted
from earl.recipe import load_toml

_STATED = load_toml(Path(__file__).with_name("priors.toml"))
DEVIATIONS: dict[str, float] = _STATED.pop("deviations")
PRIORS: dict[str, tuple[float, float]] = _STATED


SOFTWARE = {
    "trtllm-0.17": replace(step.TENSORRT_LLM, newer=False),
    "trtllm-0.10": replace(step.TENSORRT_LLM, version="trtllm-0.10", newer=False),
    "trtllm-0.14-online": replace(step.TRITON, newer=False),
    "nim-1.8.0": replace(step.TRITON, version="nim-1.8.0", newer=False),
    "lambda-vllm-0.5.4": step.VLLM_0_5,
}


@dataclass(frozen=True, slots=True)
class ThroughputMeasurement:
    source: str
    model: str
    gpu: str
    engine: Engine
    workload: Workload
    tokens_per_second: float
    """Output tokens of all devices."""
    rate: float
    """Requests per second."""
    token_seconds: float | None
    """Mean time between two tokens of a reply; None if unknown."""
    chat: bool

    @property
    def per_gpu(self) -> float:
        return self.tokens_per_second / self.engine.tp


@dataclass(frozen=True, slots=True)
class ServedContext:
    """The longest context of 4,096, 32,768 and 131,072 that was served; 0: the model did not load."""

    model: str
    engine: Engine
    tokens: int


@cache
def measured() -> tuple[ThroughputMeasurement, ...]:
    rows = [row for row in table("serving_throughput.csv") if row["metric"] == "output_throughput" and row["value"]]
    return tuple(
        ThroughputMeasurement(
            source=row["source"],
            model=row["model"],
            gpu=row["gpu"],
            engine=_engine(row),
            workload=Workload(float(row["prompt_tokens"]), float(row["reply_tokens"]), int(row["requests"])),
            tokens_per_second=float(row["value"]),
            rate=float(row["rate"]),
            token_seconds=float(row["itl_ms"]) / 1000 if row["itl_ms"] else None,
            chat=row["chat"] == "1",
        )
        for row in rows
    )


@cache
def served() -> tuple[ServedContext, ...]:
    rows = [row for row in table("serving_throughput.csv") if row["metric"] == "max_context_served"]
    return tuple(ServedContext(row["model"], _engine(row), int(row["value"])) for row in rows)


def table(name: str) -> list[dict[str, str]]:
    text = files("earl.benchmarks").joinpath("published").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _engine(row: dict[str, str]) -> Engine:
    precision = step.Precision(row["weight_dtype"], row["kv_dtype"])
    shape, device = catalogue()[row["model"]].shape, devices()[row["gpu"]]
    return Engine(shape, device, int(row["tp"]), precision, SOFTWARE[row["source"]])


ERROR = 0.05
"""Expected standard deviation of a measurement's logarithm about the model; weighs data against priors."""
CALM_RATE = 8.0
"""Requests per second up to which no request queues."""
ROUNDS = 6
"""Fixed-point iterations for the number of running sequences and the time of a step."""
PASSES = 4
"""Repetitions of the fit, each with the variances of deviations that the one before found."""
COUNTED = 2.0
"""Levels of a factor that a stated deviation weighs as much as."""


def fit(rows: Sequence[ThroughputMeasurement], near: Calibration | None = None) -> Calibration:
    """Fit all coefficients and, by empirical Bayes, how versions, devices and precisions deviate from the average.
    It begins `near` another fit, which only saves time.

    Each pass finds the most probable point for given variances of deviations, then these variances: the mean of
    squared deviations and of their uncertainty, with the stated ones among them.
    """
    kinds = {
        f"{factor}/{level}/{name}": f"{factor}/{name}"
        for factor, _, name in (kind.partition("/") for kind in DEVIATIONS)
        for level in sorted({str(row.engine.levels[factor]) for row in rows})
    }
    values, believed = ({name: prior[at] for name, prior in PRIORS.items()} for at in (0, 1))
    frame = Calibration(values, dict.fromkeys(kinds, 0.0), np.eye(0), {}, 0.0)
    chosen = [frame.chosen(row.engine.levels) for row in rows]
    mean = start = _point(frame.values, frame.deviations)
    if near:
        start = _point(near.values, {key: near.deviations.get(key, 0.0) for key in kinds})
    variances = {kind: spread**2 for kind, spread in DEVIATIONS.items()}
    for _ in range(PASSES):
        prior = np.diag([spread**2 for spread in believed.values()] + [variances[kind] for kind in kinds.values()])
        start, covariance = posterior(mean, prior, partial(_errors_at, rows, chosen), ERROR, start)
        squares = grouped(
            zip(kinds.values(), (start**2 + np.diag(covariance))[len(values) :], strict=True), itemgetter(0)
        )
        for kind, found in squares.items():
            total = COUNTED * DEVIATIONS[kind] ** 2 + sum(float(square) for _, square in found)
            variances[kind] = total / (COUNTED + len(found))
    logs = list(map(float, start))
    values = dict(zip(values, map(exp, logs), strict=False))
    best = Calibration(values, dict(zip(kinds, logs[len(values) :], strict=True)), covariance, variances, 0.0)
    return replace(best, spread=float(np.sqrt(np.mean([Guess(row, of(best, row)).error ** 2 for row in rows]))))


def _point(values: Values, deviations: Values) -> Vector:
    return np.array([*map(log, values.values()), *deviations.values()])


def of(found: Calibration, row: ThroughputMeasurement) -> Coefficients:
    """The coefficients of a row's engine; what the fit did not see of it is uncertain."""
    return found.of(row.engine.levels, found.new(row.engine.levels))


def _errors_at(rows: Sequence[ThroughputMeasurement], chosen: Sequence[Vector], point: Vector) -> tuple[Vector, Vector]:
    """Logarithms of predicted over measured values [R], with derivatives by coefficients and deviations [R, N]."""
    off, slopes = [], []
    for row, part in zip(rows, chosen, strict=True):
        own = dict(zip(PRIORS, map(exp, part @ point), strict=True))
        for value, seen in _observed(row):
            off.append(log(value(own) / seen))
            slopes.append(gradient(value, own) @ part)
    return np.array(off), np.array(slopes)


def _observed(row: ThroughputMeasurement) -> list[tuple[Callable[[Values], float], float]]:
    """What is predicted, and measured: throughput, and time between tokens at low rates, where it is latency alone."""
    seen: list[tuple[Callable[[Values], float], float]] = [(partial(predicted, row), row.tokens_per_second)]
    if row.token_seconds and row.rate <= CALM_RATE:
        seen.append((partial(_pause, row), row.token_seconds))
    return seen


def _pause(row: ThroughputMeasurement, own: Values) -> float:
    return mean_step(row.engine, row.workload, at_work(row, own), own)


def predicted(row: ThroughputMeasurement, own: Values) -> float:
    """Output tokens per second of all devices, as the row's source measures them."""
    load = row.workload
    if row.chat:
        load = replace(load, longest_reply_tokens=load.reply_tokens * own["chat_longest"])
    most = tokens_per_second(row.engine, load, own)
    return most if row.rate == inf else min(most, _arriving(row, own))


def at_work(row: ThroughputMeasurement, own: Values) -> float:
    """Concurrent requests at a steady arrival rate: arrivals during one request's time."""
    load = row.workload
    most, count = max(1.0, running(row.engine, load, own)), 1.0
    for _ in range(ROUNDS):
        seconds = load.reply_tokens * mean_step(row.engine, load, count, own)
        count = min(most, max(1.0, row.rate * seconds))
    return count


def _arriving(row: ThroughputMeasurement, own: Values) -> float:
    """Throughput if arrivals limit it: the time to the last one, and to its end with half as many running."""
    load, count = row.workload, at_work(row, own)
    if count >= running(row.engine, load, own):
        return inf
    last = StepLoad(max(1.0, count / 2), load.prompt_tokens + load.reply_tokens / 2)
    tail = load.reply_tokens * (1 + own["chat_longest"] if row.chat else 2) / 2
    seconds = load.responses / row.rate + tail * step.step_seconds(row.engine, last, own)
    return load.responses * load.reply_tokens / seconds


NEAR = 0.03
"""Relative distance from the best that still counts as right."""


def choices(guessed: Mapping[ThroughputMeasurement, float]) -> dict[str, Any]:
    """Judge the choice of TP by predictions, over cells with several TP. A regret is a share of tokens lost."""
    cells = grouped(guessed, _cell).values()
    lost = np.array([_regret(cell, guessed) for cell in cells if len(cell) > 1])
    return {
        "cells": len(lost),
        "right": float((lost == 0).mean()),
        "near": float((lost <= NEAR).mean()),
        "mean_regret": float(lost.mean()),
        "worst_regret": float(lost.max()),
    }


def _cell(row: ThroughputMeasurement) -> tuple[object, ...]:
    return row.source, row.model, row.gpu, row.engine.precision, row.workload, row.rate


def _regret(cell: Sequence[ThroughputMeasurement], guessed: Mapping[ThroughputMeasurement, float]) -> float:
    taken = max(cell, key=lambda row: guessed[row] / row.engine.tp)
    return 1 - taken.per_gpu / max(row.per_gpu for row in cell)


PATH = Path(step.__file__).with_name(step.FILE)


def text(found: Calibration) -> str:
    lines = [", ".join(f"{value:.5g}" for value in line) for line in found.covariance.tolist()]
    covariance = "".join(f"    [{line}],\n" for line in lines)
    tables = {
        name: {key: float(f"{value:.5g}") for key, value in own.items()}
        for name, own in (("values", found.values), ("deviations", found.deviations), ("variances", found.variances))
    }
    head = "# Made by `earl bench calibration --write`. The covariance is of logarithms: of values, then of deviations."
    return f"{head}\nspread = {found.spread:.5g}\ncovariance = [\n{covariance}]\n\n{tomli_w.dumps(tables)}"


CONTEXTS = (131_072, 32_768, 4096)
Key = Callable[[ThroughputMeasurement], object]
LEFT_OUT: dict[str, Key] = {
    "version": lambda row: row.engine.levels["version"],
    "gpu": lambda row: row.gpu,
    "precision": lambda row: row.engine.levels["precision"],
    "model": lambda row: row.model,
    "tp": lambda row: row.engine.tp,
}
GIVEN = 3  # rows of an installation that it is recalibrated by
DRAWS = 5  # of such rows


@dataclass(frozen=True, slots=True)
class Guess:
    row: ThroughputMeasurement
    known: Coefficients

    @property
    def error(self) -> float:
        return log(self.tokens_per_second / self.row.tokens_per_second)

    @property
    def tokens_per_second(self) -> float:
        return predicted(self.row, self.known.values)

    @property
    def inside(self) -> bool:
        low, high = interval(partial(predicted, self.row), self.known)
        return low <= self.row.tokens_per_second <= high


def run(write: bool = False) -> dict[str, Any]:
    """Fit, and return the errors, see `earl bench calibration --help`; with `write`, store the coefficients."""
    rows = measured()
    best = fit(rows)
    if write:
        PATH.write_text(text(best), encoding="utf-8")
    return {
        "rows": len(rows),
        "in_sample": _judged([Guess(row, of(best, row)) for row in rows], lambda row: row.source),
        "left_out": {name: _left_out(rows, best, key) for name, key in LEFT_OUT.items()},
        "contexts": {"labels": len(served()), "right": sum(map(_fits, served()))},
        "coefficients": best.values,
        "deviations": best.deviations,
        "variances": best.variances,
        "spread": best.spread,
    }


def _left_out(rows: Sequence[ThroughputMeasurement], best: Calibration, key: Key) -> dict[str, Any]:
    """Predict each group by a fit to all others: by it alone, then recalibrated by a few rows of the same engine on
    the same device in the same precision."""
    guesses: list[Guess] = []
    given: list[Guess] = []
    for group, own in grouped(rows, key).items():
        known = fit([row for row in rows if key(row) != group], best)
        guesses += [Guess(row, of(known, row)) for row in own]
        for alike in grouped(own, lambda row: tuple(row.engine.levels.values())).values():
            given += _given(alike, of(known, alike[0]))
    again = _judged(given, key)
    del again["choice"]  # of other rows in every draw
    return {**_judged(guesses, key), "with_three_rows": again}


def _given(rows: Sequence[ThroughputMeasurement], prior: Coefficients) -> list[Guess]:
    """The other rows after a recalibration by a few, for several draws of these."""
    guesses = []
    for seed in range(DRAWS if len(rows) > GIVEN else 0):
        drawn = Random(seed).sample(rows, len(rows))
        known = updated(prior, [(partial(predicted, row), row.tokens_per_second) for row in drawn[:GIVEN]])
        guesses += [Guess(row, known) for row in drawn[GIVEN:]]
    return guesses


def _judged(guesses: Sequence[Guess], key: Key) -> dict[str, Any]:
    errors = np.array([guess.error for guess in guesses])
    parts = grouped(guesses, lambda guess: str(key(guess.row)))
    each = {name: np.array([guess.error for guess in own]) for name, own in parts.items()}
    return {
        "median_error": _median(errors),
        "with_best_offset": _median(np.concatenate([own - np.median(own) for own in each.values()])),
        "interval_80": float(np.mean([guess.inside for guess in guesses])),
        "choice": choices({guess.row: guess.tokens_per_second for guess in guesses}),
        "by": {name: _median(own) for name, own in each.items()},
    }


def _median(errors: Vector) -> float:
    return float(np.median(np.abs(np.expm1(errors))))


def _fits(label: ServedContext) -> bool:
    """Whether the longest context predicted to fit is the one that was served."""
    room = label.engine.kv_tokens(fitted(label.engine).values)
    return label.tokens == max((tokens for tokens in CONTEXTS if tokens <= room), default=0)
