"""What the numbers say about the growth of contexts: level, quantiles, limit, forecast, authors. Pure functions."""

import math
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from earl.cli.live.now import Points, RunNow, evaluation, pace, phase, seconds_left, stage_table
from earl.cli.match_tables import as_objects
from earl.trajectory import Author

QUANTILES = ("p50", "p95", "p99", "max")
AUTHORS = tuple(author.name.lower() for author in Author)
CAUSES = {"prompt": "no room for the next prompt", "reply": "reply hit the limit", "turn": "reply hit max_turn_tokens"}
_OLD_CAUSES = {"stop/context_limit": "context limit", "stop/truncated_turn": "reply hit max_turn_tokens"}


@dataclass(frozen=True, slots=True)
class ShownForecast:
    """The step at which a quantile of the context reaches the limit: the median and an 80 % interval.

    Infinite where that lies beyond the forecast's horizon.
    """

    quantile: str
    early: float
    median: float
    late: float


def level(run: RunNow) -> str:
    """What the limit applies to: "window"; "episode" for a run of an earl that did not measure windows."""
    return "window" if any(run.series(f"context/window/{name}") for name in QUANTILES) else "episode"


def bands(run: RunNow) -> dict[str, Points]:
    """The recorded quantiles by step, shortest first."""
    found = {name: run.series(f"context/{level(run)}/{name}") for name in QUANTILES}
    return {name: points for name, points in found.items() if points}


def limits(run: RunNow) -> Points:
    """The limit by step, in tokens; one that was not recorded is the recipe's."""
    recorded = run.series("context/limit")
    limit = run.config.context.limit if run.config else None
    if recorded or not isinstance(limit, int):
        return recorded
    measured = next(iter(bands(run).values()), [])
    return [(step, float(limit)) for step, _ in measured]


def forecasts(run: RunNow) -> list[ShownForecast]:
    """The last step's forecasts, of those quantiles that have one."""
    found = []
    for quantile in QUANTILES[:3]:
        numbers = [run.last(f"forecast/{quantile}/{name}") for name in ("early", "median", "late")]
        if not any(map(math.isnan, numbers)):
            found.append(ShownForecast(quantile, *numbers))
    return found


def authors(run: RunNow) -> dict[str, Points]:
    """Tokens of a step by who wrote them; for a run of an older earl only by "policy" and "others"."""
    found = {name: run.series(f"tokens/{name}") for name in AUTHORS}
    found = {name: points for name, points in found.items() if any(value for _, value in points)}
    if found:
        return found
    sampled = dict(run.series("tokens/sampled"))
    if not sampled:
        return {}
    others = [(step, value - sampled.get(step, 0.0)) for step, value in run.series("tokens")]
    return {"policy": list(sampled.items()), "others": others}


def truncation(run: RunNow) -> dict[str, float]:
    """Share of the last step's episodes that were cut off, by cause; only causes that were met."""
    named = {text: run.last(f"truncation/{name}") for name, text in CAUSES.items()}
    if all(map(math.isnan, named.values())):
        named = {text: run.last(name) for name, text in _OLD_CAUSES.items()}
    return {text: share for text, share in named.items() if share > 0}


# A run's present state in JSON.

LAST_EVENTS = 20


def as_object(run: RunNow) -> dict[str, Any]:
    """The run for programs. What is not a number (yet), and a forecast beyond its horizon, is null."""
    step, at, results = evaluation(run)
    value = {
        "run": run.name,
        "env": run.config.env.name if run.config else None,
        "state": run.state,
        "phase": phase(run),
        "step": run.step,
        "steps": run.steps,
        "changed": _moment(run.changed),
        "seconds_per_step": pace(run),
        "seconds_left": seconds_left(run),
        "evaluation": {"step": step, "phase": at, "results": as_objects(results)} if results else None,
        "context": _context(run),
        "tokens": {name: points[-1][1] for name, points in authors(run).items()},
        "stages": {name: {"last_seconds": last, "seconds_per_step": mean} for name, last, mean in stage_table(run)},
        "metrics": {name: {"step": points[-1][0], "value": points[-1][1]} for name, points in _metrics(run)},
        "events": [asdict(event) | {"time": _moment(event.time)} for event in run.numbers.events[-LAST_EVENTS:]],
        "problems": list(run.problems),
    }
    finite: dict[str, Any] = _finite(value)
    return finite


def _metrics(run: RunNow) -> list[tuple[str, list[tuple[int, float]]]]:
    return sorted(run.numbers.metrics.items())


def _context(run: RunNow) -> dict[str, Any]:
    """The last step's quantiles in tokens, the limit, and when it will be reached."""
    measured = level(run)
    limit = limits(run)
    return {
        "level": measured,
        **{name: run.last(f"context/{measured}/{name}") for name in ("mean", "p50", "p95", "p99", "max")},
        "limit": limit[-1][1] if limit else None,
        "forecast": {
            forecast.quantile: {"early": forecast.early, "median": forecast.median, "late": forecast.late}
            for forecast in forecasts(run)
        },
        "truncated": truncation(run),
    }


def _moment(time: float) -> str:
    return datetime.fromtimestamp(time).astimezone().isoformat(timespec="seconds")


def _finite(value: Any) -> Any:
    """The value with null for every number that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
