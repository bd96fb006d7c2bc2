"""The profiling campaign: measures a recipe's promising layouts at several contexts and loads, in processes of its own.

expectation ─▶ point worth trying? ─▶ switch ─▶ trials ─▶ timing ─▶ kept ─▶ expectation ─▶ next point
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

import numpy as np

from earl.config import Config
from earl.engine.learner import Update
from earl.engine.model import shape
from earl.errors import EarlError, OutOfMemory
from earl.group import Played
from earl.layouts import Layouts
from earl.observer import Observer
from earl.parallel.layout import Choice
from earl.parallel.profile import Point, Skipped, Timing, spread_of
from earl.placement.backend import Backend, on_cluster
from earl.placement.peers import WorkerLost
from earl.placement.pipeline import StepPipeline
from earl.placement.rollout_backend import StoredTrajectories
from earl.profiling.kept import Profile, key_of, read, write
from earl.profiling.points import SECONDS, Points, ProfileGrid, grid_of
from earl.rollout.invented import invention_of
from earl.rollout.pack import trajectories_of
from earl.runs.journal import Journal
from earl.stopping import StopRequest

LONG = 5
"""If the first time exceeds the requested time by this factor, it is not repeated: warm-up is a small part of it."""


Told = Callable[[Timing | Skipped], None]


@dataclass(slots=True)
class CampaignResult:
    profile: Profile
    skipped: list[Skipped] = field(default_factory=list)
    measured: int = 0  # points measured now; the others were known
    stopped: bool = False


def campaign(config: Config, grid: ProfileGrid, profile: Profile, stop: StopRequest, told: Told) -> CampaignResult:
    """Measure the unknown points of the grid; the profile is written after each. `told` is called for every point."""
    outcome, points = CampaignResult(profile), Points(config, grid, profile)
    with ExitStack() as opened:
        trials = _Trials(config, grid.seconds, points, outcome, opened)
        for point in points:
            if stop.raised:
                outcome.stopped = True
                break
            why = points.expectation.obstacle(point) or trials.failure(point)
            if why:
                outcome.skipped.append(Skipped(point, why))
            told(outcome.skipped[-1] if why else profile.timings[point])
    return outcome


class _Trials:
    """Measures points by the calls that a step makes, on synthetic episodes of any length. The weights that they
    produce are useless, so the stages are discarded afterwards. The processes start with the first point."""

    def __init__(
        self, config: Config, seconds: float, points: Points, outcome: CampaignResult, opened: ExitStack
    ) -> None:
        self._config, self._seconds, self._opened = config, seconds, opened
        self._expectation, self._outcome, self._laid = points.expectation, outcome, points.first

    @cached_property
    def _place(self) -> Backend:
        return self._opened.enter_context(on_cluster(self._config))

    @cached_property
    def _stages(self) -> StepPipeline:
        stages = self._place.open(None)
        stages.limit(self._config.context.first_limit)
        stages.sync(0)
        self._played: list[Played] = trajectories_of(stages.rollout(1))
        return stages

    def failure(self, point: Point) -> str:
        """Measure a point. Returns why that failed; empty when it did not."""
        choice, stages = point.choice, self._stages  # an error of their start is not one of the point
        try:
            self._lay(choice)
            self._measure(point)
        except OutOfMemory as error:
            self._laid[choice.stage] = choice
            self._recover(choice, error)
            return str(error)
        except WorkerLost as error:
            self._laid[choice.stage] = choice
            self._place.mend(error)
            stages.sync(0)
            return str(error)
        except EarlError as error:  # a layout that these machines refuse; the stages are unchanged
            return str(error)
        return ""

    def _lay(self, choice: Choice) -> None:
        if choice != self._laid[choice.stage]:
            began = time.perf_counter()
            self._stages.lay_out(choice)
            self._laid[choice.stage] = choice
            self._outcome.profile.switches[choice] = time.perf_counter() - began

    def _recover(self, choice: Choice, error: OutOfMemory) -> None:
        """Rebuild the stage under the same layout, since the process that ran out of memory has left the others."""
        try:
            self._stages.lay_out(choice, error)
        except WorkerLost as lost:
            self._place.mend(lost)
        self._stages.sync(0)

    def _measure(self, point: Point) -> None:
        profile, expected = self._outcome.profile, self._expectation.of(point)
        taken = self._times(point)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        profile.timings[point] = timing = Timing(point, *spread_of(taken), len(taken), now, expected)
        write(profile)
        self._expectation.learn(timing)
        self._outcome.measured += 1

    def _times(self, point: Point) -> list[float]:
        """Times of the stage, repeated until the requested seconds have passed.
        The first time includes warm-up: it counts only if it is so long that it is not repeated."""
        work, taken = self._work(point), list[float]()
        while not taken or (sum(taken[1:]) < self._seconds and taken[0] < LONG * self._seconds):
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
        return taken[1:] or taken

    def _work(self, point: Point) -> Callable[[], None]:
        players, seed = self._stages.players, self._config.run.seed
        invention = invention_of(self._played, point.tokens, self._stages.shape.vocab)
        if point.choice.stage == "rollout":
            return partial(players.sample, invention, point.sequences, seed)
        return partial(self._learn, players.invent(invention, point.sequences, seed))

    def _learn(self, rows: StoredTrajectories) -> None:
        """Dispatch, experience preparation and update of rows, as in a step."""
        stages, learner, config, seed = (
            self._stages,
            self._config.learner,
            self._config.algorithm,
            self._config.run.seed,
        )
        update = Update(0.0, config.entropy, config.kl, learner.minibatches, learner.epochs, seed)
        taken: Any = stages.learner.take(rows, update.seed, update.minibatches)
        if stages.algorithm.needs_values:
            stages.learner.turn_values(taken)
        draws = np.random.default_rng(seed).standard_normal(rows.num_turns).astype(np.float32)
        batch = stages.learner.complete(taken, draws, draws, reference=bool(config.kl))
        if config.correction != "none":
            batch, _ = stages.learner.corrected(batch, config.correction, config.correction_cap)
        stages.learner.update(batch, stages.algorithm, update)


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
