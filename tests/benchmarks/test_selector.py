"""The simulation counts what it says it counts."""

import json

import numpy as np
import pytest

from earl.benchmarks import selector
from earl.benchmarks.selector import (
    ARMS,
    SHAPES,
    STEPS,
    adversary,
    by_range,
    clairvoyant,
    most_within,
    played,
    selected,
    simulated_run,
    static,
    table,
)
from earl.cli.main import run as command_line


def test_worlds_are_the_same_again_and_cross():
    one, again = simulated_run(0, 3), simulated_run(0, 3)
    assert one.loads == again.loads and np.array_equal(table(one), table(again))
    assert len(one.loads) == STEPS
    own = simulated_run(4, 3)
    fastest = {int(np.argmin([own.true(n, load.mean_tokens) for n in range(4)])) for load in own.loads}
    assert len(fastest) >= 2
    assert {simulated_run(number, 0).family for number in range(len(SHAPES))} == set(SHAPES)


def test_a_step_out_of_memory_is_paid_and_done_again():
    own = simulated_run(0, 1)
    small, large = own.choices[0], own.choices[3]
    failed = []

    def choose(step):
        return large if failed and failed[-1] == step else small

    def told(step, choice, seconds, switch):
        if seconds is None:
            failed.append(step)

    course = played(own, choose, told)
    misses = int(np.isinf(table(own)[:, 0]).sum())
    assert course.out_of_memory == misses == len(failed)


def test_switches_back_are_counted_within_any_hundred_steps():
    assert most_within([]) == 0
    assert most_within([5, 104, 105, 300]) == 2  # 5 and 104, or 104 and 105; 5 and 105 are a hundred apart


@pytest.mark.slow
def test_an_adversary_does_not_make_it_thrash():
    for number in range(3):
        row = adversary(number, seed=1)
        assert row["unforced_backs"] <= 1
        assert row["switches"] <= 12  # one in 25 of 300 steps, in which the load turned against it after each
        assert row["loss"] < 0.25


@pytest.mark.slow
def test_the_command_prints_json(capsys, monkeypatch):
    monkeypatch.setattr(selector, "STEPS", 150)
    monkeypatch.setattr(selector, "ARMS", dict([*ARMS.items()][-1:]))
    assert command_line(["bench", "selector", "--histories", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["histories"] == 1
    assert {"mean", "p95", "worst", "within_3_percent"} == set(result["loss"]["selector"])


@pytest.mark.slow
def test_the_selector_is_close_to_the_clairvoyant_whom_nobody_beats():
    losses = []
    for number in range(0, len(SHAPES), 2):
        own = simulated_run(number, 2)
        best, course = clairvoyant(own), selected(own)
        assert best <= static(own)
        for strategy in (course, by_range(own)):
            # what a switch costs is drawn around what the clairvoyant pays, a tenth to either side
            assert strategy.seconds >= best - 0.5 * own.switch_seconds * strategy.switches
        losses.append(course.seconds / best - 1)
        assert course.unforced_backs <= 1
    assert np.mean(losses) < 0.015 and np.quantile(losses, 0.9) < 0.03
