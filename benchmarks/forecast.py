"""The accuracy of the forecast of context growth, and whether its warning is in time.

history ─▶ forecast at several points in time ─▶ was the crossing within the interval?
        └▶ forecast at every step ─▶ first warning ─▶ how many steps before the crossing?
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.benchmarks.repeats import grouped
from earl.context.forecast import Forecast, expected, forecast, warns
from earl.errors import EarlError
from earl.runs.folder import listing
from earl.runs.store import Store
from earl.seeds import derive

Floats = NDArray[np.float64]
Random = np.random.Generator

STEPS, SHOWN = 400, 200
"""Steps of a history, and the step before which its limit is set, to keep a forecast's horizon within the history."""
DRAWN_ORIGINS = 4


@dataclass(frozen=True, slots=True)
class GrowthHistory:
    """One quantile of the context by step, and a limit to forecast."""

    family: str
    noise: str
    values: Floats  # [steps]
    limit: float
    origins: tuple[int, ...]
    """Last steps that a forecast may see, all before the crossing."""
    horizon: int | None = None
    """How far forecasts look; None: to the end of the recording."""

    @property
    def crossing(self) -> float:
        return first_at_least(self.values, self.limit)

    @property
    def middle(self) -> int:
        return self.origins[len(self.origins) // 2]

    def points(self, last: int) -> list[tuple[int, float]]:
        return list(enumerate(self.values[: last + 1].tolist()))


def first_at_least(values: Floats, limit: float) -> float:
    over = np.flatnonzero(values >= limit)
    return float(over[0]) if len(over) else np.inf


def _rate(random: Random) -> float:
    return float(np.exp(random.uniform(np.log(0.002), np.log(0.04))))


def _logistic(t: Floats, random: Random) -> Floats:
    gain, middle, width = random.uniform(0.3, 4), random.uniform(10, 120), random.uniform(5, 30)
    return np.asarray(1 + gain / (1 + np.exp(-(t - middle) / width)))


def _jumps(t: Floats, random: Random) -> Floats:
    times = random.integers(0, len(t), random.poisson(len(t) / random.uniform(30, 80)))
    heights = random.exponential(0.25, len(times))
    return np.asarray(1 + (heights[:, None] * (t >= times[:, None])).sum(0))


def _walk(t: Floats, random: Random) -> Floats:
    steps = random.normal(min(_rate(random), 0.015), random.uniform(0.005, 0.04), len(t))
    return np.asarray(np.exp(np.cumsum(steps)))


def _dip(t: Floats, random: Random) -> Floats:
    turn = random.integers(15, 60)
    down: Floats = 1 - 0.3 * np.sin(np.minimum(t, turn) / turn * np.pi / 2)
    return down + _rate(random) * np.maximum(t - turn, 0)


def _stairs(t: Floats, random: Random) -> Floats:
    slopes = random.choice([0, 0, 1, 2], len(t)) * _rate(random) / 1.5
    return 1 + np.cumsum(np.repeat(slopes, random.integers(10, 60, len(t)))[: len(t)])


def _wave(t: Floats, random: Random) -> Floats:
    swing: Floats = random.uniform(0.03, 0.12) * np.sin(2 * np.pi * t / random.uniform(15, 60))
    return 1 + _rate(random) * t / 2 + swing


Shape = Callable[[Floats, Random], Floats]
KNOWN: dict[str, Shape] = {
    "linear": lambda t, random: 1 + _rate(random) * t,
    "exponential": lambda t, random: np.exp(min(_rate(random), 0.03) * t),
    "logistic": _logistic,
    "saturating": lambda t, random: 1 + random.uniform(0.3, 3) * (1 - np.exp(-t / random.uniform(10, 80))),
    "flat then growth": lambda t, random: 1 + _rate(random) * np.maximum(t - random.integers(10, 80), 0),
    "growth then flat": lambda t, random: 1 + _rate(random) * np.minimum(t, random.integers(15, 100)),
    "random walk": _walk,
    "jumps": _jumps,
    "flat": lambda t, _: np.ones(len(t)),
}
NEW: dict[str, Shape] = {
    "power": lambda t, random: 1 + 4 * _rate(random) * t ** random.uniform(0.4, 0.8),
    "quadratic": lambda t, random: 1 + (_rate(random) * t / 2) ** 2 + 0.2 * _rate(random) * t,
    "dip then growth": _dip,
    "stairs": _stairs,
    "wave": _wave,
}


def _episodes(curve: Floats, random: Random) -> Floats:
    """A quantile of the lengths of 64 to 512 episodes, log-normal or gamma."""
    spread = random.choice([0.1, 0.3, 0.6])
    size = (len(curve), int(random.choice([64, 128, 256, 512])))
    log_normal = random.random() < 0.6
    sizes = np.exp(spread * random.standard_normal(size)) if log_normal else random.gamma(spread**-2, spread**2, size)
    return np.asarray(np.quantile(np.round(curve[:, None] * sizes), random.choice([0.5, 0.95, 0.99]), axis=1))


def _turns(curve: Floats, random: Random) -> Floats:
    """A quantile of whole turns of 18 tokens, over 64 or 512 episodes: it is constant, then jumps."""
    turns = 1 + random.poisson(np.maximum(curve / 18 - 1, 0)[:, None], (len(curve), int(random.choice([64, 512]))))
    return np.asarray(18 * np.quantile(turns, random.choice([0.5, 0.95, 0.99]), axis=1))


def _lingering(curve: Floats, random: Random) -> Floats:
    errors = random.uniform(0.005, 0.03) * random.standard_normal(len(curve))
    for place in range(1, len(errors)):
        errors[place] += 0.7 * errors[place - 1]
    return np.round(curve * (1 + errors))


def _gaussian(curve: Floats, random: Random) -> Floats:
    return curve * (1 + random.uniform(0.003, 0.08) * random.standard_normal(len(curve)))


def _outliers(curve: Floats, random: Random) -> Floats:
    noise: Floats = random.standard_t(2.5, len(curve))
    factors: Floats = np.maximum(1 + random.uniform(0.005, 0.03) * noise, 0.1)
    return curve * factors


KNOWN_NOISE: dict[str, Shape] = {
    "episodes": _episodes,
    "gaussian": _gaussian,
    "none": lambda t, _: np.round(t),
    "lingering": _lingering,
}
KNOWN_SHARES = (0.55, 0.25, 0.1, 0.1)
ALL_NOISE: dict[str, Shape] = {**KNOWN_NOISE, "turns": _turns, "outliers": _outliers}
ALL_SHARES = (0.4, 0.15, 0.1, 0.1, 0.15, 0.1)


def histories(per_family: int, seed: int, calibration: bool) -> Iterator[GrowthHistory]:
    """The histories of every family: the calibration set, or fresh seeds with new families and noises."""
    for family, shape in (KNOWN if calibration else KNOWN | NEW).items():
        random: Random = np.random.default_rng(derive("forecast", int(calibration), seed, family))
        for _ in range(per_family):
            yield _history(family, shape, random, calibration)


def _history(family: str, shape: Shape, random: Random, calibration: bool) -> GrowthHistory:
    noises, shares = (KNOWN_NOISE, KNOWN_SHARES) if calibration else (ALL_NOISE, ALL_SHARES)
    while True:  # until the limit is not met in the first steps
        start = random.choice([60, 150, 500, 2000, 8000]) * random.uniform(0.7, 1.4)
        noise = str(random.choice(list(noises), p=shares))
        times: Floats = np.arange(STEPS).astype(np.float64)
        curve = float(start) * shape(times, random)
        values = noises[noise](curve, random)
        limit = _limit(values, random)
        last = min(first_at_least(values, limit) - 1, STEPS - SHOWN - 1)
        if last >= 3:
            origins = np.unique(random.integers(3, int(last) + 1, DRAWN_ORIGINS))
            return GrowthHistory(family, noise, values, limit, tuple(origins.tolist()), SHOWN)


def _limit(values: Floats, random: Random) -> float:
    """Mostly between the first values and slightly above the highest; sometimes further up."""
    low, high = values[:5].max(), 1.15 * values[:SHOWN].max()
    share = random.uniform(0.15, 1)
    limit = low + (high - low) * share if random.random() < 0.8 else low * random.uniform(1.1, 3)
    return max(float(np.round(limit)), float(low) + 1)


NAMES = tuple(
    f"context/{what}/{quantile}" for what in ("window", "episode") for quantile in ("p50", "p95", "p99", "max")
)
LEVELS = (0.3, 0.6, 0.9, 1.1)
"""Limits, as shares of the way from the highest of the first five values to the highest of all, which 1.1 exceeds."""
ORIGINS = (0.25, 0.5, 0.75)
SHORTEST, SMALLEST = 20, 0.05
"""Recordings with fewer points or less relative growth are skipped."""


def recorded(root: Path) -> Iterator[tuple[str, GrowthHistory]]:
    """Every history of the recorded runs in a folder, with the run's name. Raises EarlError if it cannot be read."""
    if not root.is_dir():
        raise EarlError(f"{str(root)!r} is no folder: --runs takes the folder that runs lie in, such as runs")
    for folder in listing(root):
        if not folder.database.is_file():
            continue
        with Store(folder.database, read_only=True) as store:
            metrics = {name: points for name, points in store.metrics().items() if name in NAMES}
        for name, points in metrics.items():
            for history in _histories(name, np.array([value for _, value in points])):
                yield folder.name, history


def _histories(name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Iterator[GrowthHistory]:
    low, high = values[:5].max(), values.max()
    if len(values) < SHORTEST or high < low * (1 + SMALLEST):
        return
    for level in LEVELS:
        limit = float(low + level * (high - low))
        before = min(first_at_least(values, limit), len(values) - 1)
        origins = sorted({int(share * before) for share in ORIGINS})
        yield GrowthHistory(name, "recorded", values, limit, tuple(origin for origin in origins if origin >= 3))


IN_TIME = 5
SOON = 50
"""A warning is false if the limit is not reached within this many steps."""


@dataclass(frozen=True, slots=True)
class FirstWarning:
    history: GrowthHistory
    step: float

    @property
    def reaches(self) -> bool:
        return self.history.crossing < SHOWN


def first_warning(history: GrowthHistory) -> FirstWarning:
    steps = range(int(min(history.crossing, SHOWN, len(history.values))))
    due = (now for now in steps if warns(forecast(history.points(now), history.limit), now))
    return FirstWarning(history, next(due, math.inf))


def warnings(warned: Sequence[FirstWarning]) -> dict[str, Any]:
    """`in_time`: of the histories that meet the limit at step 10 or later, the share warned 5 or more steps ahead.

    `lead`: median steps ahead; `false`: share of the warnings whose limit was not met within 50 steps; `needless`: of
    the histories that do not meet their limit within 200 steps, the share that were warned.
    """
    reaching = [one for one in warned if one.reaches and one.history.crossing >= 2 * IN_TIME]
    others = [one for one in warned if not one.reaches]
    given = [one for one in warned if one.step < math.inf]
    return {
        "histories": len(reaching),
        "in_time": share(_in_time(one) for one in reaching),
        "lead": median_of(one.history.crossing - one.step for one in reaching if one.step < math.inf),
        "false": share(one.history.crossing > one.step + SOON for one in given),
        "needless": share(one.step < math.inf for one in others),
        "family": {
            family: share(map(_in_time, own))
            for family, own in sorted(grouped(reaching, lambda one: one.history.family).items())
        },
    }


def _in_time(one: FirstWarning) -> bool:
    return one.step + IN_TIME <= one.history.crossing


def share(outcomes: Iterable[bool]) -> float | None:
    return _of(mean, map(float, outcomes))


def median_of(values: Iterable[float]) -> float | None:
    return _of(median, values)


def _of(statistic: Callable[[Sequence[float]], float], values: Iterable[float]) -> float | None:
    kept = list(values)
    return statistic(kept) if kept else None


AHEAD = 10


@dataclass(frozen=True, slots=True)
class ForecastTrial:
    history: GrowthHistory
    origin: int
    forecast: Forecast
    truth: float
    """The step of the crossing; inf if it was beyond the horizon."""

    @property
    def early(self) -> bool:
        return self.truth < self.forecast.early

    @property
    def late(self) -> bool:
        """The crossing was after the interval, or never although the interval ends."""
        return self.truth > self.forecast.late


def run(per_family: int = 10, seed: int = 0, calibration: bool = False, runs: Path | None = None) -> dict[str, Any]:
    """Forecast simulated histories, and recorded ones if given. For the result see `earl bench forecast --help`."""
    found = None if runs is None else list(recorded(runs))
    simulated = list(histories(per_family, seed, calibration))
    made = [_made(history, origin) for history in simulated for origin in history.origins]
    result = {
        "histories": len(simulated),
        "seed": seed,
        "set": "calibration" if calibration else "validation",
        **_summary(made),
        "warning": warnings([first_warning(history) for history in simulated]),
        "expected": {"upper_90_held": share(map(_held, made))},
    }
    if found is not None:
        result["recorded"] = _recorded(found)
    return result


def _made(history: GrowthHistory, origin: int) -> ForecastTrial:
    horizon = history.horizon or len(history.values) - 1 - origin
    seen = forecast(history.points(origin), history.limit, horizon)
    truth = history.crossing
    return ForecastTrial(history, origin, seen, truth if truth <= origin + horizon else math.inf)


def _summary(made: Sequence[ForecastTrial]) -> dict[str, Any]:
    reached = [one for one in made if one.truth < math.inf]
    closed = [one for one in reached if one.forecast.late < math.inf]
    guessed = [one for one in reached if one.forecast.median < math.inf]
    return {
        "forecasts": len(made),
        "coverage": {
            "all": _coverage(made),
            "reached": _coverage(reached),
            "not_reached": _coverage(one for one in made if one.truth == math.inf),
            "one_per_history": _coverage(one for one in made if one.origin == one.history.middle),
            "new_families": _coverage(one for one in made if one.history.family not in KNOWN),
            **{key: _by(made, attrgetter(f"history.{key}")) for key in ("family", "noise")},
        },
        "misses": {"early": share(one.early for one in made), "late": share(one.late for one in made)},
        "interval": {
            "open": share(one.forecast.late == math.inf for one in made),
            "width": median_of((one.forecast.late - one.forecast.early) / (one.truth - one.origin) for one in closed),
            "error": median_of(abs(one.forecast.median - one.truth) / (one.truth - one.origin) for one in guessed),
        },
    }


def _recorded(found: Sequence[tuple[str, GrowthHistory]]) -> dict[str, Any]:
    made = [(run, _made(history, origin)) for run, history in found for origin in history.origins]
    summary = _summary([one for _, one in made])
    del summary["coverage"]["noise"], summary["coverage"]["new_families"]
    runs = sorted(grouped(made, itemgetter(0)).items())
    summary["coverage"]["run"] = {run: _coverage(one for _, one in own) for run, own in runs}
    return {
        "histories": len(found),
        **summary,
        "warning": warnings([first_warning(history) for _, history in found]),
    }


def _held(one: ForecastTrial) -> bool:
    """Whether the value AHEAD steps later is at most the upper 90 %."""
    upper = expected(one.history.points(one.origin), AHEAD)[1]
    return bool(one.history.values[one.origin + AHEAD] <= upper)


def _by(made: Iterable[ForecastTrial], key: Callable[[ForecastTrial], str]) -> dict[str, float | None]:
    return {name: _coverage(own) for name, own in grouped(made, key).items()}


def _coverage(made: Iterable[ForecastTrial]) -> float | None:
    return share(not one.early and not one.late for one in made)
