"""When will the context reach its limit: a median and an 80 % interval from the history of one quantile.

history ─▶ series (the last 64 points) ─▶ posterior over trends ─▶ simulated paths ─▶ the step at which they reach it
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from earl.context.paths import PATHS, Paths, Series, series, simulate

HORIZON = 200
EARLY, MEDIAN, LATE = 0.1, 0.45, 0.8
"""Shares of the paths that are there by then. Calibrated: with a late edge at 0.9 the interval covered 86 % of what
came, since an open end covers all; and half of the histories were there by the time that 0.45 of the paths are."""
WARNING_STEPS = 15
"""Fewer warn too late: the limit has to be reached five steps after the warning or later in nine of ten histories."""
UPPER = 0.9
TOGETHER = 16
"""Futures are drawn for a multiple of so many steps: those of a step's stages, which look ahead from its beginning and
from its end, are the same ones."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The steps at which the limit is reached; inf: not within the horizon.

    Example:
        >>> round(forecast([(step, 100.0 + step) for step in range(50)], limit=190.0).median)
        90
    """

    limit: float
    early: float
    """Lower edge of the 80 % interval."""
    median: float
    late: float
    """Upper edge of the 80 % interval."""
    reached: bool
    """The last value is at or above the limit; the three steps are then the last one."""


def forecast(history: Sequence[tuple[int, float]], limit: float, horizon: int = HORIZON) -> Forecast:
    """The step at which a value reaches the limit for the first time from now on.

    The same history gives the same forecast to the bit. Values that are not finite are left out. Edges lie between
    steps (40.5 is between the 40th and the 41st), so that the interval is no wider than it need be.

    Args:
        history: (step, value) in order of step, such as the p99 window length in tokens.
        limit: in the value's unit.
        horizon: in steps after the last one.
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
    """The median and the upper 90 % of the value `ahead` steps after the last one.

    Raises ValueError when the history has no finite value.
    """
    past = series(history)
    if past is None:
        raise ValueError("nothing is expected of a history without a finite value")
    ends = np.sort(simulate(past, max(1, -(-ahead // past.spacing))).at(-1))
    return float(ends[PATHS // 2]), float(ends[int(UPPER * PATHS)])


def outlook(
    history: Sequence[tuple[int, float]], ahead: Sequence[int], quantiles: Sequence[float]
) -> NDArray[np.float64]:
    """What is expected at several steps after the last one, all drawn from the same futures. [P, Q]

    Args:
        ahead: in steps after the last one; 0 is the last value itself. [P]
        quantiles: of the values then, each below 1. [Q]

    Raises ValueError when the history has no finite value.
    """
    past, paths = _futures(tuple(history), -(-max(1, *ahead) // TOGETHER) * TOGETHER)
    places = [-(-steps // past.spacing) for steps in ahead]
    seen = np.full(PATHS, past.values[-1])
    at_places = np.sort([paths.at(place - 1) if place else seen for place in places])
    return at_places[:, [int(quantile * PATHS) for quantile in quantiles]]


@lru_cache(maxsize=4)
def _futures(history: tuple[tuple[int, float], ...], horizon: int) -> tuple[Series, Paths]:
    """What is drawn once for all who ask about the same history: a place does not depend on how far paths go on."""
    past = series(history)
    if past is None:
        raise ValueError("nothing is expected of a history without a finite value")
    return past, simulate(past, -(-horizon // past.spacing))


def warns(forecast: Forecast, now: int) -> bool:
    """Whether a warning is due: the limit is as likely as not reached within WARNING_STEPS steps."""
    return forecast.median <= now + WARNING_STEPS


def _quantiles(first: NDArray[np.intp], places: int) -> list[float]:
    """The places by which EARLY, MEDIAN and LATE of the paths are there; a place's are spread to both its sides."""
    counts = np.bincount(first, minlength=places + 2)[1 : places + 1]
    there = np.cumsum(counts)
    result = []
    for share in (EARLY, MEDIAN, LATE):
        wanted = share * PATHS
        place = int(np.searchsorted(there, wanted))
        if place == places:
            result.append(math.inf)
            continue
        result.append(place + 0.5 + float(wanted - (there[place] - counts[place])) / float(counts[place]))
    return result
