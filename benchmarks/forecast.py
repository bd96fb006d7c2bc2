"""How often the forecast of context growth is right, and whether its warning comes in time.

history ─▶ forecast at several points in time ─▶ was the crossing within the interval?
        └▶ forecast at every step ─▶ first warning ─▶ how many steps ahead of the crossing?
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from earl.benchmarks.growth import KNOWN, History, histories
from earl.benchmarks.recorded import recorded
from earl.benchmarks.warned import first_warning, median_of, share, warnings
from earl.context.forecast import Forecast, expected, forecast

AHEAD = 10


@dataclass(frozen=True, slots=True)
class Made:
    """A forecast and what came."""

    history: History
    origin: int
    forecast: Forecast
    truth: float
    """The step of the crossing; inf when it was not within the horizon."""

    @property
    def early(self) -> bool:
        """It was reached before the interval."""
        return self.truth < self.forecast.early

    @property
    def late(self) -> bool:
        """It was reached after the interval, or never although the interval ends."""
        return self.truth > self.forecast.late


def run(per_family: int = 10, seed: int = 0, calibration: bool = False, runs: Path | None = None) -> dict[str, Any]:
    """Forecast simulated histories, and recorded ones where a folder of runs is given.

    Returns:
        `coverage`: how often the crossing was in the 80 % interval, over all, over those that were reached within the
        horizon of 200 steps and over those that were not (an open interval covers these), with one forecast per
        history only, and by family and noise;
        `misses`: before and after the interval; `interval`: share without an end, median width and error of the
        median, both relative to the steps that remained; `warning`: see `warnings`; `expected`: how often the value
        10 steps ahead was at most the upper 90 %. `recorded`: the same of recorded runs, when asked for.
    """
    found = None if runs is None else list(recorded(runs))
    simulated = list(histories(per_family, seed, calibration))
    made = [_made(history, origin) for history in simulated for origin in history.origins]
    result = {
        "histories": len(simulated),
        "seed": seed,
        "set": "calibration" if calibration else "validation",
        **_summary(made),
        "warning": warnings([first_warning(history) for history in simulated]),
        "expected": {"upper_90_held": _upper_held(made)},
    }
    if found is not None:
        result["recorded"] = _recorded(found)
    return result


def _made(history: History, origin: int) -> Made:
    horizon = history.horizon or len(history.values) - 1 - origin
    seen = forecast(history.points(origin), history.limit, horizon)
    truth = history.crossing
    return Made(history, origin, seen, truth if truth <= origin + horizon else math.inf)


def _summary(made: Sequence[Made]) -> dict[str, Any]:
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
            "family": _by(made, lambda one: one.history.family),
            "noise": _by(made, lambda one: one.history.noise),
        },
        "misses": {"early": share(one.early for one in made), "late": share(one.late for one in made)},
        "interval": {
            "open": share(one.forecast.late == math.inf for one in made),
            "width": median_of((one.forecast.late - one.forecast.early) / (one.truth - one.origin) for one in closed),
            "error": median_of(abs(one.forecast.median - one.truth) / (one.truth - one.origin) for one in guessed),
        },
    }


def _upper_held(made: Sequence[Made]) -> float | None:
    """How often the value was no higher than the forecast said with 90 %."""
    return share(
        one.history.values[one.origin + AHEAD] <= expected(one.history.points(one.origin), AHEAD)[1] for one in made
    )


def _recorded(found: Sequence[tuple[str, History]]) -> dict[str, Any]:
    made = [(run, _made(history, origin)) for run, history in found for origin in history.origins]
    summary = _summary([one for _, one in made])
    del summary["coverage"]["noise"], summary["coverage"]["new_families"]
    summary["coverage"]["run"] = {
        run: _coverage(one for own, one in made if own == run) for run in sorted({run for run, _ in made})
    }
    return {
        "histories": len(found),
        **summary,
        "warning": warnings([first_warning(history) for _, history in found]),
    }


def _by(made: Iterable[Made], key: Callable[[Made], str]) -> dict[str, float | None]:
    groups: dict[str, list[Made]] = {}
    for one in made:
        groups.setdefault(key(one), []).append(one)
    return {name: _coverage(own) for name, own in groups.items()}


def _coverage(made: Iterable[Made]) -> float | None:
    return share(not one.early and not one.late for one in made)
