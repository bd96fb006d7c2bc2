"""Every layout of a recipe that may be worth it, tried at several contexts and loads: on processes of its own.

expectation ─▶ point worth trying? ─▶ switch ─▶ trials ─▶ timing ─▶ kept ─▶ expectation ─▶ next point
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from earl.config import Config
from earl.errors import EarlError, OutOfMemory
from earl.outline import Played
from earl.parallel.choice import Choice, Stage
from earl.parallel.profile.timings import Point, Skipped, Timing, spread_of
from earl.placement.peers import Lost
from earl.placement.place import Place, on_cluster
from earl.placement.trial import Trials
from earl.profiling.kept import Profile, write
from earl.profiling.points import Grid, Points
from earl.rollout.invented import invention_of
from earl.rollout.pack import trajectories_of
from earl.stopping import StopRequest

Told = Callable[[Timing | Skipped], None]


@dataclass(slots=True)
class Outcome:
    """What came of a campaign."""

    profile: Profile
    skipped: list[Skipped] = field(default_factory=list)
    measured: int = 0
    """Points that were measured now; the others were known."""
    stopped: bool = False

    def leave(self, point: Point, why: str, told: Told) -> None:
        """Note that a point is not measured."""
        self.skipped.append(Skipped(point, why))
        told(self.skipped[-1])


def campaign(config: Config, grid: Grid, profile: Profile, stop: StopRequest, told: Told) -> Outcome:
    """Try what is not known yet. What was measured is kept point by point, so that it lasts whatever happens.

    Args:
        told: hears of every point as it is measured or left out.
    """
    outcome, points = Outcome(profile), Points(config, grid, profile)
    if all(points.expectation.obstacle(point) for point in points):
        for point in points:
            outcome.leave(point, points.expectation.obstacle(point), told)
        return outcome
    with on_cluster(config) as place:
        _Campaign(config, grid.seconds, points, outcome, place, told).run(stop)
    return outcome


class _Campaign:
    def __init__(
        self, config: Config, seconds: float, points: Points, outcome: Outcome, place: Place, told: Told
    ) -> None:
        self._seconds, self._points, self._outcome, self._told = seconds, points, outcome, told
        self._place, self._laid = place, points.first
        self._stages = place.open(None)
        self._stages.limit(config.context.first_limit)
        self._stages.sync(0)
        played: list[Played] = trajectories_of(self._stages.rollout(1))
        self._played = played
        self._trials = Trials(self._stages, config.run.seed)

    def run(self, stop: StopRequest) -> None:
        """Point after point."""
        for point in self._points:
            if stop.raised:
                self._outcome.stopped = True
                return
            self._visit(point.choice.stage, point)

    def _visit(self, stage: Stage, point: Point) -> None:
        """Measure a point, or say why not."""
        why = self._points.expectation.obstacle(point)
        if not why:
            try:
                self._lay(stage, point.choice)
                self._measure(point)
                return
            except OutOfMemory as error:
                self._recover(point.choice, error)
                why = str(error)
            except Lost as error:
                self._place.mend(error)
                self._stages.sync(0)
                why = str(error)
            except EarlError as error:  # a layout that these machines refuse; they are as they were
                why = str(error)
        self._outcome.leave(point, why, self._told)

    def _lay(self, stage: Stage, choice: Choice) -> None:
        if choice == self._laid[stage]:
            return
        began = time.perf_counter()
        before, self._laid[stage] = self._laid[stage], choice
        try:
            self._stages.lay_out(choice)
        except (OutOfMemory, Lost):
            raise
        except EarlError:
            self._laid[stage] = before
            raise
        self._outcome.profile.switches[choice] = time.perf_counter() - began

    def _recover(self, choice: Choice, error: OutOfMemory) -> None:
        """Have the stage stand again under the same layout: whoever ran out of memory has left the others."""
        try:
            self._stages.lay_out(choice, error)
        except Lost as lost:
            self._place.mend(lost)
        self._stages.sync(0)

    def _measure(self, point: Point) -> None:
        profile, expected = self._outcome.profile, self._points.expectation.of(point)
        invention = invention_of(self._played, point.tokens, self._stages.shape.vocab)
        taken = self._trials.tried(point.choice.stage, invention, point.sequences, self._seconds)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        timing = Timing(point, *spread_of(taken), len(taken), now, expected)
        profile.timings[point] = timing
        write(profile)
        self._points.expectation.learn(timing)
        self._outcome.measured += 1
        self._told(timing)
