"""Which points are worth trying: what is expected of each follows from the model and from what was measured before."""

from math import exp

import numpy as np

from earl.parallel.choice import Choice, Stage
from earl.parallel.profile.cells import SURPRISING, Cells, measured, place_of
from earl.parallel.profile.correction import correction
from earl.parallel.profile.timings import Expected, Point, Timing
from earl.parallel.selector.costs import Costs

HOPELESS = exp(SURPRISING)
"""A layout may be this much faster than is expected of it, about 2 times; one that would be slower even so is left."""


class Expectation:
    """What points are expected to take, from the model's ratios and what other points took."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._scale: dict[Stage, float] = {}
        self._cells: dict[Stage, Cells] = {}
        self._best: dict[tuple[Stage, int, int], tuple[float, Choice]] = {}

    def learn(self, timing: Timing) -> None:
        """Take in a measurement; the first one of a stage says how fast the machines are."""
        point, stage = timing.point, timing.point.choice.stage
        predicted = self._costs.seconds(point.choice, point.tokens, point.sequences)
        scale = self._scale.setdefault(stage, timing.seconds / predicted)
        known = self._cells.get(stage, {})
        self._cells[stage] = measured(known, point.choice, point.load, timing.seconds, predicted * scale)
        key = (stage, point.tokens, point.sequences)
        if key not in self._best or timing.seconds < self._best[key][0]:
            self._best[key] = timing.seconds, point.choice

    def of(self, point: Point) -> Expected | None:
        """What is expected of a point; None while nothing of its stage was measured."""
        stage = point.choice.stage
        if stage not in self._scale:
            return None
        predicted = self._costs.seconds(point.choice, point.tokens, point.sequences) * self._scale[stage]
        places = np.array([place_of(point.tokens, point.sequences)])
        shift = float(correction(self._cells[stage]).at([point.choice], places)[0, 0])
        return Expected(predicted * exp(shift), "corrected")

    def obstacle(self, point: Point) -> str:
        """Why a point is not to be tried; empty when it is."""
        needed = self._costs.obstacle(point.choice, point.load)
        if needed:
            return f"does not fit: {needed}"
        expected, best = self.of(point), self._best.get((point.choice.stage, point.tokens, point.sequences))
        if expected is None or best is None or expected.seconds <= HOPELESS * best[0]:
            return ""
        return (
            f"expected to take {expected.seconds:.3g} s ({expected.origin}), more than {HOPELESS:.1f} times the "
            f"{best[0]:.3g} s of {best[1]} (measured)"
        )


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
