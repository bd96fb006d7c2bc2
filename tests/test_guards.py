"""Guards: each fires on a history that was planted for it, and none on the histories of healthy runs."""

import json
from pathlib import Path

import pytest

from earl.guards import PART, WATCHED, WINDOW, append_numbers, warnings_of
from earl.recipe import build

STEADY = {
    **{"reward": 0.3, "won": 0.4, "illegal_replies": 0.02, "zero_variance_groups": 0.4},
    **{"clip_fraction": 0.05, "entropy": 0.2, "context/episode/mean": 60.0},
}


def config(algorithm="grpo"):
    return build({"env": {"name": "tictactoe", "opponents": {"random": 1}}, "algorithm": {"name": algorithm}})


def history(**courses):
    """A window in whose first half numbers go evenly from one value to another; the others stay."""
    found = ()
    for step in range(WINDOW):
        way = min(1.0, 2 * step / WINDOW)
        moved = {name.replace("__", "/"): a + way * (b - a) for name, (a, b) in courses.items()}
        found = append_numbers(found, {**STEADY, **moved, "loss": 1.0})
    return found


PLANTED = {
    "reward": {"reward": (100.0, 250.0)},
    "illegal": {"illegal_replies": (0.3, 0.6)},
    "variance": {"zero_variance_groups": (0.9, 1.0)},
    "clip": {"clip_fraction": (0.1, 0.95)},
    "entropy": {"entropy": (0.5, 0.01)},
    "length": {"context__episode__mean": (50.0, 200.0)},
}


@pytest.mark.parametrize("name", PLANTED)
def test_each_fires_on_its_planted_history_and_says_what_to_do(name):
    told = warnings_of(config(), history(**PLANTED[name]))
    assert [*told] == [name]
    assert "\n" not in told[name]
    assert ": " in told[name]


@pytest.mark.parametrize("name", ["variance", "entropy", "length"])
def test_what_comes_with_a_rising_reward_is_no_fault(name):
    assert warnings_of(config(), history(**PLANTED[name], reward=(0.1, 0.8))) == {}


@pytest.mark.parametrize("name", ["variance", "entropy"])
def test_a_policy_that_wins_nearly_always_needs_to_explore_no_more(name):
    assert warnings_of(config(), history(**PLANTED[name], won=(0.9, 1.0))) == {}


def test_trends_wait_for_a_whole_window_and_a_reward_does_not():
    for name, course in PLANTED.items():
        assert [*warnings_of(config(), history(**course)[: WINDOW - 1])] == ([name] if name == "reward" else [])


def test_groups_without_variance_do_not_matter_to_an_algorithm_without_groups():
    assert warnings_of(config("ppo"), history(**PLANTED["variance"])) == {}


def test_illegal_replies_that_become_fewer_are_learning():
    assert warnings_of(config(), history(illegal_replies=(1.0, 0.4))) == {}


def test_the_last_steps_are_remembered_and_nothing_else():
    found = ()
    for step in range(WINDOW + 7):
        found = append_numbers(found, {**STEADY, "reward": float(step), "loss": 2.0})
    assert [one["reward"] for one in found] == [*range(7, WINDOW + 7)]
    assert set(found[0]) == set(WATCHED)
    assert PART * 2 <= WINDOW
    assert warnings_of(config(), [{"reward": 0.1}] * WINDOW) == {}, "a step that learned nothing has fewer numbers"


HEALTHY = json.loads((Path(__file__).parent / "healthy_runs.json").read_text())


@pytest.mark.parametrize("name", HEALTHY)
def test_none_fires_on_a_healthy_run(name):
    columns = HEALTHY[name]["metrics"]
    steps = [dict(zip(columns, numbers, strict=True)) for numbers in zip(*columns.values(), strict=True)]
    assert len(steps) > WINDOW
    found = ()
    for metrics in steps:
        found = append_numbers(found, metrics)
        assert warnings_of(build(HEALTHY[name]["recipe"]), found) == {}
