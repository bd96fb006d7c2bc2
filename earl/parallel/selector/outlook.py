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

    The mean over the futures: in each a candidate fits for another while.

    Args:
        costs: what a switch to each is weighed with. [C]

    Returns:
        of each candidate [C], inf: it does not fit now.
    """
    seconds = np.array([one.seconds for one in candidates])  # [C, P]
    fits = np.array([one.futures for one in candidates]).T  # [F, C]
    total = np.zeros(fits.shape)
    for place in reversed(range(fits.max())):
        there = fits > place
        onward = np.minimum(total, (total + costs).min(axis=1, keepdims=True))
        taken = np.where(there, seconds[:, place] * max(counts[place], 1e-9), np.inf) + onward
        total = np.where(there.any(axis=1, keepdims=True), taken, total)  # where nothing fits, that says nothing
    expected: Floats = np.where(fits > 0, total, np.inf).mean(axis=0)
    return expected
