"""What choices are predicted to take at any context, from predictions at contexts an eighth of a doubling apart."""

from collections.abc import Sequence
from math import ceil, floor, log, log2

import numpy as np
from numpy.typing import NDArray

from earl.parallel.choice import Choice
from earl.parallel.selector.costs import Costs

NODES = 8
"""Contexts per doubling."""
KEPT = 50_000
"""Predictions; then it begins anew."""


class Table:
    """Predicted seconds, read between the contexts that were asked for."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._known: dict[tuple[Choice, int, int], float] = {}

    def logarithms(self, choices: Sequence[Choice], tokens: Sequence[float], sequences: int) -> NDArray[np.float64]:
        """Logarithm of the seconds of a step. [C, P]"""
        places = [NODES * log2(max(1.0, one)) for one in tokens]
        result = np.empty((len(choices), len(places)))
        for row, choice in enumerate(choices):
            for column, place in enumerate(places):
                low, share = floor(place), place - floor(place)
                value = self._at(choice, low, sequences)
                if share:
                    value += share * (self._at(choice, ceil(place), sequences) - value)
                result[row, column] = value
        return result

    def _at(self, choice: Choice, node: int, sequences: int) -> float:
        key = choice, node, sequences
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= KEPT:
                self._known.clear()
            known = self._known[key] = log(self._costs.seconds(choice, 2.0 ** (node / NODES), sequences))
        return known
