"""The cheapest sequence of choices over what is forecast: dynamic programming from the far end to now."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from earl.parallel.selector.inputs import AHEAD, Candidate

Floats = NDArray[np.float64]


def weights(dwell_steps: float, remaining: int | None) -> Floats:
    """How many steps each look-ahead stands for, when an advantage ends at each step with probability 1 / dwell. [P]

    Example:
        Without an end: 1, 1, 2, 4, 8, 16, 32 and 64 steps; each step counts less than the one before.
    """
    ends = np.array([*AHEAD[1:], 2 * AHEAD[-1]], np.float64)
    if remaining is not None:
        ends = np.minimum(ends, remaining + 1)
    kept = 1 - 1 / max(dwell_steps, 2.0)
    counted: Floats = (1 - kept**ends) / (1 - kept)
    return np.diff(counted, prepend=0.0)


def totals(candidates: Sequence[Candidate], counts: Floats, costs: Floats) -> Floats:
    """Expected seconds until the end of what is looked at, when a candidate is taken now and changed where that pays.

    Args:
        costs: what a switch to each is weighed with. [C]

    Returns:
        of each candidate [C], inf: it does not fit now.
    """
    reach = max(one.fits for one in candidates)  # at what lies further ahead nothing fits: it says nothing
    total: Floats = np.zeros(len(candidates))
    for place in reversed(range(reach)):
        taken = [one.seconds[place] if place < one.fits else np.inf for one in candidates]
        total = np.array(taken) * max(counts[place], 1e-9) + np.minimum(total, (total + costs).min())
    return total if reach else np.full(len(candidates), np.inf)
