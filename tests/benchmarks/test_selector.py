"""The simulation counts what it says it counts."""

import json
from dataclasses import replace

import numpy as np
import pytest

from earl.benchmarks.selector import (
    LIMIT,
    SHAPES,
    STEPS,
    by_range,
    clairvoyant,
    free_backs,
    most_within,
    played,
    selected,
    simulated_run,
    static,
    table,
)
from earl.cli.main import run as command_line
from earl.parallel.memory import Load
from earl.parallel.selector.selector import Selector


def test_worlds_are_the_same_again_and_cross():
    one, again = simulated_run(0, 3), simulated_run(0, 3)
    assert one.loads == again.loads and np.array_equal(table(one), table(again))
    assert len(one.loads) == STEPS
    own = simulated_run(4, 3)
    fastest = {int(np.argmin([own.true(n, load.mean_tokens) for n in range(4)])) for load in own.loads}
    assert len(fastest) >= 2
    assert {simulated_run(number, 0).family for number in range(len(SHAPES))} == set(SHAPES)


@pytest.mark.slow
def test_nobody_beats_the_clairvoyant():
    for number in (2, 15):
        own = simulated_run(number, 1)
        best = clairvoyant(own)
        assert best <= static(own)
        for course in (selected(own), by_range(own)):
            # what a switch costs is drawn around what the clairvoyant pays, a tenth to either side
            assert course.seconds >= best - 0.5 * own.switch_seconds * course.switches


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


def adversary(number, seed):
    """A load that turns against whatever was chosen, short contexts while the choice is fast for long ones: the run,
    and its loss against the best static choice in hindsight."""
    own = replace(simulated_run(number, seed), rooms=np.full(8, LIMIT))  # so that memory forces no switch
    selector = Selector({own.stage: own.choices}, own, {own.stage: own.taken_for}, steps=STEPS)
    means = [load.mean_tokens for load in own.loads]
    short, long = min(means) / 2, min(2 * max(means), LIMIT / 2)  # beyond the means, other choices are the fastest
    rested = int(np.random.default_rng(own.seed + 3).integers(1, 40))  # steps after a switch until the load follows
    decisions, chosen, loads = [], [], []
    selector.record_load(-1, load_of(short))

    def choose(step):
        decisions.append(selector.decide(own.stage, step))
        chosen.append(decisions[-1].choice)
        settled = len(chosen) > rested and len(set(chosen[-rested - 1 :])) == 1
        last = loads[-1] if loads else load_of(short)
        loads.append(load_of(worse(own, chosen[-1], short, long)) if settled else last)
        return chosen[-1]

    def told(step, choice, seconds, switch):
        if switch:
            selector.switched(choice, switch)
        selector.measured(choice, loads[step], seconds)
        selector.record_load(step, loads[step])

    course = replace(played(own, choose, told, loads), unforced_backs=free_backs(decisions))
    return course, course.seconds / static(replace(own, loads=tuple(loads))) - 1


def load_of(tokens):
    return Load(64, tokens, int(2 * tokens), LIMIT)


def worse(own, choice, short, long):
    """The context, short or long, at which the choice loses more."""
    number = own.choices.index(choice)

    def loss(tokens):
        return own.true(number, tokens) / min(own.true(n, tokens) for n in range(len(own.choices)))

    return max((short, long), key=loss)


@pytest.mark.slow
def test_an_adversary_does_not_make_it_thrash():
    for number in range(3):
        course, loss = adversary(number, seed=1)
        assert course.unforced_backs <= 1
        assert course.switches <= 12  # one in 25 of 300 steps, in which the load turned against it after each
        assert loss < 0.25


@pytest.mark.slow
def test_the_command_prints_json(capsys):
    assert command_line(["bench", "selector", "--histories", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["histories"] == 2
    assert {"mean", "p95", "worst", "within_3_percent"} == set(result["loss"]["selector"])


@pytest.mark.slow
def test_the_selector_is_close_to_the_clairvoyant():
    losses = []
    for number in range(len(SHAPES)):
        own = simulated_run(number, 2)
        course = selected(own)
        losses.append(course.seconds / clairvoyant(own) - 1)
        assert course.unforced_backs <= 1
    assert np.mean(losses) < 0.015 and np.quantile(losses, 0.9) < 0.03
