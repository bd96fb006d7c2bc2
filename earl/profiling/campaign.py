"""The profiling campaign: measures a recipe's promising layouts at several contexts and loads, in processes of its own.

expectation ─▶ point worth trying? ─▶ switch ─▶ trials ─▶ timing ─▶ kept ─▶ expectation ─▶ next point
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from earl.config import Config
from earl.engine.learner import Update
from earl.engine.model import shape
from earl.errors import EarlError, OutOfMemory
from earl.group import Played
from earl.layouts import Layouts
from earl.observer import Observer
from earl.parallel.layout import Choice, Stage
from earl.parallel.profile import Point, Skipped, Timing, spread_of
from earl.placement.backend import Backend, on_cluster
from earl.placement.peers import WorkerLost
from earl.placement.pipeline import StepPipeline
from earl.placement.rollout_backend import StoredTrajectories
from earl.profiling.kept import Profile, key_of, read, write
from earl.profiling.points import SECONDS, Points, ProfileGrid, grid_of
from earl.rollout.invented import Invention, invention_of
from earl.rollout.pack import trajectories_of
from earl.runs.journal import Journal
from earl.stopping import StopRequest

# Trials make the same calls as a step, on synthetic episodes of any length. The weights that they produce are
# useless, so the stages are discarded afterwards.

LONG = 5
"""If the first time exceeds the requested time by this factor, it is not repeated: warm-up is a small part of it."""


class Trials:
    """Measures stages on synthetic episodes, which are derived from `seed`."""

    def __init__(self, stages: StepPipeline, seed: int) -> None:
        self._stages, self._seed = stages, seed

    def tried(self, stage: Stage, invention: Invention, sequences: int, seconds: float) -> list[float]:
        """Times of the stage, repeated until `seconds` have passed.
        The first time includes warm-up: it counts only if it is so long that it is not repeated."""
        work = self._sampling(invention, sequences) if stage == "rollout" else self._learning(invention, sequences)
        taken = [_timed(work)]
        while sum(taken[1:]) < seconds and taken[0] < LONG * seconds:
            taken.append(_timed(work))
        return taken[1:] or taken

    def _sampling(self, invention: Invention, sequences: int) -> Callable[[], None]:
        return lambda: self._stages.players.sample(invention, sequences, self._seed)

    def _learning(self, invention: Invention, sequences: int) -> Callable[[], None]:
        rows = self._stages.players.invent(invention, sequences, self._seed)
        return lambda: self._learn(rows)

    def _learn(self, rows: StoredTrajectories) -> None:
        """Dispatch, experience preparation and update of rows, as in a step."""
        stages, config = self._stages, self._stages.config
        update = self._update()
        taken: Any = stages.learner.take(rows, update.seed, update.minibatches)
        if stages.algorithm.needs_values:
            stages.learner.turn_values(taken)
        draws = np.random.default_rng(self._seed).standard_normal(rows.num_turns).astype(np.float32)
        batch = stages.learner.complete(taken, draws, draws, reference=bool(config.algorithm.kl))
        if config.algorithm.correction != "none":
            batch, _ = stages.learner.corrected(batch, config.algorithm.correction, config.algorithm.correction_cap)
        stages.learner.update(batch, stages.algorithm, update)

    def _update(self) -> Update:
        learner, algorithm = self._stages.config.learner, self._stages.config.algorithm
        return Update(0.0, algorithm.entropy, algorithm.kl, learner.minibatches, learner.epochs, self._seed)


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


Told = Callable[[Timing | Skipped], None]


@dataclass(slots=True)
class CampaignResult:
    profile: Profile
    skipped: list[Skipped] = field(default_factory=list)
    measured: int = 0  # points measured now; the others were known
    stopped: bool = False

    def leave(self, point: Point, why: str, told: Told) -> None:
        self.skipped.append(Skipped(point, why))
        told(self.skipped[-1])


def campaign(config: Config, grid: ProfileGrid, profile: Profile, stop: StopRequest, told: Told) -> CampaignResult:
    """Measure the unknown points of the grid; the profile is written after each. `told` is called for every point."""
    outcome, points = CampaignResult(profile), Points(config, grid, profile)
    if all(points.expectation.obstacle(point) for point in points):
        for point in points:
            outcome.leave(point, points.expectation.obstacle(point), told)
        return outcome
    with on_cluster(config) as place:
        _Campaign(config, grid.seconds, points, outcome, place, told).run(stop)
    return outcome


class _Campaign:
    def __init__(
        self, config: Config, seconds: float, points: Points, outcome: CampaignResult, place: Backend, told: Told
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
        for point in self._points:
            if stop.raised:
                self._outcome.stopped = True
                return
            self._visit(point.choice.stage, point)

    def _visit(self, stage: Stage, point: Point) -> None:
        """Measure a point, or record why not."""
        why = self._points.expectation.obstacle(point)
        if not why:
            try:
                self._lay(stage, point.choice)
                self._measure(point)
                return
            except OutOfMemory as error:
                self._recover(point.choice, error)
                why = str(error)
            except WorkerLost as error:
                self._place.mend(error)
                self._stages.sync(0)
                why = str(error)
            except EarlError as error:  # a layout that these machines refuse; the stages are unchanged
                why = str(error)
        self._outcome.leave(point, why, self._told)

    def _lay(self, stage: Stage, choice: Choice) -> None:
        if choice == self._laid[stage]:
            return
        began = time.perf_counter()
        before, self._laid[stage] = self._laid[stage], choice
        try:
            self._stages.lay_out(choice)
        except (OutOfMemory, WorkerLost):
            raise
        except EarlError:
            self._laid[stage] = before
            raise
        self._outcome.profile.switches[choice] = time.perf_counter() - began

    def _recover(self, choice: Choice, error: OutOfMemory) -> None:
        """Rebuild the stage under the same layout, since the process that ran out of memory has left the others."""
        try:
            self._stages.lay_out(choice, error)
        except WorkerLost as lost:
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


def measured_first(config: Config, stop: StopRequest, observer: Observer | None) -> None:
    """Measure what is unknown, if the recipe says so, in processes that end before those of the run start."""
    if not config.selector.profile:
        return
    if observer:
        observer.event(0, "profile", "layouts are measured before the run begins")
    profile = read(key_of(config, shape(config.model)))
    campaign(config, grid_of(config, (), (), SECONDS), profile, stop, lambda _: None)


def known_to(layouts: Layouts, placement: StepPipeline, journal: Journal) -> None:
    """Give a new run the measurements of recipes like its own, and log that."""
    config = placement.config
    if config.selector.kind != "auto":
        return
    profile = read(key_of(config, placement.shape))
    if not profile.timings:
        journal.event(0, "profile", "no layouts were measured here for such a run; `earl profile` would")
        return
    layouts.take(profile)
    cells = f"{len(profile.timings)} cells of layouts are known, measured here until {profile.measured_at}"
    journal.event(0, "profile", cells)
