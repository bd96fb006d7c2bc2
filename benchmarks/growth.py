"""Simulated histories of growing contexts for the forecast benchmark: a shape, noise, and a limit.

The forecast's constants were chosen on KNOWN shapes with KNOWN_NOISE (and other seeds), not on NEW ones.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from earl.seeds import derive

Floats = NDArray[np.float64]
Random = np.random.Generator

STEPS, SHOWN = 400, 200
"""Steps of a history, and the step before which its limit is set, to keep a forecast's horizon within the history."""
ORIGINS = 4


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
            origins = np.unique(random.integers(3, int(last) + 1, ORIGINS))
            return GrowthHistory(family, noise, values, limit, tuple(origins.tolist()), SHOWN)


def _limit(values: Floats, random: Random) -> float:
    """Mostly between the first values and slightly above the highest; sometimes further up."""
    low, high = values[:5].max(), 1.15 * values[:SHOWN].max()
    share = random.uniform(0.15, 1)
    limit = low + (high - low) * share if random.random() < 0.8 else low * random.uniform(1.1, 3)
    return max(float(np.round(limit)), float(low) + 1)
