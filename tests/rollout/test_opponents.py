"""Who is met, and how often: shares, how hard an opponent is, and the pool of checkpoints."""

from random import Random

import numpy as np
import pytest

from earl.config import OneEnvConfig
from earl.matches import MatchResult
from earl.rollout import opponents
from earl.rollout.opponents import (
    EMPTY,
    OpponentPool,
    Start,
    VisitedPosition,
    add_to_pool,
    draw_starts,
    exploiter_task,
    lost_games,
    preferences_after,
    starts_after,
)
from earl.trajectory import Group, Outcome, StopReason, Task, Trajectory


def env(**settings):
    return OneEnvConfig(name="tictactoe", **settings)


def test_shares_stay_as_they_are_without_a_preference():
    own = env(opponents={"self": 2, "random": 1, "heuristic": 3})
    pool = OpponentPool({"tictactoe random": 0.1, "tictactoe heuristic": 0.9}, ())
    assert pool.shares(own) == {"self": 2, "random": 1, "heuristic": 3}


@pytest.mark.parametrize("prefer", ["hard", "informative"])
def test_preferred_opponents_are_met_more_often_and_the_policy_keeps_its_share(prefer):
    own = env(opponents={"self": 2, "random": 1, "heuristic": 1}, prefer=prefer)
    # Of the 2 that both share, 2·0.1/0.6 and 2·0.5/0.6.
    met = OpponentPool({"tictactoe random": 0.1, "tictactoe heuristic": 0.5}, ()).shares(own)
    assert met == {"self": 2, "random": pytest.approx(2 / 6), "heuristic": pytest.approx(10 / 6)}


def test_who_teaches_nothing_is_still_met():
    own = env(opponents={"random": 1, "heuristic": 1}, prefer="hard")
    met = OpponentPool({"tictactoe random": 0.0, "connect4 heuristic": 0.0}, ()).shares(own)
    # max(0.01, 0) beside 0.5, which stands for what is not known here: 2·0.01/0.51.
    assert met["random"] == pytest.approx(2 * 0.01 / 0.51)


def test_the_pool_shares_what_past_is_given_by_preference():
    own = env(opponents={"self": 1, "past": 3}, prefer="hard")
    met = OpponentPool({"tictactoe run:a@10": 0.25}, ["run:a@10", "run:a@20"]).shares(own)
    # Weights 0.25 and, unknown yet, 0.5: a third and two thirds of 3.
    assert met == {"self": 1, "run:a@10": pytest.approx(1), "run:a@20": pytest.approx(2)}


def test_shares_go_from_the_first_to_the_last_step():
    own = env(opponents={"random": (4, 0), "perfect": (0, 2), "heuristic": 1})
    assert own.shares_at(0.0) == {"random": 4, "heuristic": 1}
    assert own.shares_at(0.25) == {"random": 3, "perfect": 0.5, "heuristic": 1}
    assert OpponentPool({}, ()).shares(own, 1.0) == {"perfect": 2, "heuristic": 1}


def test_levels_share_tasks_alike_or_by_preference():
    own = OneEnvConfig(name="arithmetic", levels={"num_operations": [2, 4, 8]}, prefer="informative")
    names = [f"num_operations={number}" for number in (2, 4, 8)]
    assert EMPTY.shares(own) == dict.fromkeys(names, pytest.approx(1))
    known = dict(zip((f"arithmetic {name}" for name in names), (0.05, 0.2, 0.0), strict=True))
    # 3·0.05/0.26, 3·0.2/0.26 and 3·0.01/0.26
    assert [*OpponentPool(known, ()).shares(own).values()] == pytest.approx([0.15 / 0.26, 0.6 / 0.26, 0.03 / 0.26])


def test_without_a_checkpoint_the_past_is_the_policy_itself():
    assert EMPTY.shares(env(opponents={"self": 1, "past": 3})) == {"self": 4}
    assert EMPTY.shares(env(opponents={"past": 3})) == {"self": 3}


def group(opponent, *outcomes):
    columns = [np.zeros(0, kind) for kind in (np.int32, np.uint8, np.float32, np.int32)]
    ends = [(StopReason.FINISHED, outcome, 0) for outcome in outcomes]
    return Group(tuple(Trajectory(Task("tictactoe", 1, 0, opponent), 0, *columns, (), *end) for end in ends))


GROUPS = [
    group("random", Outcome.WIN, Outcome.DRAW),
    group("random", Outcome.LOSS, Outcome.WIN),
    group("self", Outcome.WIN),
]


def test_preferences_follow_the_results_slowly():
    # Lost of the groups: 1 - 0.75 and 1 - 0.5, so 0.375 in the mean, from 0.5: 0.9·0.5 + 0.1·0.375.
    # Variances: of 1 and 0.5 it is 1/16, of 0 and 1 it is 1/4; 5/32 in the mean, from 1/4: 0.9/4 + 0.1·5/32.
    for prefer, expected in (("hard", 0.4875), ("informative", 0.9 / 4 + 0.5 / 32)):
        envs = {"tictactoe": env(prefer=prefer)}
        known = {"tictactoe heuristic": 0.3}  # who is not met keeps its own
        assert preferences_after(known, envs, GROUPS) == known | {"tictactoe random": pytest.approx(expected)}


def test_draws_alone_teach_nothing():
    # A mean result of 0.5 is not p(1 - p) = 1/4 here: no game of the group differs from another one.
    met = preferences_after({}, {"tictactoe": env(prefer="informative")}, [group("perfect", *[Outcome.DRAW] * 4)])
    assert met == {"tictactoe perfect": pytest.approx(0.9 / 4)}


def test_the_exploiter_is_one_opponent_whatever_it_plays():
    groups = [group("exploiter:5 1 9", Outcome.LOSS), group("exploiter", Outcome.WIN)]
    known = preferences_after({}, {"tictactoe": env(prefer="hard")}, groups)
    assert known == {"tictactoe exploiter": pytest.approx(0.5)}  # from 0.5, by 0.5


def test_the_exploiter_plays_what_the_last_evaluation_lost():
    results = [
        MatchResult("tictactoe", "any", 0, True, 3, 0, 0, 1, 0, 0, lost=("1 2", "1 3")),
        MatchResult("tictactoe", "random", 1, True, 1, 1, 0, 0, 0, 0, lost=("5 1 9",)),
        MatchResult("tictactoe", "perfect", 1, True, 1, 1, 0, 0, 0, 0, lost=("5 1 9",)),
        MatchResult("gomoku", "random", 0, True, 1, 1, 0, 0, 0, 0, lost=("a1",)),
    ]
    lost = lost_games(results)
    assert len(lost) == 4  # the same line against two opponents is one
    task = Task("tictactoe", 7, 0, "exploiter")
    drawn = {exploiter_task(task, lost, Random(seed)) for seed in range(50)}
    expected = {(0, "exploiter:1 2"), (0, "exploiter:1 3"), (1, "exploiter:5 1 9")}
    assert {(one.seat, one.opponent) for one in drawn} == expected and {one.seed for one in drawn} == {7}
    assert exploiter_task(task, lost_games(results[3:]), Random(0)) == task
    assert exploiter_task(Task("tictactoe", 7, 0, "random"), lost, Random(0)).opponent == "random"


def test_without_a_preference_nothing_is_remembered():
    assert preferences_after({}, {"tictactoe": env()}, GROUPS) == {}


def test_the_pool_keeps_the_oldest_and_the_newest_and_spreads_the_others():
    pool = ()
    for step in range(0, 100, 10):
        pool = add_to_pool(pool, step, 4)
    assert (pool[0], pool[-1], len(pool)) == (0, 90, 4)
    assert add_to_pool((0, 10, 40), 50, 3) == (0, 40, 50)  # 10 lies closest to the one before it
    assert add_to_pool((0,), 10, 2) == (0, 10)


def test_positions_of_lost_games_are_remembered_with_the_share_that_was_held_since():
    lost, held = VisitedPosition("nim", "a", "1", True), VisitedPosition("nim", "a", "1", False)
    assert starts_after({}, [held]) == {}
    known = starts_after({}, [lost])
    assert known == {"nim a": Start("1", pytest.approx(0.4))}  # 0.8 · 0.5
    assert starts_after(known, [held])["nim a"].held == pytest.approx(0.52)  # 0.8 · 0.4 + 0.2
    assert known["nim a"].held == pytest.approx(0.4)


def test_the_oldest_positions_are_forgotten(monkeypatch):
    monkeypatch.setattr(opponents, "MOST_STARTS", 2)
    assert [*starts_after({}, [VisitedPosition("nim", name, name, True) for name in "abca"])] == ["nim b", "nim c"]


def test_games_begin_where_half_of_them_are_held():
    starts = {"nim a": Start("1", 0.5), "nim b": Start("2", 1.0), "nim c": Start("3", 0.0), "hex a": Start("4", 0.5)}
    drawn = draw_starts(starts, "nim", 2700, Random(0))
    # weights 0.25, 0.01 and 0.01 of 0.27: 2500, 100 and 100
    assert {name: round(drawn.count(name), -2) for name in {*drawn}} == {"self:1": 2500, "self:2": 100, "self:3": 100}
    assert draw_starts(starts, "chess", 5, Random(0)) == []
