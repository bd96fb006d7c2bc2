"""The profiling campaign: measures a recipe's promising layouts at several contexts and loads, in processes of its own.

expectation ─▶ point worth trying? ─▶ switch ─▶ trials ─▶ timing ─▶ kept ─▶ expectation ─▶ next point
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from math import exp
from typing import Any

from earl.config import Config
from earl.engine.learner import Update
from earl.engine.model import shape
from earl.engine.samplers import longest_context
from earl.errors import EarlError, OutOfMemory
from earl.layouts import Layouts
from earl.observer import Observer
from earl.parallel.layout import Choice, Stage
from earl.parallel.profile import SURPRISING, Point, Skipped, Timing, place_of, spread_of
from earl.parallel.selector.selector import Costs
from earl.placement.backend import Backend, on_cluster
from earl.placement.costs import candidates, costs_of
from earl.placement.peers import WorkerLost
from earl.placement.pipeline import StepPipeline, StoredTrajectories
from earl.profiling.kept import Profile, key_of, read, write
from earl.rollout.pack import trajectories_of
from earl.rollout.synthetic import advantages_of, synthetic_like
from earl.runs.journal import Journal
from earl.stopping import StopRequest
from earl.trajectory import Played

HOPELESS = exp(SURPRISING)
"""A layout that would be slower even if it were this factor, about 2, faster than expected is skipped."""


class Expectation:
    """Expected times of points, from measurements of the same layout: the model predicts only the change with contexts
    and load. Its prediction for an unmeasured layout is too uncertain to skip that: every layout is measured once."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._known: dict[Stage, list[Timing]] = {}

    def learn(self, timing: Timing) -> None:
        self._known.setdefault(timing.point.choice.stage, []).append(timing)

    def seconds(self, point: Point) -> float | None:
        """Expected time of a point; None while its layout has no measurement."""
        own = [timing for timing in self._known.get(point.choice.stage, []) if timing.point.choice == point.choice]
        if not own:
            return None
        nearest = min(own, key=lambda timing: _distance(timing.point, point))
        return nearest.seconds * self._counted(point) / self._counted(nearest.point)

    def obstacle(self, point: Point) -> str:
        """Why a point is not measured; empty when it is."""
        needed = self._costs.obstacle(point.choice, point.load)
        if needed:
            return f"does not fit: {needed}"
        place, known = (point.tokens, point.sequences), self._known.get(point.choice.stage, [])
        alike = [timing for timing in known if (timing.point.tokens, timing.point.sequences) == place]
        expected, best = self.seconds(point), min(alike, key=lambda timing: timing.seconds, default=None)
        if best is None or expected is None or expected <= HOPELESS * best.seconds:
            return ""
        return (
            f"expected to take {expected:.3g} s, more than {HOPELESS:.1f} times the "
            f"{best.seconds:.3g} s of {best.point.choice} (measured)"
        )

    def _counted(self, point: Point) -> float:
        return self._costs.seconds(point.choice, point.load)


def _distance(one: Point, other: Point) -> float:
    """Doublings between two points."""
    places = zip(place_of(one.tokens, one.sequences), place_of(other.tokens, other.sequences), strict=True)
    return sum(abs(a - b) for a, b in places)


def contexts_of(longest: int) -> list[int]:
    """Contexts to measure: the longest and three halves, of at least 16 tokens; 100 gives [25, 50, 100]."""
    return [longest >> halved for halved in (3, 2, 1) if longest >> halved >= 16] + [longest]


def loads_of(sequences: int) -> list[int]:
    """Loads to measure: that of a step, and a quarter of it."""
    return sorted({max(1, sequences // 4), sequences})


LARGEST_LOAD = 1 << 20
SECONDS = 2.0  # of each point, by default


@dataclass(frozen=True, slots=True)
class ProfileGrid:
    contexts: Sequence[int]
    loads: Sequence[int]
    seconds: float  # minimum per point
    again: bool = False
    """Whether known points are measured again; the earlier measurements then do not guide the campaign."""


def grid_of(
    config: Config, contexts: Sequence[int], loads: Sequence[int], seconds: float, again: bool = False
) -> ProfileGrid:
    """The requested grid, completed from the recipe. Raises EarlError for a context or load that is impossible."""
    longest = longest_context(config, shape(config.model))
    for tokens in contexts:
        if not 2 <= tokens <= longest:
            raise EarlError(
                f"a context of {tokens} tokens cannot come in this recipe: episodes have 2 to {longest} tokens; "
                "name others, or raise context.limit (context.ceiling where it is automatic)"
            )
    for load in loads:
        if not 1 <= load <= LARGEST_LOAD:
            raise EarlError(f"a load of {load} episodes cannot be measured: name 1 to {LARGEST_LOAD}")
    own = sorted({*contexts}) or contexts_of(longest)
    return ProfileGrid(own, sorted({*loads}) or loads_of(config.rollout.episodes), seconds, again)


LONG = 5
"""If the first time exceeds the requested time by this factor, it is not repeated: warm-up is a small part of it."""
Report = Callable[[Timing | Skipped], None]


@dataclass(slots=True)
class CampaignResult:
    profile: Profile
    skipped: list[Skipped] = field(default_factory=list)
    measured: int = 0  # points measured now; the others were known
    stopped: bool = False


def campaign(config: Config, grid: ProfileGrid, profile: Profile, stop: StopRequest, report: Report) -> CampaignResult:
    """Measure the unknown points of the grid; the profile is written after each. `report` is called for every point."""
    outcome = CampaignResult(profile)
    with ExitStack() as opened:
        trials = _Trials(config, grid, outcome, opened)
        for point in trials.points():
            if stop.raised:
                outcome.stopped = True
                break
            why = trials.expectation.obstacle(point) or trials.failure(point)
            if why:
                outcome.skipped.append(Skipped(point, why))
            report(outcome.skipped[-1] if why else profile.timings[point])
    return outcome


class _Trials:
    """Measures points by the calls that a step makes, on synthetic episodes of any length. The weights that they
    produce are useless, so the stages are discarded afterwards. The processes start with the first point."""

    def __init__(self, config: Config, grid: ProfileGrid, outcome: CampaignResult, opened: ExitStack) -> None:
        own = shape(config.model)
        self._config, self._grid, self._outcome, self._opened = config, grid, outcome, opened
        self._costs = costs_of(config, own)
        self._offered = candidates(self._costs)
        self._laid = {stage: choices[0] for stage, choices in self._offered.items()}
        self._known = {} if grid.again else dict(outcome.profile.timings)
        self.expectation = Expectation(self._costs)  # updated with each measurement
        for timing in self._known.values():
            self.expectation.learn(timing)

    def points(self) -> Iterator[Point]:
        """The unknown points, grouped by layout: first the recipe's layout, then by predicted time."""
        longest = Point(self._offered["update"][0], self._grid.contexts[-1], self._grid.loads[-1]).load
        for choices in self._offered.values():
            for choice in [choices[0], *sorted(choices[1:], key=lambda one: self._costs.seconds(one, longest))]:
                points = (Point(choice, own, load) for load in self._grid.loads for own in self._grid.contexts)
                yield from (point for point in points if point not in self._known)

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
        except (OutOfMemory, WorkerLost) as error:
            self._laid[choice.stage] = choice
            try:
                if isinstance(error, WorkerLost):
                    raise
                stages.lay_out(choice, error)  # anew: the process that ran out of memory has left the others
            except WorkerLost as lost:
                self._place.mend(lost)
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

    def _measure(self, point: Point) -> None:
        profile, taken = self._outcome.profile, self._times(point)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        profile.timings[point] = timing = Timing(point, *spread_of(taken), len(taken), now)
        write(profile)
        self.expectation.learn(timing)
        self._outcome.measured += 1

    def _times(self, point: Point) -> list[float]:
        """Times of the stage, repeated until the requested seconds have passed.
        The first time includes warm-up: it counts only if it is so long that it is not repeated."""
        work, taken = self._work(point), list[float]()
        while not taken or (sum(taken[1:]) < self._grid.seconds and taken[0] < LONG * self._grid.seconds):
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
        return taken[1:] or taken

    def _work(self, point: Point) -> Callable[[], None]:
        players: Any = self._stages.players
        seed = self._config.run.seed
        synthetic = synthetic_like(self._played, point.tokens, self._stages.shape.vocab)
        if point.choice.stage == "rollout":
            return partial(players.sample, synthetic, point.sequences, seed)
        return partial(self._learn, players.invent(synthetic, point.sequences, seed))

    def _learn(self, rows: StoredTrajectories) -> None:
        """Dispatch, experience preparation and update of rows, as in a step."""
        stages, config, seed = self._stages, self._config.algorithm, self._config.run.seed
        update = Update.of(self._config, 0.0, config.entropy, seed)
        taken: Any = stages.learner.take(rows, update.seed, update.minibatches)
        if stages.algorithm.needs_values:
            stages.learner.turn_values(taken, stages.algorithm.by_token)
        if config.kl and not config.loss_kl:
            stages.learner.divergences(taken, config.kl_estimator)
        made = advantages_of(rows, stages.algorithm.by_token, seed)
        batch = stages.learner.complete(taken, made, reference=bool(config.loss_kl))
        stages.learner.update(batch, stages.algorithm, update)


def measure_before_run(config: Config, stop: StopRequest, observer: Observer | None) -> None:
    """Measure what is unknown, if the recipe says so, in processes that end before those of the run start."""
    if not config.selector.profile:
        return
    if observer:
        observer.event(0, "profile", "layouts are measured before the run begins")
    profile = read(key_of(config, shape(config.model)))
    campaign(config, grid_of(config, (), (), SECONDS), profile, stop, lambda _: None)


def add_known_measurements(layouts: Layouts, pipeline: StepPipeline, journal: Journal) -> None:
    """Give a new run the measurements of recipes like its own, and log that."""
    config = pipeline.config
    if config.selector.kind != "auto":
        return
    for said in layouts.alone():
        journal.event(0, "profile", said)
    profile = read(key_of(config, pipeline.shape))
    if not profile.timings:
        journal.event(0, "profile", "no layouts were measured here for such a run; `earl profile` would")
        return
    layouts.take(profile)
    cells = f"{len(profile.timings)} cells of layouts are known, measured here until {profile.measured_at}"
    journal.event(0, "profile", cells)
