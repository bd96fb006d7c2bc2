"""What follows from a run's numbers."""

import json
import math
from collections.abc import Callable

import pytest

from earl.cli.live.now import (
    RunNow,
    as_object,
    authors,
    evaluation,
    forecasts,
    pace,
    phase,
    quantiles,
    score_curves,
    seconds_left,
    silence,
    stage_table,
    truncation,
)
from earl.matches import MatchResult
from earl.runs.store import Event, RecordedMatch

Make = Callable[..., RunNow]


def match(step: int, seat: int, win: float, draw: float, phase: str = "train", exact: bool = False) -> RecordedMatch:
    shares = {"win": win, "draw": draw, "loss": 1 - win - draw, "illegal": 0.0, "truncated": 0.0}
    return RecordedMatch(step, phase, MatchResult("tictactoe", "random", seat, exact, 10, **shares))


def test_the_pace_counts_all_stages(make_run: Make) -> None:
    # 40 steps, 2 done with 1 + 3 and 1 + 5 s: 5 s per step, 38 left: 190 s
    run = make_run(timings={"rollout": [1.0, 1.0], "update": [3.0, 5.0]})
    assert pace(run) == 5.0
    assert seconds_left(run) == 190.0
    assert stage_table(run) == [("update", 5.0, 4.0), ("rollout", 1.0, 1.0)]
    assert math.isnan(seconds_left(make_run(timings={"rollout": [1.0]}, state="stopped")))


def test_a_rare_stage_is_spread_over_the_steps(make_run: Make) -> None:
    run = make_run(timings={"rollout": [1.0, 1.0, 1.0, 1.0], "evaluate": [2.0]})
    assert stage_table(run) == [("rollout", 1.0, 1.0), ("evaluate", 2.0, 0.5)]


@pytest.mark.parametrize(
    ("state", "step", "expected"),
    [
        ("running", 0, "starting"),
        ("running", 3, "training"),
        ("running", 40, "last evaluation"),
        ("stopped", 0, "not started"),
        ("stopped", 3, "stopped"),
        ("finished", 40, "finished"),
    ],
)
def test_what_a_run_does(make_run: Make, state: str, step: int, expected: str) -> None:
    assert phase(make_run({"reward": [0.0] * step}, state=state)) == expected


def test_a_run_that_is_silent_for_longer_than_its_steps_take(make_run: Make) -> None:
    assert silence(make_run(timings={"update": [1.0]}, quiet=119.0)) == 0.0
    assert silence(make_run(timings={"update": [1.0]}, quiet=121.0)) == 121.0
    assert silence(make_run(timings={"update": [100.0]}, quiet=499.0)) == 0.0  # 5 steps of 100 s
    assert silence(make_run(timings={"update": [1.0]}, quiet=1e6, state="stopped")) == 0.0


def test_the_score_is_wins_and_half_the_draws_over_both_seats() -> None:
    # seat 0: 0.6 + 0.2 / 2 = 0.7; seat 1: 0.2 + 0.2 / 2 = 0.3; their mean is 0.5
    matches = [match(5, 0, 0.6, 0.2), match(5, 1, 0.2, 0.2), match(9, 0, 1.0, 0.0), match(9, 0, 0.0, 0.0, "final")]
    assert score_curves(matches) == {"random": [(5, pytest.approx(0.5)), (9, 1.0)]}
    assert score_curves([match(5, 0, 0.0, 0.0, exact=True), match(5, 0, 1.0, 0.0)]) == {"random": [(5, 0.0)]}
    assert score_curves([]) == {}


def test_the_final_evaluation_is_the_last(make_run: Make) -> None:
    assert evaluation(make_run()) == (0, "", [])
    step, at, results = evaluation(make_run(matches=[match(9, 0, 1.0, 0.0, "final"), match(9, 0, 0.5, 0.0)]))
    assert (step, at, [result.win for result in results]) == (9, "final", [1.0])


def test_what_is_shown_of_contexts(full_run: RunNow) -> None:
    assert list(quantiles(full_run)) == ["p50", "p95", "p99", "max"]
    assert forecasts(full_run) == {"p95": (27.0, 30.0, 36.0)}
    assert {name: points[-1][1] for name, points in authors(full_run).items()} == {
        "environment": 1500.0,
        "action": 500.0,
    }
    assert truncation(full_run) == {"reply hit the limit": 0.05}


def test_json_holds_numbers_that_json_has(make_run: Make, full_run: RunNow) -> None:
    run = make_run({"reward": [math.nan], "forecast/p95/early": [5.0], **OPEN}, events=[Event(1, 0.0, "best", "x")])
    said = json.loads(json.dumps(as_object(run), allow_nan=False))
    assert said["metrics"]["reward"] == {"step": 1, "value": None}
    assert said["context"]["forecast"] == {"p95": {"early": 5.0, "median": None, "late": None}}
    assert said["seconds_per_step"] is None
    said = json.loads(json.dumps(as_object(full_run), allow_nan=False))
    assert (said["state"], said["step"], said["steps"], said["context"]["limit"]) == ("running", 20, 40, 120.0)
    assert [entry["opponent"] for entry in said["evaluation"]["results"]] == ["perfect", "random"]


OPEN = {"forecast/p95/median": [math.inf], "forecast/p95/late": [math.inf]}
