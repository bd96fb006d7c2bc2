"""Fits the throughput model to published tables, and measures its errors on fitted and on left-out rows.

rows ─▶ fit ─▶ errors in sample
  └──▶ all but one TP, context, GPU or model ─▶ fit ─▶ errors and choices for the rest
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from math import exp, inf, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

import earl.parallel.throughput
from earl.parallel.catalogue import catalogue
from earl.parallel.hardware import devices
from earl.parallel.memory import ModelShape
from earl.parallel.throughput.rollout import Workload, interval, mean_step, running, tokens_per_second
from earl.parallel.throughput.step import (
    FILE,
    PRIORS,
    TENSORRT_LLM,
    TRITON,
    VLLM_0_5,
    Coefficients,
    Engine,
    Precision,
    StepLoad,
    Values,
    all_reduce_seconds,
    step_seconds,
)

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
    point, value, slopes, damping = start, residuals(start), jacobian(residuals, start), 1e-3
    for _ in range(MOST_ROUNDS):
        normal = slopes.T @ slopes
        moved = point + np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slopes.T @ value)
        tried = residuals(moved)
        before, after = value @ value, tried @ tried
        if after < before:
            point, value, slopes = moved, tried, jacobian(residuals, moved)
        damping *= 4 if after >= before else 1 / 4
        if (1 - ENOUGH) * before < after < before:
            break
    return point, np.asarray(np.linalg.inv(slopes.T @ slopes), dtype=np.float64)


def jacobian(residuals: Callable[[Vector], Vector], point: Vector) -> Vector:
    """Derivatives of the residuals, one column per coordinate. [R, P]"""
    nudges = NUDGE * np.eye(len(point))
    columns = [(residuals(point + nudge) - residuals(point - nudge)) / (2 * NUDGE) for nudge in nudges]
    return np.stack(columns, axis=1)


MODELS = {
    "LLaMA-3.1-8B": "Llama-3.1-8B",
    "LLaMA-3.1-70B": "Llama-3.1-70B",
    "LLaMA-3.1-405B": "Llama-3.1-405B",
    "Mixtral-8x7B": "Mixtral-8x7B",
}
GPUS = {"H100-80GB": "H100", "A100-80GB": "A100-80"}
SOFTWARE = {"trtllm-0.17": TENSORRT_LLM, "trtllm-0.14-online": TRITON, "lambda-vllm-0.5.4": VLLM_0_5}
REQUESTS = {
    (128, 128): 30_000,
    (128, 2048): 3000,
    (128, 4096): 1500,
    (500, 2000): 3000,
    (1000, 1000): 3000,
    (2048, 128): 3000,
    (2048, 2048): 1500,
    (5000, 500): 1500,
    (20_000, 2000): 1000,
}
"""Requests in TensorRT-LLM's benchmark by prompt and reply, from the public scripts that make its data sets."""
ONLINE_REQUESTS = 500
ONLINE_CHAT_REPLY = 214
"""Tokens: a mean that results from the data; the other two replies of that table are round numbers."""
CHATS = 320
CHAT_TOKENS = (220.0, 195.0)
"""Mean prompt and reply of the chat data set, as filtered by vLLM's benchmark. The page does not state them."""


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
    """Requests per second; inf: all at once."""
    token_seconds: float | None
    """Mean time between two tokens of a reply; None if unknown."""
    chat: bool = False
    """Whether lengths vary as in chats."""

    @property
    def tp(self) -> int:
        return self.engine.tp

    @property
    def mixture(self) -> bool:
        return self.engine.shape.experts > 1

    @property
    def cell(self) -> tuple[object, ...]:
        return self.source, self.model, self.gpu, self.workload, self.rate


@dataclass(frozen=True, slots=True)
class ServedContext:
    """The longest context of 4,096, 32,768 and 131,072 that was served; 0: the model did not load."""

    model: str
    engine: Engine
    tokens: int


@cache
def measured() -> tuple[ThroughputMeasurement, ...]:
    return tuple(_measured(row) for row in _rows() if row["metric"] == "output_throughput" and row["value"])


@cache
def served() -> tuple[ServedContext, ...]:
    return tuple(
        ServedContext(MODELS[row["model"]], _engine(row), int(row["value"]))
        for row in _rows()
        if row["metric"] == "max_context_served"
    )


def table(name: str) -> list[dict[str, str]]:
    text = files("earl.benchmarks").joinpath("published").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _rows() -> Iterator[dict[str, str]]:
    yield from table("serving_throughput.csv")


def _engine(row: dict[str, str]) -> Engine:
    shape = catalogue()[MODELS[row["model"]]].shape
    kv = "auto" if row["kv_dtype"].startswith("auto") else row["kv_dtype"]
    precision = Precision(row["weight_dtype"], kv)
    return Engine(shape, devices()[GPUS[row["gpu"]]], int(row["tp"]), precision, SOFTWARE[row["source_id"]])


def _measured(row: dict[str, str]) -> ThroughputMeasurement:
    source, chat = row["source_id"], not row["isl"]
    prompt, reply = CHAT_TOKENS if chat else (float(row["isl"]), float(row["osl"]))
    rate = re.match(r"qps=(\w+)", row["load"])
    count = CHATS if chat else ONLINE_REQUESTS if rate else REQUESTS[int(prompt), int(reply)]
    return ThroughputMeasurement(
        source=source,
        model=MODELS[row["model"]],
        gpu=GPUS[row["gpu"]],
        engine=_engine(row),
        workload=Workload(prompt, reply, count),
        tokens_per_second=float(row["value"]),
        rate=float(rate[1]) if rate else float("inf"),
        token_seconds=float(row["itl_ms"]) / 1000 if row["itl_ms"] else None,
        chat=chat or reply == ONLINE_CHAT_REPLY,
    )


ERROR = 0.06
"""Expected standard deviation of a measurement's logarithm about the model; weighs data against priors."""
CALM_RATE = 8.0
"""Requests per second up to which no request queues."""
ROUNDS = 6
"""Fixed-point iterations for the number of running sequences and the time of a step."""


def fit(rows: Sequence[ThroughputMeasurement], start: Values | None = None) -> Coefficients:
    """Fit every coefficient. `start` only saves time; by default the fit starts at the priors."""
    names = list(PRIORS)
    believed = np.array([log(prior.value) for prior in PRIORS.values()])
    spreads = np.array([prior.spread for prior in PRIORS.values()])

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
    seconds = load.responses / row.rate + tail * step_seconds(row.engine, last, own).total
    return load.responses * load.reply_tokens / seconds


# Errors of single operations in layer_times.csv: sums of a layer's four matrix products, and all-reduces within a fully
# linked host. The coefficients are not fitted to them, since serving engines use other kernels, in graphs; only their
# priors were chosen with these times in view.

PRODUCTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
KERNEL_GPUS = {"h100": "H100", "a100": "A100-80", "h100_dgx": "H100", "a100_dgx": "A100-80"}
LLAMA = catalogue()["Llama-3.1-70B"].shape
KERNEL_MODELS = {
    "meta-llama/Llama-2-70b-hf": LLAMA,
    "meta-llama/Meta-Llama-3-70B": LLAMA,
    "Qwen/Qwen-72B": replace(LLAMA, kv_heads=64, intermediate=24_576),
}


def kernels(own: Values) -> dict[str, dict[str, float]]:
    return {"products": _summary(_products(own)), "all_reduces": _summary(_all_reduces(own))}


def _summary(ratios: list[float]) -> dict[str, float]:
    off = np.array(ratios) - 1
    return {"rows": len(ratios), "mean_error": float(off.mean()), "mean_absolute_error": float(np.abs(off).mean())}


def _products(own: Values) -> list[float]:
    """Predicted over measured time of a layer's products. Neither includes the time between kernels."""
    times: dict[tuple[str, str, int, int], float] = {}
    for row in table("layer_times.csv"):
        if row["op"] in PRODUCTS:
            size = int(row["num_tokens_or_size_bytes"])
            key = row["device"], row["model_or_collective"], int(row["tp_or_workers"]), size
            times[key] = times.get(key, 0.0) + float(row["median"]) / 1000
    return [
        _layer_seconds(KERNEL_MODELS[model], KERNEL_GPUS[device], tp, tokens, own) / seconds
        for (device, model, tp, tokens), seconds in times.items()
    ]


def _layer_seconds(shape: ModelShape, gpu: str, tp: int, tokens: int, own: Values) -> float:
    """Time of one layer; its parameter count leaves out the embeddings."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    numbers = shape.hidden * (2 * queries + 2 * keys + 3 * shape.intermediate)
    layer = replace(shape, layers=1, vocab=0, parameters=numbers)
    return step_seconds(Engine(layer, devices()[gpu], tp), StepLoad(tokens, 0.0), own).weights


def _all_reduces(own: Values) -> list[float]:
    ratios = []
    for row in table("layer_times.csv"):
        workers = int(row["tp_or_workers"])
        if row["device"] in KERNEL_GPUS and row["op"] == f"devices_per_node={workers}" and workers <= 8:
            engine = Engine(LLAMA, devices()[KERNEL_GPUS[row["device"]]], workers)
            guess = all_reduce_seconds(engine, float(row["num_tokens_or_size_bytes"]), own)
            ratios.append(guess / (float(row["median"]) / 1000))
    return ratios


NEAR = 0.03
"""Relative distance from the best that still counts as right."""


def choices(guessed: Mapping[ThroughputMeasurement, float]) -> dict[str, Any]:
    """Judge the choice of TP by predictions, over cells with several TP. A regret is a share of tokens lost."""
    cells: dict[object, list[ThroughputMeasurement]] = {}
    for row in guessed:
        cells.setdefault(row.cell, []).append(row)
    lost = [_regret(cell, guessed) for cell in cells.values() if len(cell) > 1]
    return {
        "cells": len(lost),
        "right": sum(regret == 0 for regret in lost) / len(lost),
        "near": sum(regret <= NEAR for regret in lost) / len(lost),
        "mean_regret": sum(lost) / len(lost),
        "worst_regret": max(lost),
    }


def _regret(cell: Sequence[ThroughputMeasurement], guessed: Mapping[ThroughputMeasurement, float]) -> float:
    taken = max(cell, key=lambda row: guessed[row] / row.tp)
    return 1 - taken.tokens_per_second / taken.tp / max(row.tokens_per_second / row.tp for row in cell)


PATH = Path(earl.parallel.throughput.__file__).with_name(FILE)
DIGITS = 6


def text(coefficients: Coefficients, rows: int) -> str:
    content = {
        "rows": rows,
        "spread": _rounded(coefficients.spread),
        "values": {name: _rounded(coefficients.values[name]) for name in PRIORS},
        "covariance": [[_rounded(float(value)) for value in line] for line in coefficients.covariance],
    }
    head = "# Made by `earl bench calibration --write`: the covariance is of logarithms, in the order of the values.\n"
    return head + tomli_w.dumps(content)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


CONTEXTS = (131_072, 32_768, 4096)
LEFT_OUT: dict[str, Callable[[ThroughputMeasurement], object]] = {
    "tp": lambda row: row.tp,
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
    spread = sqrt(sum(guess.error**2 for guess in every) / len(every))
    if write:
        PATH.write_text(text(replace(best, spread=spread), len(rows)), encoding="utf-8")
    seen = [Guess(row, predicted(row, best.values), best) for row in rows]
    return {
        "rows": len(rows),
        "in_sample": {**_errors(seen), "by": _by(seen, lambda row: row.source)},
        "left_out": {name: {**_errors(own), "by": _by(own, LEFT_OUT[name])} for name, own in unseen.items()},
        "interval_80": sum(_inside(guess, spread) for guess in every) / len(every),
        "contexts": _contexts(best),
        "kernels": kernels(best.values),
        "coefficients": _coefficients(best),
        "spread": spread,
    }


def _unseen(
    rows: Sequence[ThroughputMeasurement], best: Coefficients, key: Callable[[ThroughputMeasurement], object]
) -> list[Guess]:
    """Predict each group by a fit to all others, except rows of an engine that occurs only in this group."""
    guesses: list[Guess] = []
    for group in dict.fromkeys(map(key, rows)):
        others = [row for row in rows if key(row) != group]
        known, engines = fit(others, best.values), {row.source for row in others}
        left = [row for row in rows if key(row) == group and row.source in engines]
        guesses += [Guess(row, predicted(row, known.values), known) for row in left]
    return guesses


def _inside(guess: Guess, spread: float) -> bool:
    low, high = interval(partial(predicted, guess.row), replace(guess.known, spread=spread))
    return low <= guess.row.tokens_per_second <= high


def _errors(guesses: Sequence[Guess]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, mixture in (("dense", False), ("mixture", True)):
        own = [guess for guess in guesses if guess.row.mixture == mixture]
        chosen = choices({guess.row: guess.tokens_per_second for guess in own})
        found[name] = {"error": _error(own), "choice": chosen}
    return found


def _by(guesses: Iterable[Guess], key: Callable[[ThroughputMeasurement], object]) -> dict[str, float]:
    groups: dict[str, list[Guess]] = {}
    for guess in guesses:
        groups.setdefault(str(key(guess.row)), []).append(guess)
    return {name: _error(own) for name, own in groups.items()}


def _error(guesses: Iterable[Guess]) -> float:
    return float(np.mean([abs(exp(guess.error) - 1) for guess in guesses]))


def _contexts(best: Coefficients) -> dict[str, int]:
    labels = served()
    right = 0
    for label in labels:
        room = label.engine.kv_tokens(best.values)
        right += label.tokens == next((tokens for tokens in CONTEXTS if tokens <= room), 0)
    return {"labels": len(labels), "right": right}


def _coefficients(best: Coefficients) -> dict[str, Any]:
    spreads = np.sqrt(np.diag(best.covariance))
    return {
        name: {"value": best.values[name], "spread": float(spread), "prior": prior.value, "prior_spread": prior.spread}
        for (name, prior), spread in zip(PRIORS.items(), spreads, strict=True)
    }
