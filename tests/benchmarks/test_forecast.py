"""The forecast's benchmark counts what it says it counts; and what it counts is what is promised."""

import json
import math

import numpy as np
import pytest

from earl.benchmarks import forecast as bench
from earl.benchmarks.forecast import (
    ALL_NOISE,
    KNOWN,
    KNOWN_NOISE,
    NEW,
    SHOWN,
    STEPS,
    FirstWarning,
    ForecastTrial,
    GrowthHistory,
    first_warning,
    histories,
    recorded,
    warnings,
)
from earl.cli.main import run as command_line
from earl.context.forecast import Forecast
from earl.runs.folder import create
from earl.runs.store import Store


def line(limit, origins=(10,), steps=STEPS):
    return GrowthHistory("linear", "none", 100.0 + np.arange(float(steps)), limit, origins, SHOWN)


def test_histories_have_their_limits_ahead():
    found = list(histories(2, seed=3, calibration=False))
    assert [history.family for history in found[::2]] == [*KNOWN, *NEW]
    for history in found:
        assert history.noise in ALL_NOISE
        assert len(history.values) == STEPS
        assert all(3 <= origin < history.crossing for origin in history.origins)
        assert max(history.origins) + SHOWN < STEPS  # so that what comes within the horizon is known
        assert np.isfinite(history.values).all()


def test_what_chose_the_constants_is_apart():
    chosen, fresh = (list(histories(1, seed=0, calibration=calibration)) for calibration in (True, False))
    assert {history.family for history in chosen} == set(KNOWN)
    assert {history.noise for history in chosen} <= set(KNOWN_NOISE)
    assert not any(np.array_equal(one.values, other.values) for one, other in zip(chosen, fresh, strict=False))
    again = list(histories(1, seed=0, calibration=False))
    assert all(np.array_equal(one.values, other.values) for one, other in zip(fresh, again, strict=True))


@pytest.mark.parametrize(
    ("truth", "interval", "early", "late"),
    [
        (50.0, (40.0, 60.0), False, False),
        (39.0, (40.0, 60.0), True, False),
        (61.0, (40.0, 60.0), False, True),
        (math.inf, (40.0, 60.0), False, True),  # an end was promised
        (math.inf, (40.0, math.inf), False, False),
        (300.0, (math.inf, math.inf), True, False),  # nothing was expected within the horizon
    ],
)
def test_what_is_covered(truth, interval, early, late):
    made = ForecastTrial(line(150.0), 10, Forecast(150.0, interval[0], interval[0], interval[1], False), truth)
    assert (made.early, made.late) == (early, late)


def test_warnings_are_counted_by_what_came():
    reaches, misses = line(limit=150.0), line(limit=900.0)  # at step 50; never
    result = warnings(
        [FirstWarning(reaches, 45), FirstWarning(reaches, 46), FirstWarning(misses, 7), FirstWarning(misses, math.inf)]
    )
    assert result["histories"] == 2
    assert result["in_time"] == 0.5  # 45 + 5 <= 50 < 46 + 5
    assert result["lead"] == 4.5
    assert result["false"] == pytest.approx(1 / 3)  # one of three warnings
    assert result["needless"] == 0.5
    assert warnings([])["in_time"] is None


def test_a_line_is_warned_of_in_time():
    assert 25 <= first_warning(line(limit=150.0)).step <= 45  # 150 at step 50


@pytest.mark.slow
def test_the_command_prints_json_or_lines(capsys):
    assert command_line(["bench", "forecast", "--histories", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["histories"] == len(KNOWN | NEW)
    assert set(result["coverage"]["family"]) == {*KNOWN, *NEW}
    assert command_line(["bench", "forecast", "--histories", "1", "--calibration"]) == 0
    assert "coverage.family.linear" in capsys.readouterr().out


@pytest.mark.slow
def test_recorded_runs_are_forecast_at_levels_they_came_to(tmp_path):
    for name, slope in (("grows", 1.0), ("stays", 0.0)):
        with Store(create(tmp_path, name).database) as store:
            for step in range(1, 101):
                length = 99.0 + slope * step
                store.record_step(step, {"context/window/p99": length, "reward": 0.0}, {})
    found = list(recorded(tmp_path))
    assert {run for run, _ in found} == {"grows"}
    # From 104, the highest of the first five, to 199: 104 + 95 * (0.3, 0.6, 0.9, 1.1)
    assert [history.limit for _, history in found] == [132.5, 161.0, 189.5, 208.5]
    # 132.5 is met at place 33 (100 + 33), the last never
    assert [history.crossing for _, history in found] == [33.0, 61.0, 90.0, math.inf]
    result = bench.run(1, runs=tmp_path)["recorded"]
    assert result["forecasts"] == 12  # at a quarter, half and three quarters of the way to each
    assert result["coverage"]["run"]["grows"] >= 0.9


def test_runs_that_are_not_there_are_refused(capsys, tmp_path):
    assert command_line(["bench", "forecast", "--histories", "1", "--runs", str(tmp_path / "nowhere")]) == 2
    assert "is no folder" in capsys.readouterr().err


@pytest.mark.slow
def test_the_interval_is_right_as_often_as_it_says():
    result = bench.run(per_family=5, seed=1)
    assert result["histories"] >= 20
    assert 0.7 <= result["coverage"]["all"] <= 0.9
    assert 0.7 <= result["coverage"]["reached"] <= 0.9
    assert 0.7 <= result["coverage"]["one_per_history"] <= 0.9
    assert result["warning"]["in_time"] >= 0.9
    assert 0.85 <= result["expected"]["upper_90_held"] <= 0.95
