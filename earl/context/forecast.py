"""Forecast of the step at which contexts reach their limit: a median and an 80 % interval from one quantile's history.

history ─▶ series (the last 64 points) ─▶ posterior over trends ─▶ simulated paths ─▶ the step at which they reach it
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Trend models: a grid of local linear trends, and their Kalman filters.
#
# value[t] = level[t] + noise            level[t] = level[t-1] + slope[t] + noise
# slope[t] = damping * slope[t-1] + noise
#
# (Harvey, Forecasting, Structural Time Series Models and the Kalman Filter, 1989; damped as Gardner and McKenzie,
# 1985.) Each model fixes the ratios of the three noise variances to one unknown scale. So the filters' gains do not
# depend on the data: they are computed once, and filtering a series is a matrix product.

Floats = NDArray[np.float64]

WINDOW = 64  # latest points that are used
LEVEL_NOISE = ((1.0, 0.0), (1.0, 0.1), (0.05, 1.0))
"""Variances of observation and level: a smooth trend, one that wanders, a random walk."""
SLOPE_NOISE = ((0.0, 0.5), (1e-5, 0.2), (1e-4, 0.1), (1e-3, 0.1), (5e-2, 0.1))
"""Variances of the slope with their prior weights."""
DAMPING = ((1.0, 0.9), (0.98, 0.05), (0.95, 0.05))  # factors of the slope per step, with their prior weights
FLAT_WEIGHT = 0.05  # prior weight of each model whose slope is always zero


class Models(NamedTuple):
    """The grid, one entry per model [M]."""

    observation: Floats
    level: Floats
    slope: Floats
    damping: Floats
    has_slope: Floats  # 0 or 1
    log_prior: Floats


_ROWS = [
    (*noise, slope, damping, 1.0, np.log(weight * share))
    for noise, (damping, share), (slope, weight) in product(LEVEL_NOISE, DAMPING, SLOPE_NOISE)
]
_FLAT = [(*noise, 0.0, 1.0, 0.0, np.log(FLAT_WEIGHT)) for noise in LEVEL_NOISE]
MODELS = Models(*np.array(_ROWS + _FLAT).T)


@dataclass(frozen=True, slots=True)
class Filters:
    """Kalman filters as linear maps of the series, and variances in units of the scale."""

    innovations: Floats  # [T, M, T]: innovation at t = row · series
    variances: Floats  # [T, M] of the innovations
    states: Floats  # [T, 2, M, T]: level and slope after t = row · series
    covariances: Floats  # [T, 3, M]: of the level, of both, of the slope


@lru_cache(maxsize=1)
def filters() -> Filters:
    """The filters of WINDOW points, whose first entries are those of fewer; the first level and slope are unknown."""
    m, length, count = MODELS, WINDOW, len(MODELS.level)
    level, slope = np.zeros((count, length)), np.zeros((count, length))
    p_level, p_both, p_slope = np.full(count, 1e8), np.zeros(count), 1e4 * m.has_slope
    steps = []
    for t in range(length):
        if t:
            slope = m.damping[:, None] * slope
            level = level + slope
            damped = m.damping**2 * p_slope
            p_level = p_level + 2 * m.damping * p_both + damped + m.slope + m.level
            p_both, p_slope = m.damping * p_both + damped + m.slope, damped + m.slope
        variance = p_level + m.observation
        innovation = -level
        innovation[:, t] += 1
        level = level + (p_level / variance)[:, None] * innovation
        slope = slope + (p_both / variance)[:, None] * innovation
        p_slope = p_slope - p_both**2 / variance
        p_both, p_level = p_both * m.observation / variance, p_level * m.observation / variance
        steps.append((innovation, variance, (level, slope), (p_level, p_both, p_slope)))
    return Filters(*map(np.array, zip(*steps, strict=True)))


# Posterior: every model is weighted by how well it predicted the history step by step, on the values and on their
# logarithms (growth by tokens per step, or by a percentage), from the first point on or from a later break (a leap,
# another trend). The noise scale has its conjugate posterior (West and Harrison, Bayesian Forecasting and Dynamic
# Models, 1997, chapter 4.5).

FORGETTING = 0.97
"""Factor on the weight of an error per step of age, so that a bend shows soon."""
SCALE, SCALE_POINTS = 0.006, 0.5
"""Prior of the noise: relative to the values, and the number of points that it weighs."""
SEGMENTS, SHORTEST, BROKEN = (8, 16, 32), 4, 0.01
"""Lengths of a last segment with its own trend, the fewest points before it, and the segment's prior weight."""
LEVEL, SLOPE = 0.3, 0.03
"""Prior standard deviations of a trend's start and slope, relative to the values: the cost of each trend."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """One entry per hypothesis [N]: segment, linear or logarithmic scale, model. Values are divided by `unit`."""

    weights: Floats  # sum 1
    logarithmic: NDArray[np.bool_]
    model: NDArray[np.intp]  # index in MODELS
    states: Floats  # [2, N]: level and slope
    covariances: Floats  # [3, N], in units of the variance
    variances: Floats  # of the noise
    freedom: Floats  # degrees of freedom of the variances
    unit: float


@dataclass(frozen=True, slots=True)
class _Fit:
    evidence: Floats  # [T, 2, M]: log density of the values and their logarithms so far
    states: Floats  # [2, 2 M], at the end, as are the others
    covariances: Floats  # [3, 2 M]
    variances: Floats  # [2 M]
    freedom: float


def posterior(values: Floats) -> Posterior:
    """Filter and weigh all hypotheses. `values` [T] are evenly spaced, SHORTEST at least and WINDOW at most."""
    length, unit = len(values), float(np.abs(values).mean()) or 1.0
    positive = bool((values > 0).all())
    series = np.stack([values / unit, np.log(values / unit) if positive else np.zeros(length)])
    whole = _fit(series)
    fits, evidence = [whole], [whole.evidence[-1]]
    for start in (length - last for last in SEGMENTS):
        if start >= SHORTEST:
            fits.append(_fit(series[:, start:]))
            before = np.logaddexp.reduce(whole.evidence[start - 1] if positive else whole.evidence[start - 1, :1], None)
            evidence.append(fits[-1].evidence[-1] + before + math.log(BROKEN))
    densities = np.stack(evidence)  # [stretches, 2, M]
    if not positive:
        densities[:, 1] = -np.inf
    weights = np.exp(densities - densities.max()).ravel()
    numbers, count = np.arange(len(weights)), len(MODELS.level)
    states, covariances, variances = (
        np.concatenate([getattr(fit, name) for fit in fits], axis=-1) for name in ("states", "covariances", "variances")
    )
    freedom = np.repeat([fit.freedom for fit in fits], 2 * count)
    logarithmic, model = numbers // count % 2 == 1, numbers % count
    return Posterior(weights / weights.sum(), logarithmic, model, states, covariances, variances, freedom, unit)


def _fit(series: Floats) -> _Fit:
    """Student's t density of the errors of values and logarithms [2, T], step by step; the first two points only set
    the level and the slope."""
    length, known = series.shape[1], filters()
    counts = FORGETTING ** np.arange(length - 1.0, -1.0, -1.0)
    errors = np.einsum("tmu,su->tsm", known.innovations[:length, :, :length], series)
    cost = counts[:2] @ np.log(np.array([LEVEL, SLOPE]) * math.sqrt(2 * math.pi))
    counts[:2] = 0
    variances = known.variances[:length]
    points = np.cumsum(counts)[:, None, None]
    freedom = SCALE_POINTS + points
    prior = SCALE_POINTS * SCALE**2
    squares = prior + np.cumsum(counts[:, None, None] * errors**2 / variances[:, None], axis=0)
    spread = np.cumsum(counts[:, None] * np.log(math.pi * variances), axis=0)[:, None]
    gammas = np.array([math.lgamma(value / 2) for value in freedom.ravel()])[:, None, None]
    halved = spread + freedom * np.log(squares / prior) + points * math.log(prior)
    evidence = MODELS.log_prior + gammas - 0.5 * halved - cost
    evidence[:, 1] -= np.cumsum(counts * series[1])[:, None]  # density of the value, not of its logarithm
    states = np.einsum("amu,su->asm", known.states[length - 1, :, :, :length], series)
    last = float(freedom[-1, 0, 0])
    covariances = np.tile(known.covariances[length - 1], 2)
    return _Fit(evidence, states.reshape(2, -1), covariances, squares[-1].ravel() / last, last)


# Simulation: PATHS futures drawn from the posterior, always with the same random numbers.

PATHS = 256
MIN_POINTS = 6  # a shorter history is extended backwards as flat
TURNS, TURN_POINTS = (0.4, 0.05), 10.0
"""After n points a path changes its slope with probability TURNS / (n + TURN_POINTS) per place (cf. Laplace's rule of
succession). The second value holds for a clear slope: growth persists more often than a flat history stays flat."""
CLEAR = 4.0  # standard deviations from zero that make a slope clear
TURNED_SLOPE = 0.1
"""Standard deviation of the changed slope, relative to the values: large enough for an immediate effect."""
MOST = 300.0  # larger logarithms are cut off: their values would overflow
BLOCK = 256


@dataclass(frozen=True, slots=True)
class Series:
    """The end of a history, whose points are taken as evenly spaced; the last place is the last step."""

    values: Floats  # [T]
    last: int  # the last step
    spacing: int  # steps between places
    points: int  # length of the whole history


def series(history: Sequence[tuple[int, float]]) -> Series | None:
    """The latest points of a history, without non-finite ones; None when there is none."""
    points = sorted((step, value) for step, value in dict(history[-WINDOW:]).items() if math.isfinite(value))
    if not points:
        return None
    (first, earliest), (last, _) = points[0], points[-1]
    spacing = max(1, round((last - first) / max(1, len(points) - 1)))
    values = [earliest] * (MIN_POINTS - len(points)) + [value for _, value in points]
    return Series(np.array(values), last, spacing, len(history))


@dataclass(frozen=True, slots=True)
class Paths:
    """Futures of a series; place 0 is the first after its last."""

    values: Floats  # [horizon, PATHS], divided by `unit`; logarithms on logarithmic paths
    logarithmic: NDArray[np.bool_]  # [PATHS]
    unit: float

    def first_at_least(self, limit: float) -> NDArray[np.intp]:
        """Number of places until each path reaches the limit: 1 .. horizon, horizon + 1 when it does not. [PATHS]."""
        share = limit / self.unit
        bounds = np.where(self.logarithmic, math.log(share) if share > 0 else -math.inf, share)
        over = self.values >= bounds
        return np.where(over.any(0), over.argmax(0) + 1, len(over) + 1)

    def at(self, place: int) -> Floats:
        """Values at a place; -1: at the horizon. [PATHS]."""
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
    """Draw PATHS futures of `horizon` places: trend, variance and state from the posterior, then the noises."""
    known = posterior(past.values)
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
    """Standard deviation of the noise, level and slope at the start of the paths, each [PATHS]."""
    # Chi-square over its degrees of freedom, by Wilson and Hilferty's cube; clipped where the approximation fails.
    cube = 2 / (9 * known.freedom[drawn])
    deviation = np.sqrt(known.variances[drawn] / np.maximum(1 - cube + luck[0] * np.sqrt(cube), 0.15) ** 3)
    level, slope = known.states[:, drawn]
    p_level, p_both, p_slope = known.covariances[:, drawn]
    root = np.sqrt(np.maximum(p_level, 1e-12))
    shared = p_both / root
    alone = np.sqrt(np.maximum(p_slope - shared**2, 0))
    level, slope = level + deviation * root * luck[1], slope + deviation * (shared * luck[1] + alone * luck[2])
    return deviation, level, slope


def _turns(rates: Floats, uniform: Floats, horizon: int) -> dict[int, list[int]]:
    """Paths that change their slope, by place, each at its rate per place."""
    waits = np.log(uniform) / np.log1p(-rates)
    turns: dict[int, list[int]] = {}
    for path in np.flatnonzero(waits < horizon).tolist():
        turns.setdefault(int(waits[path]), []).append(path)
    return turns


HORIZON = 200
EARLY, MEDIAN, LATE = 0.1, 0.45, 0.8
"""Shares of the paths that have reached the limit. Calibrated: with a late edge at 0.9 the interval covered 86 % of
outcomes, since an open end covers all; half of the histories had reached it when 0.45 of the paths had."""
WARNING_STEPS = 15
"""A smaller value warns too late: in nine of ten histories the limit has to be reached five or more steps later."""
UPPER = 0.9
TOGETHER = 16
"""Futures are drawn for a multiple of this many steps: the stages of a step look ahead from its beginning and from its
end, and share them."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Steps at which the limit is reached; inf: not within the horizon."""

    limit: float
    early: float  # lower edge of the 80 % interval
    median: float
    late: float  # upper edge of the 80 % interval
    reached: bool  # the last value is at or above the limit; the three steps are then the last one


def forecast(history: Sequence[tuple[int, float]], limit: float, horizon: int = HORIZON) -> Forecast:
    """The first step from now on at which a value reaches the limit (in the value's unit).

    `history` is (step, value) in order of step; `horizon` counts steps after the last one. The same history gives
    the same bits. Non-finite values are ignored. Edges lie between steps (40.5 is between the 40th and the 41st), so
    that the interval is no wider than necessary.
    """
    past = series(history)
    if past is None:
        return Forecast(limit, math.inf, math.inf, math.inf, False)
    if past.values[-1] >= limit:
        now = float(past.last)
        return Forecast(limit, now, now, now, True)
    places = max(1, horizon // past.spacing)
    first = simulate(past, places).first_at_least(limit)
    early, median, late = (past.last + past.spacing * place for place in _quantiles(first, places))
    return Forecast(limit, early, median, late, False)


def expected(history: Sequence[tuple[int, float]], ahead: int) -> tuple[float, float]:
    """The median and the 90 % quantile of the value `ahead` steps after the last one.
    Raises ValueError when the history has no finite value."""
    median, upper = outlook(history, [ahead], (0.5, UPPER))[0]
    return float(median), float(upper)


def outlook(
    history: Sequence[tuple[int, float]], ahead: Sequence[int], quantiles: Sequence[float]
) -> NDArray[np.float64]:
    """Quantiles of the value `ahead` steps after the last one (0: the last value itself), [P, Q], of the same
    futures. Quantiles are below 1. Raises ValueError when the history has no finite value."""
    past, paths = _futures(tuple(history), -(-max(1, *ahead) // TOGETHER) * TOGETHER)
    places = [-(-steps // past.spacing) for steps in ahead]
    seen = np.full(PATHS, past.values[-1])
    at_places = np.sort([paths.at(place - 1) if place else seen for place in places])
    return at_places[:, [int(quantile * PATHS) for quantile in quantiles]]


@lru_cache(maxsize=4)
def _futures(history: tuple[tuple[int, float], ...], horizon: int) -> tuple[Series, Paths]:
    """Futures shared by all callers with the same history: a place does not depend on how far paths extend."""
    past = series(history)
    if past is None:
        raise ValueError("nothing is expected of a history without a finite value")
    return past, simulate(past, -(-horizon // past.spacing))


def warns(forecast: Forecast, now: int) -> bool:
    """Whether the median reaches the limit within WARNING_STEPS steps."""
    return forecast.median <= now + WARNING_STEPS


def _quantiles(first: NDArray[np.intp], places: int) -> list[float]:
    """Places by which EARLY, MEDIAN and LATE of the paths have reached the limit, interpolated within a place."""
    counts = np.bincount(first, minlength=places + 2)[1 : places + 1]
    there = np.cumsum(counts)
    result = []
    for wanted in (share * PATHS for share in (EARLY, MEDIAN, LATE)):
        place, within = int(np.searchsorted(there, wanted)), math.inf
        if place < places:
            within = 0.5 + float(wanted - (there[place] - counts[place])) / float(counts[place])
        result.append(place + within)
    return result
