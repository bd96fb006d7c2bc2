"""Which trends explain a history: every model weighed by how well it predicted the history step by step.

Each is tried on the values and on their logarithms (growth by tokens per step, or by a percentage), and from the first
point on or from a later one, before which something else went on (a leap, another trend). The scale of the noise has
its conjugate posterior (West and Harrison, Bayesian Forecasting and Dynamic Models, 1997, chapter 4.5).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from earl.context.models import MODELS, WINDOW, Filters, Floats, filters

FORGETTING = 0.97
"""An error counts this much less for each step that it lies back, so that a bend is noticed soon."""
SCALE, SCALE_POINTS = 0.006, 0.5
"""Prior of the noise: relative to the values, and how many points it weighs as much as."""
SEGMENTS, SHORTEST, BROKEN = (8, 16, 32), 4, 0.01
"""How many last places may follow a trend of their own, the fewest points on either side, and its prior weight."""
LEVEL, SLOPE = 0.3, 0.03
"""Prior standard deviations of where a trend begins and of its slope, relative to the values: what each trend costs."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """What a history says: one entry per hypothesis [N], which is where the trend began, a scale and a model.

    Values are divided by `unit`.
    """

    weights: Floats  # sum 1
    logarithmic: NDArray[np.bool_]
    model: NDArray[np.intp]  # its number in MODELS
    states: Floats  # [2, N]: level and slope
    covariances: Floats  # [3, N], in units of the variance
    variances: Floats  # of the noise
    freedom: Floats  # degrees of freedom of the variances
    unit: float


@dataclass(frozen=True, slots=True)
class _Fit:
    """All models filtered over one stretch of the series."""

    filters: Filters
    series: Floats  # [2, T]: values and logarithms
    points: Floats  # [T]: how much each counted, up to there
    evidence: Floats  # [T, 2, M]: log density of the values up to there
    squares: Floats  # [T, 2, M]: of the errors, likewise


def posterior(values: Floats, seen: NDArray[np.bool_]) -> Posterior:
    """Filter and weigh all hypotheses.

    Args:
        values: [T], at most WINDOW evenly spaced, 0 where not seen; at least SHORTEST are seen.
        seen: [T], the first and the last are.
    """
    length, unit = len(values), float(np.abs(values[seen]).mean()) or 1.0
    positive = bool((values[seen] > 0).all())
    logs = np.log(np.where(seen, values, unit) / unit) if positive else np.zeros(length)
    series = np.stack([values / unit, logs])
    counts = np.where(seen, FORGETTING ** np.arange(length - 1.0, -1.0, -1.0), 0.0)
    whole = _fit(series, seen, counts)
    fits, evidence = [whole], [whole.evidence[-1]]
    for start in (length - last for last in SEGMENTS):
        if start > 0 and min(seen[:start].sum(), seen[start:].sum()) >= SHORTEST:
            fits.append(_fit(series[:, start:], seen[start:], counts[start:]))
            before = np.logaddexp.reduce(whole.evidence[start - 1] if positive else whole.evidence[start - 1, :1], None)
            evidence.append(fits[-1].evidence[-1] + before + math.log(BROKEN))
    return _posterior(fits, np.stack(evidence), unit, positive)


def _fit(series: Floats, seen: NDArray[np.bool_], counts: Floats) -> _Fit:
    """Student's t density of the errors, step by step; the first two points only place the level and the slope."""
    length = len(seen)
    known = filters((True,) * WINDOW if seen.all() else tuple(seen.tolist()))
    errors = np.einsum("tmu,su->tsm", known.innovations[:length, :, :length], series)
    placed = np.flatnonzero(seen)[:2]
    cost = counts[placed] @ np.log(np.array([LEVEL, SLOPE]) * math.sqrt(2 * math.pi))
    counts = counts.copy()
    counts[placed] = 0
    variances = known.variances[:length]
    points = np.cumsum(counts)
    freedom = (SCALE_POINTS + points)[:, None, None]
    prior = SCALE_POINTS * SCALE**2
    squares = prior + np.cumsum(counts[:, None, None] * errors**2 / variances[:, None], axis=0)
    spread = np.cumsum(counts[:, None] * np.log(math.pi * variances), axis=0)[:, None]
    gammas = np.array([math.lgamma(value / 2) for value in freedom.ravel()])[:, None, None]
    evidence = (
        MODELS.log_prior
        + gammas
        - 0.5 * (spread + freedom * np.log(squares / prior) + points[:, None, None] * math.log(prior))
        - cost
    )
    evidence[:, 1] -= np.cumsum(counts * series[1])[:, None]  # the density of the value, not of its logarithm
    return _Fit(known, series, points, evidence, squares)


def _posterior(fits: list[_Fit], evidence: Floats, unit: float, positive: bool) -> Posterior:
    """Lay the hypotheses of all stretches side by side; evidence is [stretches, 2, M]."""
    if not positive:
        evidence[:, 1] = -np.inf
    weights = np.exp(evidence - evidence.max()).ravel()
    numbers, count = np.arange(len(weights)), len(MODELS.level)
    ends = [len(fit.points) - 1 for fit in fits]
    states = [
        np.einsum("amu,su->asm", fit.filters.states[end, :, :, : end + 1], fit.series)
        for fit, end in zip(fits, ends, strict=True)
    ]
    freedom = np.array([SCALE_POINTS + fit.points[-1] for fit in fits])
    return Posterior(
        weights / weights.sum(),
        numbers // count % 2 == 1,
        numbers % count,
        np.concatenate([state.reshape(2, -1) for state in states], axis=1),
        np.concatenate([np.tile(fit.filters.covariances[end], 2) for fit, end in zip(fits, ends, strict=True)], axis=1),
        np.concatenate([fit.squares[-1].ravel() / own for fit, own in zip(fits, freedom, strict=True)]),
        np.repeat(freedom, 2 * count),
        unit,
    )
