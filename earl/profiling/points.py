"""Which points are tried, and in which order: what a recipe's layouts, contexts and loads make, less what is known."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from earl.config import Config
from earl.engine.model import shape
from earl.engine.samplers import longest_context
from earl.errors import EarlError
from earl.parallel.choice import Choice, Stage
from earl.parallel.profile.pruning import Expectation, contexts_of, loads_of
from earl.parallel.profile.timings import Point
from earl.placement.choices import candidates
from earl.placement.costs import PlacedCosts
from earl.profiling.kept import Profile

LARGEST_LOAD = 1 << 20
SECONDS = 2.0
"""That a point is tried for, unless something else is asked for."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What is tried."""

    contexts: Sequence[int]
    loads: Sequence[int]
    seconds: float
    """Of each point, at least."""
    again: bool = False
    """Whether points that are known are measured anew; what was known of them is no guide then."""


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


class Points:
    """The points of a recipe that are not known yet.

    Attributes:
        expectation: of each; told what is measured, it says what is not worth trying.
    """

    def __init__(self, config: Config, grid: Grid, profile: Profile) -> None:
        own = shape(config.model)
        self._grid, self._costs = grid, PlacedCosts(config, own)
        self._offered = candidates(config, own)
        self._known = {} if grid.again else dict(profile.timings)
        self.expectation = Expectation(self._costs)
        for timing in self._known.values():
            self.expectation.learn(timing)

    @property
    def first(self) -> dict[Stage, Choice]:
        """What the recipe sets."""
        return {stage: choices[0] for stage, choices in self._offered.items()}

    def __iter__(self) -> Iterator[Point]:
        """Those of a layout together; first the layout that is set, then those that promise most."""
        for choices in self._offered.values():
            for choice in [choices[0], *sorted(choices[1:], key=self._promise)]:
                points = (Point(choice, own, load) for load in self._grid.loads for own in self._grid.contexts)
                yield from (point for point in points if point not in self._known)

    def _promise(self, choice: Choice) -> float:
        return self._costs.seconds(choice, self._grid.contexts[-1], self._grid.loads[-1])
