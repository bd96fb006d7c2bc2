"""The current state of a run for the live view, and what is derived from its numbers. Pure functions."""

import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from statistics import fmean

from earl.config import Config
from earl.errors import EarlError
from earl.matches import MatchResult, mean_over_seats
from earl.recipe import build
from earl.runs import store
from earl.runs.folder import RunFolder
from earl.runs.storage import storage
from earl.runs.store import Numbers, RecordedMatch, files_of
from earl.runs.summary import FINAL, changed, last_evaluation, state_of

RECENT = 30
WARNINGS = ("forecast", "limit")
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


MOST = 1e300
"""A measured value from here on counts as NaN: a sum or difference of such values may be infinite."""
Fingerprint = tuple[tuple[int, int, int] | None, ...]


class Reader:
    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._seen: Fingerprint = ()
        self._numbers = self._shown = Numbers()
        self._problem: str | None = None
        self._config: Config | None = None
        self._recipe_problem: str | None = None
        try:
            self._config = build(folder.recipe())
        except EarlError as error:
            self._recipe_problem = str(error)

    def read(self) -> RunNow:
        """Read the run's state. Errors become `problems`, old numbers stay. Raises EarlError if the folder is gone."""
        if not self._folder.config.is_file():
            raise EarlError(
                f"run {self._folder.name!r} is gone from {self._folder.path}: a run that fails before its first "
                "checkpoint is removed; its own terminal says why"
            )
        with storage(self._folder.path):
            self._refresh()
            return RunNow(
                name=self._folder.path.resolve().name,
                config=self._config,
                numbers=self._shown,
                state=state_of(self._folder, self._shown.matches),
                changed=changed(self._folder),
                time=time.time(),
                problems=tuple(filter(None, (self._recipe_problem, self._problem))),
            )

    def _refresh(self) -> None:
        fingerprint = tuple(map(_fingerprint, files_of(self._folder.database)))
        if fingerprint == self._seen:
            return
        if fingerprint[0] is None:
            self._numbers, self._problem = Numbers(), None
        else:
            try:
                self._numbers, self._problem = store.read_numbers(self._folder.database, self._numbers), None
            except EarlError as error:
                self._problem = str(error)
                return  # the next attempt may succeed
        metrics, timings = _bounded(self._numbers.metrics), _bounded(self._numbers.timings)
        self._shown = replace(self._numbers, metrics=metrics, timings=timings)
        self._seen = fingerprint


def _bounded(series: dict[str, Points]) -> dict[str, Points]:
    return {
        name: [(step, math.nan if MOST <= abs(value) < math.inf else value) for step, value in points]
        for name, points in series.items()
    }


def _fingerprint(path: Path) -> tuple[int, int, int] | None:
    """Changes when a file is written. None if missing or empty: readers of a database leave an empty log beside it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size) if found.st_size else None
