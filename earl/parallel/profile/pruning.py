"""Which points are worth trying: what is expected of each follows from the model and from what was measured before."""

from math import exp

from earl.parallel.choice import Stage
from earl.parallel.profile.cells import SURPRISING, place_of
from earl.parallel.profile.timings import Expected, Point, Timing
from earl.parallel.selector.costs import Costs

HOPELESS = exp(SURPRISING)
"""A layout may be this much faster than is expected of it, about 2 times; one that would be slower even so is left."""


class Expectation:
    """What points are expected to take, from the model's ratios and what other points took.

    Of a layout that was measured, the model says only how its time changes with contexts and load. One that was not is
    compared with others by the model alone, which is too little to leave it out: every layout is tried once.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._known: dict[Stage, list[Timing]] = {}

    def learn(self, timing: Timing) -> None:
        """Take in a measurement."""
        self._known.setdefault(timing.point.choice.stage, []).append(timing)

    def of(self, point: Point) -> Expected | None:
        """What is expected of a point; None while nothing of its stage was measured."""
        known = self._known.get(point.choice.stage, [])
        own = [timing for timing in known if timing.point.choice == point.choice]
        if not known:
            return None
        nearest = min(own or known, key=lambda timing: _distance(timing.point, point))
        seconds = nearest.seconds * self._counted(point) / self._counted(nearest.point)
        return Expected(seconds, "corrected" if own else "predicted")

    def obstacle(self, point: Point) -> str:
        """Why a point is not to be tried; empty when it is."""
        needed = self._costs.obstacle(point.choice, point.load)
        if needed:
            return f"does not fit: {needed}"
        expected, best = self.of(point), self._best(point)
        if best is None or expected is None or expected.origin == "predicted":
            return ""
        if expected.seconds <= HOPELESS * best.seconds:
            return ""
        return (
            f"expected to take {expected.seconds:.3g} s ({expected.origin}), more than {HOPELESS:.1f} times the "
            f"{best.seconds:.3g} s of {best.point.choice} (measured)"
        )

    def _best(self, point: Point) -> Timing | None:
        """The fastest that was measured at the same context and load."""
        alike = [
            timing
            for timing in self._known.get(point.choice.stage, [])
            if (timing.point.tokens, timing.point.sequences) == (point.tokens, point.sequences)
        ]
        return min(alike, key=lambda timing: timing.seconds, default=None)

    def _counted(self, point: Point) -> float:
        return self._costs.seconds(point.choice, point.tokens, point.sequences)


def _distance(one: Point, other: Point) -> float:
    """Doublings between two points."""
    places = zip(place_of(one.tokens, one.sequences), place_of(other.tokens, other.sequences), strict=True)
    return sum(abs(a - b) for a, b in places)


def contexts_of(longest: int, count: int = 4) -> list[int]:
    """Contexts to try: the longest, and those that are half as long again and again, of 16 tokens at least.

    Example:
        >>> contexts_of(100)
        [25, 50, 100]
    """
    lengths = [longest >> halved for halved in range(count)]
    return sorted({length for length in lengths if length >= 16} or {longest})


def loads_of(sequences: int) -> list[int]:
    """Loads to try: that of a step, and a quarter of it.

    Example:
        >>> loads_of(384)
        [96, 384]
    """
    return sorted({max(1, sequences // 4), sequences})
