"""Whether the forecast's warnings come in time, and how many of them are needless."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from earl.benchmarks.growth import SHOWN, History
from earl.context.forecast import forecast, warns

IN_TIME = 5
"""Steps by which a warning has to be ahead."""
SOON = 50
"""A warning is false when the limit is not reached within so many steps."""


@dataclass(frozen=True, slots=True)
class Warned:
    """The first warning of a history and what came."""

    history: History
    step: float
    """inf when there was none."""

    @property
    def reaches(self) -> bool:
        """Whether the limit is met in the part that was watched."""
        return self.history.crossing < SHOWN


def first_warning(history: History) -> Warned:
    """Forecast step by step until a warning is due or the limit is met."""
    end = int(min(history.crossing, SHOWN, len(history.values)))
    for now in range(end):
        if warns(forecast(history.points(now), history.limit), now):
            return Warned(history, now)
    return Warned(history, math.inf)


def warnings(warned: Sequence[Warned]) -> dict[str, Any]:
    """`in_time`: of the histories that meet the limit, at step 10 or later, the share warned 5 or more steps ahead.

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
            family: share(_in_time(one) for one in reaching if one.history.family == family)
            for family in sorted({one.history.family for one in reaching})
        },
    }


def _in_time(one: Warned) -> bool:
    return one.step + IN_TIME <= one.history.crossing


def share(outcomes: Iterable[bool]) -> float | None:
    """Of the outcomes that are true; None when there is no outcome."""
    values = list(map(float, outcomes))
    return mean(values) if values else None


def median_of(values: Iterable[float]) -> float | None:
    """The median; None when there is no value."""
    kept = list(values)
    return median(kept) if kept else None
