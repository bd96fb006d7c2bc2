"""Who is met, and how often: shares, how hard an opponent is, and the pool of checkpoints."""

from random import Random

import numpy as np
import pytest

from earl.config import OneEnvConfig
from earl.rollout import opponents
from earl.rollout.opponents import EMPTY, OpponentPool, Passed, Start, admitted, openings, scores_after, starts_after
from earl.trajectory import Group, Outcome, StopReason, Task, Trajectory


def env(**settings):
    return OneEnvConfig(name="tictactoe", **settings)


def test_shares_stay_as_they_are_without_a_preference():
    own = env(opponents={"self": 2, "random": 1, "heuristic": 3})
    pool = OpponentPool({"random": 0.9, "heuristic": 0.1}, ())
    assert pool.shares(own) == {"self": 2, "random": 1, "heuristic": 3}


def test_hard_opponents_are_met_more_often_and_the_policy_keeps_its_share():
    own = env(opponents={"self": 2, "random": 1, "heuristic": 1}, prefer_hard=2)
    # (1 - 0.9)² = 0.01 and (1 - 0.5)² = 0.25: of the 2 that both share, 2·1/26 and 2·25/26.
    met = OpponentPool({"random": 0.9, "heuristic": 0.5}, ()).shares(own)
    assert met == {"self": 2, "random": pytest.approx(2 / 26), "heuristic": pytest.approx(50 / 26)}


def test_an_opponent_that_always_loses_is_still_met():
    met = OpponentPool({"random": 1.0}, ()).shares(env(opponents={"random": 1, "heuristic": 1}, prefer_hard=1))
    # max(0.05, 1 - 1) = 0.05 beside 1 - 0.5: 2·0.05/0.55.
    assert met["random"] == pytest.approx(2 * 0.05 / 0.55)


def test_the_pool_shares_what_past_is_given_by_how_hard_each_is():
    own = env(opponents={"self": 1, "past": 3}, prefer_hard=1)
    met = OpponentPool({"run:a@10": 0.75}, ["run:a@10", "run:a@20"]).shares(own)
    # Weights 0.25 and, unknown yet, 0.5: a third and two thirds of 3.
    assert met == {"self": 1, "run:a@10": pytest.approx(1), "run:a@20": pytest.approx(2)}


def test_without_a_checkpoint_the_past_is_the_policy_itself():
    assert EMPTY.shares(env(opponents={"self": 1, "past": 3})) == {"self": 4}
    assert EMPTY.shares(env(opponents={"past": 3})) == {"self": 3}


def group(opponent, *outcomes):
    columns = [np.zeros(0, kind) for kind in (np.int32, np.uint8, np.float32, np.int32)]
    ends = [(StopReason.FINISHED, outcome, 0) for outcome in outcomes]
    return Group(tuple(Trajectory(Task("tictactoe", 1, 0, opponent), 0, *columns, (), *end) for end in ends))


def test_scores_follow_the_results_slowly():
    groups = [
        group("random", Outcome.WIN, Outcome.DRAW),
        group("random", Outcome.LOSS, Outcome.WIN),
        group("self", Outcome.WIN),
    ]
    # random: (1 + 0.5 + 0 + 1)/4 = 0.625, from 0.5: 0.9·0.5 + 0.1·0.625; who is not met keeps its score.
    assert scores_after({"heuristic": 0.3}, groups) == {"heuristic": 0.3, "random": pytest.approx(0.5125)}


def test_the_pool_keeps_the_oldest_and_the_newest_and_spreads_the_others():
    pool = ()
    for step in range(0, 100, 10):
        pool = admitted(pool, step, 4)
    assert (pool[0], pool[-1], len(pool)) == (0, 90, 4)
    assert admitted((0, 10, 40), 50, 3) == (0, 40, 50)  # 10 lies closest to the one before it
    assert admitted((0,), 10, 2) == (0, 10)


def test_positions_of_lost_games_are_remembered_with_the_share_that_was_held_since():
    lost, held = Passed("nim", "a", "1", True), Passed("nim", "a", "1", False)
    assert starts_after({}, [held]) == {}
    known = starts_after({}, [lost])
    assert known == {"nim a": Start("1", pytest.approx(0.4))}  # 0.8 · 0.5
    assert starts_after(known, [held])["nim a"].held == pytest.approx(0.52)  # 0.8 · 0.4 + 0.2
    assert known["nim a"].held == pytest.approx(0.4)


def test_the_oldest_positions_are_forgotten(monkeypatch):
    monkeypatch.setattr(opponents, "MOST_STARTS", 2)
    assert [*starts_after({}, [Passed("nim", name, name, True) for name in "abca"])] == ["nim b", "nim c"]


def test_games_begin_where_half_of_them_are_held():
    starts = {"nim a": Start("1", 0.5), "nim b": Start("2", 1.0), "nim c": Start("3", 0.0), "hex a": Start("4", 0.5)}
    drawn = openings(starts, "nim", 2700, Random(0))
    # weights 0.25, 0.01 and 0.01 of 0.27: 2500, 100 and 100
    assert {name: round(drawn.count(name), -2) for name in {*drawn}} == {"self:1": 2500, "self:2": 100, "self:3": 100}
    assert openings(starts, "chess", 5, Random(0)) == []
