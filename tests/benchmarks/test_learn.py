"""`earl bench learn`: what it reads from runs, and a comparison of two small ones."""

import pytest

from earl.benchmarks import learn
from earl.benchmarks.learn import Reached, course_of
from earl.errors import EarlError
from earl.matches import MatchResult
from earl.runs.store import Numbers, RecordedMatch


def match(step, phase, opponent, seat, win, loss):
    return RecordedMatch(
        step, phase, MatchResult("tictactoe", opponent, seat, True, 9, win, 1 - win - loss, loss, 0, 0)
    )


def test_a_course_has_the_evaluations_after_imitation_and_no_time_of_theirs():
    matches = [
        match(step, phase, opponent, seat, win, loss)
        for step, phase in ((2, "warm_start"), (4, "train"), (4, "final"))
        for opponent, seat, win, loss in (("perfect", 0, 0, 0.25), ("perfect", 1, 0, 0.5), ("random", 0, 1, 0))
    ]
    timings = {"update": [(1, 8.0), (3, 1.0), (4, 2.0)], "rollout": [(4, 0.5)], "evaluate": [(4, 9.0)]}
    found = course_of(Numbers(timings=timings, matches=matches, last_step=4), 2)
    assert found == [Reached(not_lost=0.625, won=1.0, seconds=3.5)]  # 1 - (0.25 + 0.5) / 2; 1 + 2 + 0.5


def test_equal_time_counts_what_was_reached_within_it():
    course = [Reached(0.5, 0.1, 10), Reached(0.5, 0.2, 20), Reached(0.9, 0.1, 30)]
    told = learn._summary("grpo", 1e-3, [course], [25])
    assert (told["not_lost"]["median"], told["won"]["median"], told["seconds"]["max"]) == (0.9, 0.1, 30)
    assert told["not_lost_in_equal_time"]["median"] == 0.5


def test_what_cannot_be_compared_is_told(tmp_path):
    with pytest.raises(EarlError, match="unknown algorithm 'gppo'"):
        learn.run(tmp_path, "tictactoe", ["gppo"], 1, 1, [], [])
    with pytest.raises(EarlError, match="--rate 'fast' is no number"):
        learn.run(tmp_path, "tictactoe", ["grpo"], 1, 1, ["fast"], [])
    with pytest.raises(EarlError, match=r"none of the algorithms can be compared: rollout\.group_size = 1"):
        learn.run(tmp_path, "tictactoe", ["grpo"], 1, 1, [], ["rollout.group_size=1"])


@pytest.mark.slow
def test_algorithms_beside_each_other(tmp_path):
    small = ["warm_start.steps=1", "warm_start.episodes=32", "warm_start.minibatches=2", "rollout.episodes=32"]
    settings = [*small, "rollout.group_size=1", "evaluate.every=1", "model.hidden=16", "model.layers=1"]
    told = learn.run(tmp_path, "tictactoe", ["grpo", "ppo"], 1, 2, ["1e-3", "1e-4"], settings)
    assert [one["algorithm"] for one in told["algorithms"]] == ["ppo"]
    assert [one["algorithm"] for one in told["left_out"]] == ["grpo"]  # compares the episodes of a group
    assert told["episodes"] == 64
    searched = {f"ppo-{rate}-{learn.SEARCHED}" for rate in ("0.001", "0.0001")}
    assert {one.name for one in tmp_path.iterdir()} == {*searched, f"ppo-{told['algorithms'][0]['rate']:g}-0"}
