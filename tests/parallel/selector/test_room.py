"""What layouts have to hold: prepared for soon, and further ahead by how likely it is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.parallel.selector.decide import AHEAD, Settings
from earl.parallel.selector.selector import FUTURES, longest_contexts

lengths = st.lists(st.integers(1, 5000), min_size=1, max_size=40)


@given(lengths, st.integers(0, 8))
def test_futures_part_after_the_guard_and_never_shrink(history, guard):
    rows = longest_contexts(list(enumerate(map(float, history))), AHEAD, Settings(guard_steps=guard))
    assert rows.shape == (1 + len(FUTURES), len(AHEAD))
    soon = [steps <= guard for steps in AHEAD]
    assert (rows[:, soon] == rows[0, soon]).all()
    assert (np.diff(rows, axis=1) >= 0).all()
    assert (np.diff(rows[1:], axis=0) >= 0).all()  # each future has contexts at least as long as the one before


def test_steady_growth_is_the_middle_future():
    # 10 tokens more a step, to 1,000 at step 90; 64 steps on 1,640. 5 % more is prepared for, and what is not known.
    history = [(step, 100.0 + 10 * step) for step in range(91)]
    rows = longest_contexts(history, AHEAD, Settings())
    assert rows[0, 0] == 1000
    spread = rows[0, 2] / 1020
    assert 1.05 <= spread < 1.08
    assert rows[3, -1] == pytest.approx(spread * 1640, rel=0.02)
    assert rows[1, -1] < rows[3, -1] < rows[5, -1] < 1.1 * rows[0, -1]


def test_a_margin_widens_all_but_what_was_seen():
    history = [(step, 500.0) for step in range(30)]
    plain, wider = (longest_contexts(history, AHEAD, Settings(longest_margin=margin)) for margin in (1.0, 1.2))
    assert (plain[:, 0] == 500).all() and (wider[:, 0] == 500).all()
    assert np.allclose(wider[:, 1:], 1.2 * plain[:, 1:])
