"""How well the throughput model meets the published tables it is fitted to, and tables that it has not seen.

rows ─▶ fit ─▶ errors in sample
  └──▶ all but one TP, context, GPU or model ─▶ fit ─▶ errors and choices for what was left out
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log, sqrt
from typing import Any

import numpy as np

from earl.benchmarks.choices import choices
from earl.parallel.calibration.fit import fit, predicted
from earl.parallel.calibration.kernels import kernels
from earl.parallel.calibration.store import PATH, text
from earl.parallel.calibration.tables import Measured, measured, served
from earl.parallel.throughput.coefficients import PRIORS, Coefficients
from earl.parallel.throughput.rollout import interval

CONTEXTS = (131_072, 32_768, 4096)
LEFT_OUT: dict[str, Callable[[Measured], object]] = {
    "tp": lambda row: row.tp,
    "context": lambda row: f"{row.workload.prompt_tokens:.0f}+{row.workload.reply_tokens:.0f}",
    "gpu": lambda row: row.gpu,
    "model": lambda row: row.model,
}


@dataclass(frozen=True, slots=True)
class Guess:
    """A prediction of a row, and the fit that it comes from."""

    row: Measured
    tokens_per_second: float
    known: Coefficients

    @property
    def error(self) -> float:
        """Logarithm of predicted by measured."""
        return log(self.tokens_per_second / self.row.tokens_per_second)


def run(write: bool = False) -> dict[str, Any]:
    """Fit, and tell the errors; with `write`, store the coefficients.

    Returns:
        `in_sample`, `left_out`: mean absolute relative errors, of dense models and of mixtures apart, and how good the
        choice of TP is; `interval_80`: share of the left-out rows in their interval; `coefficients`; `contexts`: labels
        of what was served; `kernels`: how well single operations are met; `spread`: of the left-out rows' logarithms.
    """
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


def _unseen(rows: Sequence[Measured], best: Coefficients, key: Callable[[Measured], object]) -> list[Guess]:
    """Each group predicted by a fit to all others, without rows of an engine that these know nothing of."""
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


def _by(guesses: Iterable[Guess], key: Callable[[Measured], object]) -> dict[str, float]:
    groups: dict[str, list[Guess]] = {}
    for guess in guesses:
        groups.setdefault(str(key(guess.row)), []).append(guess)
    return {name: _error(own) for name, own in groups.items()}


def _error(guesses: Iterable[Guess]) -> float:
    return float(np.mean([abs(exp(guess.error) - 1) for guess in guesses]))


def _contexts(best: Coefficients) -> dict[str, int]:
    """How many labels are right."""
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
