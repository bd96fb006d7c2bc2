"""Numbers about context growth for the live view: quantiles, limit, forecast, authors; also the run as JSON."""

import json
import math
from dataclasses import asdict
from datetime import datetime
from typing import Any

from earl.cli.live.now import Points, RunNow, evaluation, pace, phase, seconds_left, stage_table
from earl.cli.match_tables import as_objects
from earl.trajectory import Author

QUANTILES = ("p50", "p95", "p99", "max")
AUTHORS = tuple(author.name.lower() for author in Author)
CAUSES = {"prompt": "no room for the next prompt", "reply": "reply hit the limit", "turn": "reply hit max_turn_tokens"}
_OLD_CAUSES = {"stop/context_limit": "context limit", "stop/truncated_turn": "reply hit max_turn_tokens"}


ENDS = ("early", "median", "late")
Forecast = tuple[float, float, float]
"""Steps at which a quantile of the context reaches the limit: its median between `ENDS` that hold 80 %; inf: never."""


def level(run: RunNow) -> str:
    """The unit that the limit applies to: "window", or "episode" in runs of older versions without window metrics."""
    return "window" if any(run.series(f"context/window/{name}") for name in QUANTILES) else "episode"


def bands(run: RunNow) -> dict[str, Points]:
    found = {name: run.series(f"context/{level(run)}/{name}") for name in QUANTILES}
    return {name: points for name, points in found.items() if points}


def limits(run: RunNow) -> Points:
    """The limit by step, in tokens; the recipe's if none was recorded."""
    recorded = run.series("context/limit")
    limit = run.config.context.limit if run.config else None
    if recorded or not isinstance(limit, int):
        return recorded
    measured = next(iter(bands(run).values()), [])
    return [(step, float(limit)) for step, _ in measured]


def forecasts(run: RunNow) -> dict[str, Forecast]:
    """By quantile, where one was recorded."""
    found = {name: tuple(run.last(f"forecast/{name}/{end}") for end in ENDS) for name in QUANTILES[:3]}
    return {name: (a, b, c) for name, (a, b, c) in found.items() if not any(map(math.isnan, (a, b, c)))}


def authors(run: RunNow) -> dict[str, Points]:
    """Tokens of each step by author; in runs of older versions only "policy" and "others"."""
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
    named = {text: run.last(f"truncation/{name}") for name, text in CAUSES.items()}
    if all(map(math.isnan, named.values())):
        named = {text: run.last(name) for name, text in _OLD_CAUSES.items()}
    return {text: share for text, share in named.items() if share > 0}


LAST_EVENTS = 20


def as_object(run: RunNow) -> dict[str, Any]:
    """The run as JSON. NaN, missing numbers and forecasts beyond the horizon are null."""
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
        "metrics": {
            name: {"step": points[-1][0], "value": points[-1][1]}
            for name, points in sorted(run.numbers.metrics.items())
        },
        "events": [asdict(event) | {"time": _moment(event.time)} for event in run.numbers.events[-LAST_EVENTS:]],
        "problems": list(run.problems),
    }
    finite: dict[str, Any] = json.loads(json.dumps(value), parse_constant=lambda _: None)
    return finite


def _context(run: RunNow) -> dict[str, Any]:
    measured = level(run)
    limit = limits(run)
    return {
        "level": measured,
        **{name: run.last(f"context/{measured}/{name}") for name in ("mean", "p50", "p95", "p99", "max")},
        "limit": limit[-1][1] if limit else None,
        "forecast": {name: dict(zip(ENDS, own, strict=True)) for name, own in forecasts(run).items()},
        "truncated": truncation(run),
    }


def _moment(time: float) -> str:
    return datetime.fromtimestamp(time).astimezone().isoformat(timespec="seconds")
