"""The points of a profiling campaign and their order: the recipe's layouts, contexts and loads, less the known ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp

from earl.config import Config
from earl.engine.model import shape
from earl.engine.samplers import longest_context
from earl.errors import EarlError
from earl.parallel.layout import Stage
from earl.parallel.profile import SURPRISING, Expected, Point, Timing, place_of
from earl.parallel.selector.selector import Costs
from earl.placement.costs import PlacedCosts, candidates
from earl.profiling.kept import Profile

HOPELESS = exp(SURPRISING)
"""A layout that would be slower even if it were this factor, about 2, faster than expected is skipped."""


class Expectation:
    """Expected times of points, from the model's ratios and the measurements of other points.

    For a measured layout the model predicts only the change with contexts and load. The prediction for an unmeasured
    layout is too uncertain to skip it: every layout is measured once.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._known: dict[Stage, list[Timing]] = {}

    def learn(self, timing: Timing) -> None:
        self._known.setdefault(timing.point.choice.stage, []).append(timing)

    def of(self, point: Point) -> Expected | None:
        """Expected time of a point; None while the stage has no measurement."""
        known = self._known.get(point.choice.stage, [])
        own = [timing for timing in known if timing.point.choice == point.choice]
        if not known:
            return None
        nearest = min(own or known, key=lambda timing: _distance(timing.point, point))
        seconds = nearest.seconds * self._counted(point) / self._counted(nearest.point)
        return Expected(seconds, "corrected" if own else "predicted")

    def obstacle(self, point: Point) -> str:
        """Why a point is not measured; empty when it is."""
        needed = self._costs.obstacle(point.choice, point.load)
        if needed:
            return f"does not fit: {needed}"
        place, known = (point.tokens, point.sequences), self._known.get(point.choice.stage, [])
        alike = [timing for timing in known if (timing.point.tokens, timing.point.sequences) == place]
        expected, best = self.of(point), min(alike, key=lambda timing: timing.seconds, default=None)
        if best is None or expected is None or expected.origin == "predicted":
            return ""
        if expected.seconds <= HOPELESS * best.seconds:
            return ""
        return (
            f"expected to take {expected.seconds:.3g} s ({expected.origin}), more than {HOPELESS:.1f} times the "
            f"{best.seconds:.3g} s of {best.point.choice} (measured)"
        )

    def _counted(self, point: Point) -> float:
        return self._costs.seconds(point.choice, point.tokens, point.sequences)


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


class Points:
    """The unknown points of a recipe. `expectation` is updated with each measurement."""

    def __init__(self, config: Config, grid: ProfileGrid, profile: Profile) -> None:
        own = shape(config.model)
        self._grid, self._costs = grid, PlacedCosts(config, own)
        self._offered = candidates(config, own)
        self._known = {} if grid.again else dict(profile.timings)
        self.first = {stage: choices[0] for stage, choices in self._offered.items()}
        self.expectation = Expectation(self._costs)
        for timing in self._known.values():
            self.expectation.learn(timing)

    def __iter__(self) -> Iterator[Point]:
        """Points grouped by layout: first the recipe's layout, then by predicted time."""
        tokens, load = self._grid.contexts[-1], self._grid.loads[-1]
        for choices in self._offered.values():
            for choice in [choices[0], *sorted(choices[1:], key=lambda one: self._costs.seconds(one, tokens, load))]:
                points = (Point(choice, own, load) for load in self._grid.loads for own in self._grid.contexts)
                yield from (point for point in points if point not in self._known)
