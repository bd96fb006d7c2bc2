"""Where a run stands at this moment, and what follows from its numbers. Pure functions."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean

from earl.config import Config
from earl.matches import MatchResult, mean_over_seats
from earl.runs.store import Numbers
from earl.runs.summary import FINAL, last_evaluation
from earl.runs.tables import Event, RecordedMatch

RECENT = 30
"""Steps over which the pace is taken."""
WARNINGS = ("forecast", "limit")
"""Kinds of the events that tell of the context limit."""
Points = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class RunNow:
    """A run as the view sees it.

    Example:
        RunNow("tictactoe-1", config, numbers, "running", changed=1760000000.0, time=1760000002.5, problems=())
    """

    name: str
    config: Config | None
    """None when the recipe cannot be read."""
    numbers: Numbers
    state: str
    """"finished", "running" or "stopped"."""
    changed: float
    """When something was last written, in seconds since the epoch."""
    time: float
    """When this was read."""
    problems: tuple[str, ...] = ()
    """What could not be read, one sentence each."""

    @property
    def step(self) -> int:
        """The last step that is written down."""
        return self.numbers.last_step or 0

    @property
    def steps(self) -> int | None:
        """Steps of the whole run."""
        return self.config.total_steps if self.config else None

    def series(self, name: str) -> Points:
        """A metric by step; empty when there is none."""
        return self.numbers.metrics.get(name, [])

    def last(self, name: str) -> float:
        """A metric of the last step that has it; NaN when none has."""
        points = self.series(name)
        return points[-1][1] if points else math.nan


def phase(run: RunNow) -> str:
    """What the run does, in a word or two."""
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
    """Wall time of each of the last `most` steps, all stages."""
    totals: dict[int, float] = {}
    for points in run.numbers.timings.values():
        for step, seconds in tail(points, run.step - most):
            if math.isfinite(seconds):
                totals[step] = totals.get(step, 0.0) + seconds
    return sorted(totals.items())


def tail(points: Points, after: int) -> Points:
    """The points of later steps."""
    return points[bisect_right(points, after, key=itemgetter(0)) :]


def pace(run: RunNow) -> float:
    """Seconds per step lately, evaluations included; NaN before the first step."""
    recent = [seconds for step, seconds in step_seconds(run) if step > 0]
    return fmean(recent) if recent else math.nan


def seconds_left(run: RunNow) -> float:
    """Until the last step, at the pace of late; NaN when unknown or when nothing runs."""
    if run.state != "running" or run.steps is None:
        return math.nan
    return max(0, run.steps - run.step) * pace(run)


def silence(run: RunNow) -> float:
    """Seconds without a word from a run that should be at work, 0 where that is no longer than a few of its steps."""
    quiet = run.time - run.changed
    longest = max([seconds for _, seconds in step_seconds(run)], default=0.0)
    return quiet if run.state == "running" and quiet > max(120.0, 5 * longest) else 0.0


def stage_table(run: RunNow) -> list[tuple[str, float, float]]:
    """(stage, seconds when last done, seconds per step of late); the longest first.

    A stage that not every step has, such as an evaluation, is spread over all of them.
    """
    count = len(step_seconds(run))
    table = []
    for stage, points in run.numbers.timings.items():
        late = sum(value for _, value in tail(points, run.step - RECENT) if math.isfinite(value))
        table.append((stage, points[-1][1], late / max(1, count)))
    return sorted(table, key=lambda row: -row[2])


def evaluation(run: RunNow) -> tuple[int, str, list[MatchResult]]:
    """Step, phase and results of the last evaluation; no results before the first."""
    latest = last_evaluation(run.numbers.matches)
    return (latest[0].step, latest[0].phase, [match.result for match in latest]) if latest else (0, "", [])


def score_curves(matches: Sequence[RecordedMatch]) -> dict[str, list[tuple[float, float]]]:
    """The score against each opponent by step: wins and half the draws, the mean over the seats.

    The opponent is "" in tool tasks, where the score is the share that was solved.
    """
    cells: dict[str, dict[int, list[MatchResult]]] = {}
    for match in matches:
        if match.phase != FINAL:
            cells.setdefault(match.result.opponent, {}).setdefault(match.step, []).append(match.result)
    return {
        opponent: [(step, _score(_one_per_seat(results))) for step, results in sorted(by_step.items())]
        for opponent, by_step in sorted(cells.items())
    }


def _one_per_seat(results: Sequence[MatchResult]) -> list[MatchResult]:
    """Where a match was both enumerated and sampled, the enumerated one."""
    return list({result.seat: result for result in sorted(results, key=lambda result: result.exact)}.values())


def _score(seats: Sequence[MatchResult]) -> float:
    mean = mean_over_seats(seats)
    return mean.win + mean.draw / 2


def warnings(run: RunNow) -> list[Event]:
    """The events about the context limit, the latest first."""
    return [event for event in reversed(run.numbers.events) if event.kind in WARNINGS]
