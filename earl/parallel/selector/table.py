"""What choices are predicted to take at any context, from predictions at contexts an eighth of a doubling apart."""

from collections.abc import Sequence
from math import ceil, floor, log, log2

import numpy as np
from numpy.typing import NDArray

from earl.parallel.choice import Choice
from earl.parallel.selector.costs import Costs

NODES = 8
"""Contexts per doubling."""
KEPT = 5_000
"""Choices by number of sequences; then it begins anew."""


class Table:
    """Predicted seconds, read between the contexts that were asked for."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._known: dict[tuple[Choice, int], dict[int, float]] = {}

    def logarithms(self, choices: Sequence[Choice], tokens: Sequence[float], sequences: int) -> NDArray[np.float64]:
        """Logarithm of the seconds of a step. [C, P]"""
        places = [NODES * log2(max(1.0, one)) for one in tokens]
        lows = [floor(place) for place in places]
        nodes = sorted({*lows, *map(ceil, places)})
        values = np.array([self._row(choice, sequences, nodes) for choice in choices])
        low = values[:, [nodes.index(node) for node in lows]]
        high = values[:, [nodes.index(ceil(place)) for place in places]]
        result: NDArray[np.float64] = low + (np.array(places) - np.array(lows)) * (high - low)
        return result

    def _row(self, choice: Choice, sequences: int, nodes: Sequence[int]) -> list[float]:
        if len(self._known) >= KEPT:
            self._known.clear()
        known = self._known.setdefault((choice, sequences), {})
        for node in nodes:
            if node not in known:
                known[node] = log(self._costs.seconds(choice, 2.0 ** (node / NODES), sequences))
        return [known[node] for node in nodes]
