"""Where a history may go: some hundreds of futures drawn from the trends that explain it, always with the same luck."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from earl.context.models import MODELS, WINDOW, Floats
from earl.context.trend import Posterior, posterior

PATHS = 256
MIN_POINTS = 6
"""A shorter history is taken to have been flat before it began."""
TURNS, TURN_POINTS = (0.4, 0.05), 10.0
"""After n points a path takes another slope with probability TURNS / (n + TURN_POINTS) per place: the longer a history
is, the less will change (in the manner of Laplace's rule of succession). The second counts where there is a clear
slope: growth goes on more often than a flat history stays flat."""
CLEAR = 4.0
"""Standard deviations from zero that make a slope clear."""
TURNED_SLOPE = 0.1
"""Standard deviation of that slope, relative to the values: a turn is felt at once, one way or the other."""
MOST = 300.0
"""Logarithms above are cut off: their values would overflow."""
BLOCK = 256


@dataclass(frozen=True, slots=True)
class Series:
    """The end of a history on an even grid, the last place is the last step."""

    values: Floats  # [T]
    seen: NDArray[np.bool_]  # [T]
    last: int
    """The last step."""
    spacing: int
    """Steps from one place to the next."""
    points: int
    """Length of the whole history."""


def series(history: Sequence[tuple[int, float]]) -> Series | None:
    """The latest points of a history, without those that are not finite; None when there is none."""
    points = sorted((step, value) for step, value in dict(history[-WINDOW:]).items() if math.isfinite(value))
    if not points:
        return None
    steps = np.array([step for step, _ in points])
    last, spacing = int(steps[-1]), max(1, int(np.median(np.diff(steps)))) if len(steps) > 1 else 1
    places = np.rint((steps - last) / spacing).astype(int)
    length = int(min(WINDOW, 1 - places[0]))
    grid, seen = np.zeros(length), np.zeros(length, bool)
    for place, (_, value) in zip(places, points, strict=True):
        if place > -length:
            grid[place - 1], seen[place - 1] = value, True
    first = int(seen.argmax())
    missing = max(0, MIN_POINTS - int(seen.sum()))
    grid, seen = np.r_[np.full(missing, grid[first]), grid[first:]], np.r_[np.ones(missing, bool), seen[first:]]
    return Series(grid, seen, last, spacing, len(history))


@dataclass(frozen=True, slots=True)
class Paths:
    """Futures of a series; place 0 is the first after its last."""

    values: Floats  # [horizon, PATHS], divided by `unit`; of some paths the logarithm
    logarithmic: NDArray[np.bool_]  # [PATHS]
    unit: float

    def first_at_least(self, limit: float) -> NDArray[np.intp]:
        """How many places on each path reaches the limit: 1 .. horizon, horizon + 1 when it does not. [PATHS]."""
        share = limit / self.unit
        bounds = np.where(self.logarithmic, math.log(share) if share > 0 else -math.inf, share)
        over = self.values >= bounds
        return np.where(over.any(0), over.argmax(0) + 1, len(over) + 1)

    def at(self, place: int) -> Floats:
        """The values at a place, -1: at the horizon. [PATHS]."""
        there = self.values[place]
        values: Floats = self.unit * np.where(self.logarithmic, np.exp(np.minimum(there, MOST)), there)
        return values


@lru_cache(maxsize=4)
def _luck(blocks: int) -> tuple[Floats, Floats, Floats]:
    """Standard normals per place and path [BLOCK * blocks, 3, PATHS], per path [4, PATHS]; uniforms [PATHS]."""
    generator = np.random.default_rng(20240607)
    per_path, uniform = generator.standard_normal((4, PATHS)), generator.random(PATHS)
    return generator.standard_normal((BLOCK * blocks, 3, PATHS)), per_path, uniform


def simulate(past: Series, horizon: int) -> Paths:
    """Draw PATHS futures of `horizon` places: trend, variance and state from the posterior, then its noises."""
    known = posterior(past.values, past.seen)
    noise, luck, uniform = _luck(-(-horizon // BLOCK))
    shares = np.cumsum(known.weights)
    drawn = np.searchsorted(shares / shares[-1], (np.arange(PATHS) + 0.5) / PATHS)
    model = known.model[drawn]
    deviation, level, slope = _start(known, drawn, luck)
    spread = np.sqrt(known.variances[drawn] * np.maximum(known.covariances[2, drawn], 0))
    clear = np.abs(known.states[1, drawn]) > CLEAR * spread
    turns = _turns(np.where(clear, TURNS[1], TURNS[0]) / (past.points + TURN_POINTS), uniform, horizon)
    slope_noise = noise[:horizon, 0] * (deviation * np.sqrt(MODELS.slope[model]))
    values = noise[:horizon, 1] * (deviation * np.sqrt(MODELS.level[model]))
    damping = MODELS.damping[model]
    for place in range(horizon):
        slope *= damping
        slope += slope_noise[place]
        for path in turns.get(place, ()):
            slope[path] = TURNED_SLOPE * luck[3, path]
        level += slope
        level += values[place]
        values[place] = level
    values += noise[:horizon, 2] * (deviation * np.sqrt(MODELS.observation[model]))
    return Paths(values, known.logarithmic[drawn], known.unit)


def _start(known: Posterior, drawn: NDArray[np.intp], luck: Floats) -> tuple[Floats, Floats, Floats]:
    """Standard deviation of the noise, level and slope where the paths begin, each [PATHS]."""
    # Chi-square over its degrees of freedom, by Wilson and Hilferty's cube; cut off where it is wrong.
    cube = 2 / (9 * known.freedom[drawn])
    deviation = np.sqrt(known.variances[drawn] / np.maximum(1 - cube + luck[0] * np.sqrt(cube), 0.15) ** 3)
    level, slope = known.states[:, drawn]
    p_level, p_both, p_slope = known.covariances[:, drawn]
    root = np.sqrt(np.maximum(p_level, 1e-12))
    shared = p_both / root
    alone = np.sqrt(np.maximum(p_slope - shared**2, 0))
    return (
        deviation,
        level + deviation * root * luck[1],
        slope + deviation * (shared * luck[1] + alone * luck[2]),
    )


def _turns(rates: Floats, uniform: Floats, horizon: int) -> dict[int, list[int]]:
    """Which paths turn at which place, when each of them does so at its rate per place."""
    waits = np.log(uniform) / np.log1p(-rates)
    turns: dict[int, list[int]] = {}
    for path in np.flatnonzero(waits < horizon).tolist():
        turns.setdefault(int(waits[path]), []).append(path)
    return turns
