"""`earl bench learn`: what it reads from runs, and a comparison of two small ones."""

from pathlib import Path

import pytest

from earl.benchmarks import learn
from earl.benchmarks.learn import Course, Reached, course_of
from earl.errors import EarlError
from earl.matches import MatchResult
from earl.runs.store import Numbers, RecordedMatch


def match(step, phase, opponent, seat, win, loss):
    return RecordedMatch(
        step, phase, MatchResult("tictactoe", opponent, seat, True, 9, win, 1 - win - loss, loss, 0, 0)
    )


RECIPE = Path(__file__).parents[2] / "docs/tictactoe_selfplay.toml"


def test_a_course_has_the_evaluations_after_imitation_and_no_time_of_theirs():
    matches = [
        match(step, phase, "any", seat, 0, loss)
        for step, phase in ((2, "warm_start"), (3, "train"), (4, "train"), (4, "final"))
        for seat, loss in ((0, 0.5), (1, 1 / step))
    ]
    matches += [match(4, "final", "perfect", 0, 0, 0.25), match(4, "final", "perfect", 1, 0, 0.5)]
    matches += [match(4, "final", "random", 0, 1, 0), match(4, "final", "random", 1, 0.5, 0)]
    timings = {"update": [(1, 8.0), (3, 1.0), (4, 2.0)], "rollout": [(4, 0.5)], "evaluate": [(4, 9.0)]}
    found = course_of(Numbers(timings=timings, matches=matches, last_step=4), 2)
    assert found.reached == Reached(not_lost=0.625, won=0.75)  # 1 - (0.25 + 0.5) / 2
    assert found.survived == [(1.0, pytest.approx(1 - (1 / 2 + 1 / 3) / 2)), (3.5, 0.625)]


def test_equal_time_counts_what_was_reached_within_it():
    course = Course(Reached(0.9, 0.1), [(10, 0.5), (20, 0.4), (30, 0.9)])
    told = learn._summary("grpo", 1e-3, [course], [25])
    assert (told["not_lost"]["median"], told["won"]["median"], told["seconds"]["max"]) == (0.9, 0.1, 30)
    assert (told["survived"]["median"], told["survived_in_equal_time"]["median"]) == (0.9, 0.5)
    assert course.within(5) == 0.5  # none is that early: the first one


def test_what_cannot_be_compared_is_told(tmp_path):
    with pytest.raises(EarlError, match="unknown algorithm 'gppo'"):
        learn.run(tmp_path, RECIPE, ["gppo"], 1, 1, [], [])
    with pytest.raises(EarlError, match="--rate 'fast' is no number"):
        learn.run(tmp_path, RECIPE, ["grpo"], 1, 1, ["fast"], [])
    with pytest.raises(EarlError, match=r"none of the algorithms can be compared: rollout: episodes = 40"):
        learn.run(tmp_path, RECIPE, ["grpo"], 1, 1, [], ["rollout.episodes=40"])
    with pytest.raises(EarlError, match=r"judged by evaluate\.held_out = \['perfect', 'random'\]"):
        learn.run(tmp_path, RECIPE, ["grpo"], 1, 1, [], ["evaluate.held_out=[]"])


def test_groups_and_options_are_those_of_the_algorithm(tmp_path):
    runs = learn.LearningRuns(tmp_path, learn.common(RECIPE, 7, []))
    grpo, ppo = (runs.configured(name, 1e-3, 5) for name in ("grpo", "ppo"))
    assert (grpo.rollout.group_size, grpo.algorithm.options, grpo.algorithm.kl) == (learn.GROUP, {}, 0.15)
    assert (ppo.rollout.group_size, ppo.algorithm.options) == (1, {"gae_lambda": 0.6})
    assert [(own.run.steps, own.run.seed, own.learner.final_learning_rate) for own in (grpo, ppo)] == [(7, 5, 1e-4)] * 2


@pytest.mark.slow
def test_algorithms_beside_each_other(tmp_path):
    small = ["warm_start.steps=1", "warm_start.episodes=32", "warm_start.minibatches=2", "rollout.episodes=32"]
    settings = [*small, "evaluate.every=1", "model.hidden=16", "model.layers=1"]
    told = learn.run(tmp_path, RECIPE, ["grpo", "ppo"], 1, 2, ["1e-3", "1e-4"], settings)
    assert [one["algorithm"] for one in told["algorithms"]] == ["grpo", "ppo"]
    assert told["episodes"] == 64
    searched = {f"{name}-{rate}-{learn.SEARCHED}" for name in ("grpo", "ppo") for rate in ("0.001", "0.0001")}
    chosen = {f"{own['algorithm']}-{own['rate']:g}-0" for own in told["algorithms"]}
    assert {one.name for one in tmp_path.iterdir()} == searched | chosen
