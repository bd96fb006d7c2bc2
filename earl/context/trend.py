"""Which trends explain a history: many local linear trend models filtered at once, weighed by how well they predicted.

    value[t] = level[t] + noise            level[t] = level[t-1] + slope[t] + noise
                                           slope[t] = damping * slope[t-1] + noise

(Harvey, Forecasting, Structural Time Series Models and the Kalman Filter, 1989; damped as Gardner and McKenzie, 1985.)
The variances of the three noises are fixed ratios of one unknown scale, different ones in each model; so the filter's
gains do not depend on the data, its innovations are one matrix product, and the scale has its conjugate posterior
(West and Harrison, Bayesian Forecasting and Dynamic Models, 1997, chapter 4.5). Every model is tried on the values and
on their logarithms: growth by tokens per step and growth by a percentage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WINDOW = 64
"""Latest points that are looked at."""
MIN_POINTS = 6
"""A shorter history is taken to have been flat before it began."""
FORGETTING = 0.97
"""An error counts this much less for each step that it lies back, so that a bend is noticed within some ten steps."""
SCALE, SCALE_POINTS = 0.006, 0.5
"""Prior of the noise: relative to the values, and how many points it weighs as much as."""

LEVEL_NOISE = ((1.0, 0.0), (1.0, 0.1), (0.05, 1.0))
"""Variances of what is observed and of the level: a smooth trend, one that wanders, a random walk."""
SLOPE_NOISE = ((0.0, 0.5), (1e-5, 0.2), (1e-4, 0.1), (1e-3, 0.1), (5e-2, 0.1))
"""Variances of the slope with their prior weights."""
DAMPING = ((1.0, 0.9), (0.98, 0.05), (0.95, 0.05))
"""Factors of the slope from step to step with their prior weights."""
FLAT_WEIGHT = 0.05
"""Prior weight of each model whose slope is zero for good."""


@dataclass(frozen=True, slots=True)
class Models:
    """The grid, one entry per model [M]."""

    observation: Floats
    level: Floats
    slope: Floats
    damping: Floats
    has_slope: Floats  # 0 or 1
    log_prior: Floats


def _grid() -> Models:
    rows = [
        (*noise, slope, damping, 1.0, np.log(weight * share))
        for noise, (damping, share), (slope, weight) in product(LEVEL_NOISE, DAMPING, SLOPE_NOISE)
    ]
    rows += [(*noise, 0.0, 1.0, 0.0, np.log(FLAT_WEIGHT)) for noise in LEVEL_NOISE]
    return Models(*np.array(rows).T)


MODELS = _grid()


@dataclass(frozen=True, slots=True)
class Filters:
    """What the Kalman filters do to any series with these places: linear maps, and variances in units of the scale."""

    innovations: Floats  # [T, M, T]: innovation at t = row · series
    variances: Floats  # [T, M] of the innovations
    states: Floats  # [T, 2, M, T]: level and slope after t = row · series
    covariances: Floats  # [T, 3, M]: of the level, of both, of the slope


@lru_cache(maxsize=16)
def _filters(seen: tuple[bool, ...]) -> Filters:
    """The filters for a series whose places are seen or missing; the first level and slope are unknown."""
    m, length, count = MODELS, len(seen), len(MODELS.level)
    level, slope = np.zeros((count, length)), np.zeros((count, length))
    p_level, p_both, p_slope = np.full(count, 1e8), np.zeros(count), 1e4 * m.has_slope
    result = Filters(
        np.zeros((length, count, length)),
        np.ones((length, count)),
        np.zeros((length, 2, count, length)),
        np.zeros((length, 3, count)),
    )
    for t in range(length):
        if t:
            slope = m.damping[:, None] * slope
            level = level + slope
            damped = m.damping**2 * p_slope
            p_level = p_level + 2 * m.damping * p_both + damped + m.slope + m.level
            p_both, p_slope = m.damping * p_both + damped + m.slope, damped + m.slope
        if seen[t]:
            variance = p_level + m.observation
            innovation = -level
            innovation[:, t] += 1
            level = level + (p_level / variance)[:, None] * innovation
            slope = slope + (p_both / variance)[:, None] * innovation
            p_slope = p_slope - p_both**2 / variance
            p_both, p_level = p_both * m.observation / variance, p_level * m.observation / variance
            result.innovations[t], result.variances[t] = innovation, variance
        result.states[t], result.covariances[t] = (level, slope), (p_level, p_both, p_slope)
    return result


@dataclass(frozen=True, slots=True)
class Posterior:
    """What a history says, per scale (0 values, 1 logarithms) and model; values are divided by `unit`."""

    weights: Floats  # [2, M], sum 1
    states: Floats  # [2, 2, M]: level and slope; then scale, model
    covariances: Floats  # [3, M], in units of the variance
    variances: Floats  # [2, M] of the noise
    freedom: float
    """Degrees of freedom of the variances."""
    unit: float


def posterior(values: Floats, seen: Sequence[bool]) -> Posterior:
    """Filter and weigh all models.

    Args:
        values: [T], at most WINDOW evenly spaced, 0 where not seen; at least MIN_POINTS are seen.
        seen: [T], the first and the last are.
    """
    length, mask = len(values), np.array(seen)
    filters = _filters((True,) * WINDOW if mask.all() else tuple(seen))  # a prefix serves every whole history
    unit = float(np.abs(values[mask]).mean()) or 1.0
    positive = bool((values[mask] > 0).all())
    logs = np.log(np.where(mask, values, unit) / unit) if positive else np.zeros(length)
    series = np.stack([values / unit, logs])
    errors = np.einsum("tmu,su->stm", filters.innovations[:length, :, :length], series)
    counts = np.where(mask, FORGETTING ** np.arange(length - 1.0, -1.0, -1.0), 0.0)
    counts[np.flatnonzero(mask)[:2]] = 0  # they only place the level and the slope
    variances = filters.variances[:length]
    freedom = SCALE_POINTS + float(counts.sum())
    squares = SCALE_POINTS * SCALE**2 + np.einsum("t,stm->sm", counts, errors**2 / variances)
    evidence = (
        MODELS.log_prior - 0.5 * np.einsum("t,tm->m", counts, np.log(variances)) - 0.5 * freedom * np.log(squares)
    )
    evidence[1] += -float(counts @ logs) if positive else -np.inf  # density of the value, not of its logarithm
    weights = np.exp(evidence - evidence.max())
    states = np.einsum("amu,su->asm", filters.states[length - 1, :, :, :length], series)
    return Posterior(weights / weights.sum(), states, filters.covariances[length - 1], squares / freedom, freedom, unit)
