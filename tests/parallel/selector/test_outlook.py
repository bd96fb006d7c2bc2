"""What is expected of a choice: the mean over futures, in each of which it fits for another while."""

import numpy as np
import pytest

from earl.parallel.layout import Choice, Layout
from earl.parallel.selector.decide import AHEAD, Candidate, totals


def expected(candidates, *rest):
    return totals(candidates, np.array([one.seconds for one in candidates]), *rest)


ONCE = np.ones(len(AHEAD))
"""Every look-ahead stands for one step: eight in all."""


def candidate(tp, seconds, *futures):
    return Candidate(Choice("rollout", Layout(tp=tp)), (seconds,) * len(AHEAD), "predicted", 8, futures, True, "", 4.0)


def test_every_future_counts_alike():
    costs = np.array([4.0, 4.0])
    slow, fast = candidate(2, 2.0, 8, 8), candidate(1, 1.0, 8, 3)
    # The fast one: 8 x 1 s; or 3 x 1 s, a switch of 4 s, and 5 x 2 s: 8 and 17. The slow one: one step, a switch and
    # 7 x 1 s; or 8 x 2 s, as what lasts two steps more is not worth two switches: 13 and 16.
    assert expected([slow, fast], ONCE, costs) == pytest.approx([14.5, 12.5])
    # Where it has to be left in both futures, as it was when only the longest contexts counted: 16 and 17.
    assert expected([slow, candidate(1, 1.0, 3, 3)], ONCE, costs) == pytest.approx([16.0, 17.0])


def test_what_fits_in_no_future_is_never_taken():
    never, always = candidate(1, 1.0, 0, 0), candidate(2, 2.0, 8, 8)
    assert expected([never, always], ONCE, np.array([4.0, 4.0])).tolist() == [np.inf, 16.0]


def test_what_nothing_fits_says_nothing():
    # In one future nothing fits after the second step: of that 2 and 4 s count, of the other one 8 and 16 s, but
    # the slow one is left for the fast one after a step (2 + 1 + 7).
    short, long = candidate(1, 1.0, 2, 8), candidate(2, 2.0, 2, 8)
    assert expected([short, long], ONCE, np.array([1.0, 1.0])) == pytest.approx([(2 + 8) / 2, (4 + 10) / 2])
