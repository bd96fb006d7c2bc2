"""Fits the throughput model to published tables, and measures its errors on fitted and on left-out rows.

rows ─▶ fit ─▶ errors in sample
  └──▶ all but one TP, context, GPU or model ─▶ fit ─▶ errors and choices for the rest
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

import earl.parallel.throughput
from earl.benchmarks.fitting import ServedContext, ThroughputMeasurement, fit, kernels, measured, predicted, served
from earl.benchmarks.repeats import grouped
from earl.parallel.throughput.rollout import interval
from earl.parallel.throughput.step import FILE, PRIORS, Coefficients

NEAR = 0.03
"""Relative distance from the best that still counts as right."""


def choices(guessed: Mapping[ThroughputMeasurement, float]) -> dict[str, Any]:
    """Judge the choice of TP by predictions, over cells with several TP. A regret is a share of tokens lost."""
    cells = grouped(guessed, lambda row: row.cell).values()
    lost = np.array([_regret(cell, guessed) for cell in cells if len(cell) > 1])
    return {
        "cells": len(lost),
        "right": float((lost == 0).mean()),
        "near": float((lost <= NEAR).mean()),
        "mean_regret": float(lost.mean()),
        "worst_regret": float(lost.max()),
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
Key = Callable[[ThroughputMeasurement], object]
LEFT_OUT: dict[str, Key] = {
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
    found: dict[str, Any] = {}
    for name, mixture in (("dense", False), ("mixture", True)):
        own = [guess for guess in guesses if guess.row.mixture == mixture]
        chosen = choices({guess.row: guess.tokens_per_second for guess in own})
        found[name] = {"error": _error(own), "choice": chosen}
    return found


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
        name: {"value": best.values[name], "spread": float(spread), "prior": prior.value, "prior_spread": prior.spread}
        for (name, prior), spread in zip(PRIORS.items(), spreads, strict=True)
    }
