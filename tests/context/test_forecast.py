"""The forecast on histories whose end is known; how often it is right at large, `test_coverage.py` measures."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.context.forecast import WARNING_STEPS, Forecast, expected, forecast, warns

pytestmark = pytest.mark.cold


def line(steps, start=100.0, slope=1.0, noise=0.0, seed=0):
    luck = np.random.default_rng(seed).standard_normal(steps)
    return [(step, start + slope * step + noise * float(luck[step])) for step in range(steps)]


def test_a_straight_line_reaches_its_limit_when_it_does():
    seen = forecast(line(50), limit=190.0)  # 100 + s = 190 at s = 90
    assert not seen.reached
    assert 88 < seen.early < 90 < seen.late < 92
    assert seen.median == pytest.approx(90, abs=0.5)


def test_growth_by_a_percentage_is_not_taken_for_a_line():
    history = [(step, 100 * 1.02**step) for step in range(40)]  # 216 at the last
    # 100 * 1.02^s = 500 at s = ln 5 / ln 1.02 = 81.3; a line through the last slope (4.3 a step) would need until 105
    assert forecast(history, limit=500.0).median == pytest.approx(82, abs=2)


def test_noise_widens_the_interval():
    quiet, loud = (forecast(line(40, noise=noise), limit=190.0) for noise in (1.0, 10.0))
    assert loud.late - loud.early > 2 * (quiet.late - quiet.early)
    assert quiet.early < 90 < quiet.late


def test_steps_are_absolute_and_may_lie_apart():
    history = [(1000 + 10 * step, 100.0 + step) for step in range(50)]
    seen = forecast(history, limit=160.0)  # at 1000 + 10 * 60 = 1600
    assert seen.early < 1600 < seen.late
    assert seen.median == pytest.approx(1600, abs=10)


def test_a_constant_history_is_not_expected_to_reach_anything():
    seen = forecast([(step, 90.0) for step in range(200)], limit=120.0)
    assert seen.median == seen.late == math.inf
    assert not warns(seen, 199)


def test_growth_that_ends_is_forgotten():
    history = line(60) + [(60 + step, 159.0) for step in range(40)]  # to 159, then nothing for 40 steps
    assert forecast(history, limit=200.0).late == math.inf
    assert not warns(forecast(history, limit=200.0), 99)


def test_after_a_leap_it_is_flat_again():
    history = [(step, 54.0 if step < 42 else 72.0) for step in range(75)]  # whole turns of 18 tokens
    seen = forecast(history, limit=74.0)
    assert seen.late == math.inf
    assert not warns(seen, 74)


def test_at_the_limit_it_is_reached():
    history = [*line(50), (50, 144.0), (51, 144.0)]  # cut off at 144
    assert forecast(history, limit=144.0) == Forecast(144.0, 51.0, 51.0, 51.0, reached=True)
    assert warns(forecast(history, limit=144.0), 51)


def test_nothing_is_said_beyond_the_horizon():
    history = line(50)  # 90 is 41 steps after the last
    assert forecast(history, limit=190.0, horizon=30).median == math.inf
    assert forecast(history, limit=190.0, horizon=45).median < math.inf


@pytest.mark.parametrize("points", [1, 2, 3, 4, 5])
def test_a_short_history_says_little(points):
    seen = forecast(line(points), limit=150.0)
    assert seen.early > points - 1
    assert seen.late == math.inf or seen.late - seen.early > 10


def test_no_history_no_forecast():
    assert forecast([], limit=100.0) == Forecast(100.0, math.inf, math.inf, math.inf, reached=False)
    with pytest.raises(ValueError, match="without a finite value"):
        expected([(3, math.nan)], 10)


def test_a_warning_comes_before_the_limit_and_not_at_once():
    history = line(150, noise=2.0)
    first = next(now for now in range(150) if warns(forecast(history[: now + 1], limit=200.0), now))
    crossing = next(step for step, value in history if value >= 200)
    assert 5 <= crossing - first <= 2 * WARNING_STEPS


def test_what_is_expected_of_a_line():
    median, upper = expected(line(50, noise=2.0, seed=1), 10)  # 149 + 10
    assert median == pytest.approx(159, abs=2)
    assert median + 1 < upper < median + 10
    assert expected([(step, 90.0) for step in range(100)], 10) == pytest.approx((90.0, 90.0), abs=2)


def test_only_the_latest_points_count():
    late = line(64, start=300.0)
    one = forecast([(step - 64, 100.0) for step in range(64)] + late, limit=400.0)
    other = forecast([(step - 64, 900.0) for step in range(64)] + late, limit=400.0)
    assert one == other


values = st.floats(allow_nan=False, allow_infinity=False, width=32) | st.integers(0, 100).map(float)


@given(
    st.lists(st.tuples(st.integers(0, 5000), values), min_size=1, max_size=80, unique_by=lambda point: point[0]),
    st.floats(1, 1e6),
    st.integers(1, 300),
)
def test_any_history_has_an_ordered_forecast(points, limit, horizon):
    history = sorted(points)
    last = history[-1][0]
    seen = forecast(history, limit, horizon)
    assert last <= seen.early <= seen.median <= seen.late
    assert seen.reached == (history[-1][1] >= limit)
    assert seen == forecast(history, limit, horizon)
    assert not any(map(math.isnan, expected(history, horizon)))


def test_another_process_comes_to_the_same_bits():
    program = (
        "from earl.context.forecast import expected, forecast\n"
        "history = [(step, 100 + step + step * 7 % 5) for step in range(40)]\n"
        "print(repr(forecast(history, 190)), repr(expected(history, 7)))"
    )
    seen = {subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout for _ in range(2)}
    assert len(seen) == 1
