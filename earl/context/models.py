"""The trends that a history may follow: many local linear trend models, and what their Kalman filters do to any series.

    value[t] = level[t] + noise            level[t] = level[t-1] + slope[t] + noise
                                           slope[t] = damping * slope[t-1] + noise

(Harvey, Forecasting, Structural Time Series Models and the Kalman Filter, 1989; damped as Gardner and McKenzie, 1985.)
The variances of the three noises are fixed ratios of one unknown scale, different ones in each model. So the gains of
the filters do not depend on the data: they are worked out once, and filtering a series is a matrix product.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WINDOW = 64
"""Latest points that are looked at."""
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
def filters(seen: tuple[bool, ...]) -> Filters:
    """The filters for a series whose places are seen or missing; the first level and slope are unknown.

    A prefix of theirs serves the prefix of the series.
    """
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
