"""Every layout of a recipe that may be worth it, tried at several contexts and loads: on processes of its own.

expectation ─▶ point worth trying? ─▶ switch ─▶ trials ─▶ timing ─▶ kept ─▶ expectation ─▶ next point
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from earl.config import Config
from earl.engine.model import shape
from earl.engine.samplers import longest_context
from earl.errors import EarlError, OutOfMemory
from earl.parallel.choice import Choice, Stage
from earl.parallel.profile.pruning import Expectation, contexts_of, loads_of
from earl.parallel.profile.timings import Point, Skipped, Timing, spread_of
from earl.placement.choices import candidates
from earl.placement.costs import PlacedCosts
from earl.placement.peers import Lost
from earl.placement.place import Place, on_cluster
from earl.placement.trial import Trials
from earl.profiling.kept import Profile, write
from earl.rollout.invented import invention_of
from earl.rollout.pack import trajectories_of
from earl.stopping import StopRequest
from earl.trajectory import Played

LARGEST_LOAD = 1 << 20
SECONDS = 2.0
"""That a point is tried for, unless something else is asked for."""
Told = Callable[[Timing | Skipped], None]


@dataclass(frozen=True, slots=True)
class Grid:
    """What is tried."""

    contexts: Sequence[int]
    loads: Sequence[int]
    seconds: float
    """Of each point, at least."""
    again: bool = False
    """Whether points that are known are measured anew; what was known of them is no guide then."""


@dataclass(slots=True)
class Outcome:
    """What came of a campaign."""

    profile: Profile
    skipped: list[Skipped] = field(default_factory=list)
    measured: int = 0
    """Points that were measured now; the others were known."""
    stopped: bool = False


def grid_of(config: Config, contexts: Sequence[int], loads: Sequence[int], seconds: float, again: bool = False) -> Grid:
    """The grid that is asked for; what is not named follows from the recipe.

    Raises:
        EarlError: for a context that no episode of the recipe can have.
    """
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
    return Grid(own, sorted({*loads}) or loads_of(config.rollout.episodes), seconds, again)


def campaign(config: Config, grid: Grid, profile: Profile, stop: StopRequest, told: Told) -> Outcome:
    """Try what is not known yet. What was measured is kept point by point, so that it lasts whatever happens.

    Args:
        told: hears of every point as it is measured or left out.
    """
    with on_cluster(config) as place:
        own = _Campaign(config, grid, Outcome(profile), place, told)
        own.run(stop)
        return own.outcome


class _Campaign:
    def __init__(self, config: Config, grid: Grid, outcome: Outcome, place: Place, told: Told) -> None:
        self.outcome = outcome
        self._config, self._grid, self._place, self._told = config, grid, place, told
        self._stages = place.open(None)
        self._stages.limit(config.context.first_limit)
        self._stages.sync(0)
        played: list[Played] = trajectories_of(self._stages.rollout(1))
        self._played = played
        self._trials = Trials(self._stages, config.run.seed)
        self._costs = PlacedCosts(config, self._stages.shape)
        self._expectation = Expectation(self._costs)
        self._known = {} if grid.again else dict(outcome.profile.timings)
        for timing in self._known.values():
            self._expectation.learn(timing)
        self._laid = {stage: own[0] for stage, own in self._candidates.items()}

    @property
    def _candidates(self) -> dict[Stage, Sequence[Choice]]:
        return dict(candidates(self._config, self._stages.shape))

    def run(self, stop: StopRequest) -> None:
        """Point after point, those of a layout together."""
        for stage, choices in self._candidates.items():
            for choice in [choices[0], *sorted(choices[1:], key=self._promise)]:
                for point in self._points(choice):
                    if stop.raised:
                        self.outcome.stopped = True
                        return
                    self._visit(stage, point)

    def _promise(self, choice: Choice) -> float:
        return self._costs.seconds(choice, self._grid.contexts[-1], self._grid.loads[-1])

    def _points(self, choice: Choice) -> Iterator[Point]:
        for sequences in self._grid.loads:
            for tokens in self._grid.contexts:
                point = Point(choice, tokens, sequences)
                if point not in self._known:
                    yield point

    def _visit(self, stage: Stage, point: Point) -> None:
        """Measure a point, or say why not."""
        why = self._expectation.obstacle(point)
        if not why:
            try:
                self._lay(stage, point.choice)
                self._measure(stage, point)
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
        skipped = Skipped(point, why)
        self.outcome.skipped.append(skipped)
        self._told(skipped)

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
        self.outcome.profile.switches[choice] = time.perf_counter() - began

    def _recover(self, choice: Choice, error: OutOfMemory) -> None:
        """Have the stage stand again under the same layout: whoever ran out of memory has left the others."""
        try:
            self._stages.lay_out(choice, error)
        except Lost as lost:
            self._place.mend(lost)
        self._stages.sync(0)

    def _measure(self, stage: Stage, point: Point) -> None:
        profile, expected = self.outcome.profile, self._expectation.of(point)
        invention = invention_of(self._played, point.tokens, self._stages.shape.vocab)
        taken = self._trials.tried(stage, invention, point.sequences, self._grid.seconds)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        timing = Timing(point, *spread_of(taken), len(taken), now, expected)
        profile.timings[point] = timing
        write(profile)
        self._expectation.learn(timing)
        self.outcome.measured += 1
        self._told(timing)
