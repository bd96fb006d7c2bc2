"""Fits the throughput model to published tables, and measures its errors on fitted and on left-out rows.

rows ─▶ fit ─▶ errors in sample
  └──▶ all but one TP, context, GPU or model ─▶ fit ─▶ errors and choices for the rest

In published/serving_throughput.csv, trtllm-0.17 and trtllm-0.14-online (behind Triton) are from
https://github.com/NVIDIA/TensorRT-LLM at 258c754, docs/source/performance/perf-overview.md (Apache-2.0), and
lambda-vllm-0.5.4 from https://github.com/LambdaLabsML/vllm-benchmark at 0e8fc5d, benchmark_v0.md. A blank value: not
run, or did not fit. A rate of inf: all requests at once. Numbers of requests that the pages leave out are those of the
scripts that make TensorRT-LLM's data sets, and prompts and replies of vLLM's chats those that its benchmark's filter
leaves. `chat` is 1 where lengths vary as in chats.

Times in published/layer_times.csv are medians from https://github.com/microsoft/vidur at 7d47513 (MIT): sums of a
layer's four matrix products, by tokens, and all-reduces within a fully linked host, by bytes. Numbers are facts; the
pages' text and programs are not copied.
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from math import exp, inf, log
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from earl.benchmarks.repeats import grouped
from earl.parallel.hardware import devices
from earl.parallel.memory import catalogue
from earl.parallel.throughput import step
from earl.parallel.throughput.rollout import Workload, interval, mean_step, running, tokens_per_second
from earl.parallel.throughput.step import Coefficients, Engine, StepLoad, Values
from earl.recipe import load_toml

PRIORS: dict[str, tuple[float, float]] = load_toml(Path(__file__).with_name("priors.toml"))
Vector = NDArray[np.float64]
NUDGE = 5e-3
MOST_ROUNDS = 60
ENOUGH = 1e-5
"""Relative improvement of a round below which the iteration ends."""


def minimise(residuals: Callable[[Vector], Vector], start: Vector) -> tuple[Vector, Vector]:
    """Minimise the sum of squares near `start`; return the point [P] and its covariance [P, P] for residuals of
    variance 1.

    Levenberg and Marquardt's method: each step minimises the linearised residuals, or turns to the gradient and
    shortens.
    """
    point, value, damping = start, residuals(start), 1e-3
    slopes = jacobian(residuals, start)
    for _ in range(MOST_ROUNDS):
        normal = slopes.T @ slopes
        moved = point + np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slopes.T @ value)
        tried = residuals(moved)
        before, after = value @ value, tried @ tried
        if after >= before:
            damping *= 4
            continue
        point, value, slopes, damping = moved, tried, jacobian(residuals, moved), damping / 4
        if after > (1 - ENOUGH) * before:
            break
    return point, np.asarray(np.linalg.inv(slopes.T @ slopes), np.float64)


def jacobian(residuals: Callable[[Vector], Vector], point: Vector) -> Vector:
    """Derivatives of the residuals, one column per coordinate. [R, P]"""
    nudges = NUDGE * np.eye(len(point))
    return np.stack([(residuals(point + one) - residuals(point - one)) / (2 * NUDGE) for one in nudges], axis=1)


SOFTWARE = {"trtllm-0.17": step.TENSORRT_LLM, "trtllm-0.14-online": step.TRITON, "lambda-vllm-0.5.4": step.VLLM_0_5}


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


ERROR = 0.06
"""Expected standard deviation of a measurement's logarithm about the model; weighs data against priors."""
CALM_RATE = 8.0
"""Requests per second up to which no request queues."""
ROUNDS = 6
"""Fixed-point iterations for the number of running sequences and the time of a step."""


def fit(rows: Sequence[ThroughputMeasurement], start: Values | None = None) -> Coefficients:
    """Fit every coefficient. `start` only saves time; by default the fit starts at the priors."""
    names = list(PRIORS)
    believed = np.array([log(value) for value, _ in PRIORS.values()])
    spreads = np.array([spread for _, spread in PRIORS.values()])

    def residuals(point: Vector) -> Vector:
        own = dict(zip(names, map(exp, point), strict=True))
        return np.concatenate([errors(rows, own) / ERROR, pauses(rows, own) / ERROR, (point - believed) / spreads])

    begin = np.array([log(start[name]) for name in names]) if start else believed
    point, covariance = minimise(residuals, begin)
    values = dict(zip(names, map(exp, point), strict=True))
    spread = float(np.sqrt(np.mean(errors(rows, values) ** 2)))
    return Coefficients(values, covariance, spread)


def errors(rows: Iterable[ThroughputMeasurement], own: Values) -> Vector:
    """Logarithms of predicted over measured throughput. [R]"""
    return np.array([log(predicted(row, own) / row.tokens_per_second) for row in rows])


def pauses(rows: Iterable[ThroughputMeasurement], own: Values) -> Vector:
    """Logarithms of predicted over measured time between tokens, at low rates, where it is latency alone."""
    return np.array(
        [
            log(mean_step(row.engine, row.workload, at_work(row, own), own) / row.token_seconds)
            for row in rows
            if row.token_seconds and row.rate <= CALM_RATE
        ]
    )


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
    seconds = load.responses / row.rate + tail * step.step_seconds(row.engine, last, own).total
    return load.responses * load.reply_tokens / seconds


def kernels(own: Values) -> dict[str, dict[str, Any]]:
    """Errors of single operations. Nothing is fitted to them, since serving engines use other kernels, in graphs; only
    priors were chosen with these times in view. They do not include the time between kernels."""
    ratios: dict[str, list[float]] = {"products": [], "all_reduces": []}
    shape = catalogue()["Llama-3.1-70B"].shape
    for row in table("layer_times.csv"):
        size, engine = float(row["size"]), Engine(shape, devices()[row["gpu"]], int(row["processes"]))
        if row["op"] == "products":
            layer = replace(
                shape, kv_heads=int(row["kv_heads"]), intermediate=int(row["intermediate"]), layers=1, vocab=0
            )
            heads = 2 * layer.head_dim * (layer.heads + layer.kv_heads)
            layer = replace(layer, parameters=layer.hidden * (heads + 3 * layer.intermediate))  # without embeddings
            guess = step.step_seconds(replace(engine, shape=layer), StepLoad(size, 0.0), own).weights
        else:
            guess = step.all_reduce_seconds(engine, size, own)
        ratios[row["op"]].append(1000 * guess / float(row["milliseconds"]))
    return {name: _summary(np.array(found) - 1) for name, found in ratios.items()}


def _summary(off: Vector) -> dict[str, Any]:
    return {"rows": len(off), "mean_error": float(off.mean()), "mean_absolute_error": float(np.abs(off).mean())}


NEAR = 0.03
"""Relative distance from the best that still counts as right."""


def choices(guessed: Mapping[ThroughputMeasurement, float]) -> dict[str, Any]:
    """Judge the choice of TP by predictions, over cells with several TP. A regret is a share of tokens lost."""
    cells = grouped(guessed, lambda row: (row.source, row.model, row.gpu, row.workload, row.rate)).values()
    lost = np.array([_regret(cell, guessed) for cell in cells if len(cell) > 1])
    return {
        "cells": len(lost),
        "right": float((lost == 0).mean()),
        "near": float((lost <= NEAR).mean()),
        "mean_regret": float(lost.mean()),
        "worst_regret": float(lost.max()),
    }


def _regret(cell: Sequence[ThroughputMeasurement], guessed: Mapping[ThroughputMeasurement, float]) -> float:
    taken = max(cell, key=lambda row: guessed[row] / row.engine.tp)
    return 1 - taken.per_gpu / max(row.per_gpu for row in cell)


PATH = Path(step.__file__).with_name(step.FILE)


def text(coefficients: Coefficients, rows: int) -> str:
    content = {
        "rows": rows,
        "spread": _rounded(coefficients.spread),
        "values": {name: _rounded(coefficients.values[name]) for name in PRIORS},
        "covariance": [[_rounded(value) for value in line] for line in coefficients.covariance.tolist()],
    }
    head = "# Made by `earl bench calibration --write`: the covariance is of logarithms, in the order of the values.\n"
    return head + tomli_w.dumps(content)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


CONTEXTS = (131_072, 32_768, 4096)
Key = Callable[[ThroughputMeasurement], object]
LEFT_OUT: dict[str, Key] = {
    "tp": lambda row: row.engine.tp,
    "context": lambda row: f"{row.workload.prompt_tokens:.0f}+{row.workload.reply_tokens:.0f}",
    "gpu": lambda row: row.gpu,
    "model": lambda row: row.model,
}


@dataclass(frozen=True, slots=True)
class Guess:
    row: ThroughputMeasurement
    tokens_per_second: float
    known: Coefficients

    @property
    def error(self) -> float:
        return log(self.tokens_per_second / self.row.tokens_per_second)


def run(write: bool = False) -> dict[str, Any]:
    """Fit, and return the errors, see `earl bench calibration --help`; with `write`, store the coefficients."""
    rows = measured()
    best = fit(rows)
    unseen = {name: _unseen(rows, best, key) for name, key in LEFT_OUT.items()}
    every = [guess for guesses in unseen.values() for guess in guesses]
    spread = float(np.sqrt(np.mean([guess.error**2 for guess in every])))
    if write:
        PATH.write_text(text(replace(best, spread=spread), len(rows)), encoding="utf-8")
    seen = [Guess(row, predicted(row, best.values), best) for row in rows]
    return {
        "rows": len(rows),
        "in_sample": {**_errors(seen), "by": _by(seen, lambda row: row.source)},
        "left_out": {name: {**_errors(own), "by": _by(own, LEFT_OUT[name])} for name, own in unseen.items()},
        "interval_80": float(np.mean([_inside(guess, spread) for guess in every])),
        "contexts": {"labels": len(served()), "right": sum(map(partial(_fits, best), served()))},
        "kernels": kernels(best.values),
        "coefficients": _coefficients(best),
        "spread": spread,
    }


def _unseen(rows: Sequence[ThroughputMeasurement], best: Coefficients, key: Key) -> list[Guess]:
    """Predict each group by a fit to all others, except rows of an engine that occurs only in this group."""
    guesses: list[Guess] = []
    for group, own in grouped(rows, key).items():
        others = [row for row in rows if key(row) != group]
        known, engines = fit(others, best.values), {row.source for row in others}
        guesses += [Guess(row, predicted(row, known.values), known) for row in own if row.source in engines]
    return guesses


def _inside(guess: Guess, spread: float) -> bool:
    low, high = interval(partial(predicted, guess.row), replace(guess.known, spread=spread))
    return low <= guess.row.tokens_per_second <= high


def _errors(guesses: Sequence[Guess]) -> dict[str, Any]:
    kinds = grouped(guesses, lambda guess: "mixture" if guess.row.engine.shape.experts > 1 else "dense")
    return {
        name: {"error": _error(own), "choice": choices({guess.row: guess.tokens_per_second for guess in own})}
        for name, own in sorted(kinds.items())
    }


def _by(guesses: Sequence[Guess], key: Key) -> dict[str, float]:
    return {name: _error(own) for name, own in grouped(guesses, lambda guess: str(key(guess.row))).items()}


def _error(guesses: Sequence[Guess]) -> float:
    return float(np.mean([abs(exp(guess.error) - 1) for guess in guesses]))


def _fits(best: Coefficients, label: ServedContext) -> bool:
    """Whether the longest context predicted to fit is the one that was served."""
    room = label.engine.kv_tokens(best.values)
    return label.tokens == max((tokens for tokens in CONTEXTS if tokens <= room), default=0)


def _coefficients(best: Coefficients) -> dict[str, Any]:
    spreads = np.sqrt(np.diag(best.covariance))
    return {
        name: {"value": best.values[name], "spread": float(spread), "prior": prior, "prior_spread": believed}
        for (name, (prior, believed)), spread in zip(PRIORS.items(), spreads, strict=True)
    }
