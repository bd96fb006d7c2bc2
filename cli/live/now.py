"""The current state of a run for the live view, and what is derived from its numbers. Pure functions."""

import json
import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from earl.cli.match_tables import as_objects
from earl.config import Config
from earl.errors import EarlError
from earl.matches import MatchResult, mean_over_seats
from earl.recipe import build
from earl.runs import store
from earl.runs.folder import RunFolder
from earl.runs.storage import storage
from earl.runs.store import Numbers, RecordedMatch
from earl.runs.summary import FINAL, changed, last_evaluation, state_of
from earl.trajectory import Author

RECENT = 30
WARNINGS = ("forecast", "limit", "guard")
Points = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class RunNow:
    name: str
    config: Config | None
    """None if the recipe cannot be read."""
    numbers: Numbers
    state: str
    changed: float
    """Time of the last write, in seconds since the epoch."""
    time: float
    problems: tuple[str, ...] = ()
    """Read errors, one sentence each."""

    @property
    def step(self) -> int:
        return self.numbers.last_step or 0

    @property
    def steps(self) -> int | None:
        return self.config.total_steps if self.config else None

    def series(self, name: str) -> Points:
        return self.numbers.metrics.get(name, [])

    def last(self, name: str) -> float:
        points = self.series(name)
        return points[-1][1] if points else math.nan


def phase(run: RunNow) -> str:
    if run.state == "stopped":
        return "not started" if run.numbers.last_step is None and not run.numbers.events else "stopped"
    if run.state == "finished":
        return "finished"
    if run.numbers.last_step is None:
        return "starting"
    if run.steps is not None and run.step >= run.steps:
        return "last evaluation"
    return "warm start" if run.config and run.step < run.config.warm_start.steps else "training"


def step_seconds(run: RunNow, most: int = RECENT) -> Points:
    totals: dict[int, float] = {}
    for points in run.numbers.timings.values():
        for step, seconds in tail(points, run.step - most):
            if math.isfinite(seconds):
                totals[step] = totals.get(step, 0.0) + seconds
    return sorted(totals.items())


def tail(points: Points, after: int) -> Points:
    return points[bisect_right(points, after, key=itemgetter(0)) :]


def pace(run: RunNow) -> float:
    """Recent seconds per step, evaluations included; NaN before the first step."""
    recent = [seconds for step, seconds in step_seconds(run) if step > 0]
    return fmean(recent) if recent else math.nan


def seconds_left(run: RunNow) -> float:
    """Seconds until the last step at the recent pace; NaN if unknown or not running."""
    if run.state != "running" or run.steps is None:
        return math.nan
    return max(0, run.steps - run.step) * pace(run)


def silence(run: RunNow) -> float:
    """Seconds without a write by a running run; 0 up to 120 s or five times its longest recent step."""
    quiet = run.time - run.changed
    longest = max([seconds for _, seconds in step_seconds(run)], default=0.0)
    return quiet if run.state == "running" and quiet > max(120.0, 5 * longest) else 0.0


def stage_table(run: RunNow) -> list[tuple[str, float, float]]:
    """(stage, seconds of its last run, recent mean over all steps), the longest first."""
    count = len(step_seconds(run))
    table = []
    for stage, points in run.numbers.timings.items():
        late = sum(value for _, value in tail(points, run.step - RECENT) if math.isfinite(value))
        table.append((stage, points[-1][1], late / max(1, count)))
    return sorted(table, key=lambda row: -row[2])


def evaluation(run: RunNow) -> tuple[int, str, list[MatchResult]]:
    latest = last_evaluation(run.numbers.matches)
    return (latest[0].step, latest[0].phase, [match.result for match in latest]) if latest else (0, "", [])


def score_curves(matches: Sequence[RecordedMatch]) -> dict[str, list[tuple[float, float]]]:
    """The score against each opponent by step: wins + half the draws, averaged over seats. Tasks have opponent ""."""
    cells: dict[str, dict[int, list[MatchResult]]] = {}
    for match in matches:
        if match.phase != FINAL:
            cells.setdefault(match.result.opponent, {}).setdefault(match.step, []).append(match.result)
    return {
        opponent: [(step, _score(results)) for step, results in sorted(by_step.items())]
        for opponent, by_step in sorted(cells.items())
    }


def _score(results: Sequence[MatchResult]) -> float:
    """One result per seat counts; an exact one takes precedence over a sampled one."""
    seats = {result.seat: result for result in sorted(results, key=lambda result: result.exact)}
    mean = mean_over_seats([*seats.values()])
    return mean.win + mean.draw / 2


# Contexts: quantiles, limit, forecast, authors.

QUANTILES = ("p50", "p95", "p99", "max")
CAUSES = {"prompt": "no room for the next prompt", "reply": "reply hit the limit", "turn": "reply hit max_turn_tokens"}
ENDS = ("early", "median", "late")
Forecast = tuple[float, float, float]
"""Steps at which a quantile of the context reaches the limit: its median between `ENDS` that hold 80 %; inf: never."""


def quantiles(run: RunNow) -> dict[str, Points]:
    """Of the longest context that a reply of an episode saw; those that were recorded."""
    found = {name: run.series(f"context/window/{name}") for name in QUANTILES}
    return {name: points for name, points in found.items() if points}


def forecasts(run: RunNow) -> dict[str, Forecast]:
    """By quantile, where one was recorded."""
    found = {name: tuple(run.last(f"forecast/{name}/{end}") for end in ENDS) for name in QUANTILES[:3]}
    return {name: (a, b, c) for name, (a, b, c) in found.items() if not any(map(math.isnan, (a, b, c)))}


def authors(run: RunNow) -> dict[str, Points]:
    """Tokens of each step by author."""
    found = {author.name.lower(): run.series(f"tokens/{author.name.lower()}") for author in Author}
    return {name: points for name, points in found.items() if any(value for _, value in points)}


def truncation(run: RunNow) -> dict[str, float]:
    named = {text: run.last(f"truncation/{name}") for name, text in CAUSES.items()}
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
    return {
        "level": "window",
        **{name: run.last(f"context/window/{name}") for name in ("mean", *QUANTILES)},
        "limit": run.last("context/limit"),
        "forecast": {name: dict(zip(ENDS, own, strict=True)) for name, own in forecasts(run).items()},
        "truncated": truncation(run),
    }


def _moment(time: float) -> str:
    return datetime.fromtimestamp(time).astimezone().isoformat(timespec="seconds")


MOST = 1e300
"""A measured value from here on counts as NaN: a sum or difference of such values may be infinite."""


def read_run(folder: RunFolder, before: RunNow | None = None) -> RunNow:
    """The state of a run. What cannot be read becomes one of its `problems`; the numbers of `before`, an earlier
    result, then stay. Raises EarlError if the folder is gone."""
    if not folder.config.is_file():
        raise EarlError(
            f"run {folder.name!r} is gone from {folder.path}: a run that fails before its first checkpoint is removed; "
            "its own terminal says why"
        )
    with storage(folder.path):
        last_change, now = changed(folder), time.time()
        if before and before.changed == last_change and not before.problems:
            return replace(before, state=state_of(folder, before.numbers.matches), time=now)
        config, numbers, problems = None, before.numbers if before else Numbers(), []
        try:
            config = build(folder.recipe())
        except EarlError as error:
            problems.append(str(error))
        try:
            numbers = _numbers(folder.database, numbers)
        except EarlError as error:
            problems.append(str(error))
        state = state_of(folder, numbers.matches)
    return RunNow(folder.path.resolve().name, config, numbers, state, last_change, now, tuple(problems))


def _numbers(database: Path, before: Numbers) -> Numbers:
    if not database.is_file() or not database.stat().st_size:  # readers of a missing database leave an empty log
        return Numbers()
    found = store.read_numbers(database, before)
    return replace(found, metrics=_bounded(found.metrics), timings=_bounded(found.timings))


def _bounded(series: dict[str, Points]) -> dict[str, Points]:
    return {
        name: [(step, math.nan if MOST <= abs(value) < math.inf else value) for step, value in points]
        for name, points in series.items()
    }
