"""A run's present state in JSON."""

import math
from dataclasses import asdict
from datetime import datetime
from typing import Any

from earl.cli.live.context import authors, forecasts, level, limits, truncation
from earl.cli.live.now import RunNow, evaluation, pace, phase, seconds_left, stage_table
from earl.cli.tables import as_objects

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
