"""The selector as a run uses it: two layouts that cross, one of them with little memory."""

import json
from dataclasses import replace

import pytest

from earl.errors import EarlError
from earl.parallel.layout import Choice, Layout
from earl.parallel.memory import Load
from earl.parallel.selector.selector import Selector

SMALL, LARGE = Choice("update", Layout(dp=4)), Choice("update", Layout(dp=2, tp=2))


class Crossing:
    """The small one takes 1 s at 100 tokens and grows with them; the large one always takes 2 s: they meet at 200.

    The small one holds contexts of up to `room` tokens.
    """

    def __init__(self, room: int = 10_000):
        self.room = room

    def seconds(self, choice, load):
        return load.mean_tokens / 100 if choice == SMALL else 2.0

    def obstacle(self, choice, load):
        most = self.room if choice == SMALL else 4000
        return "" if load.longest_tokens <= most else f"{load.longest_tokens} of {most} tokens"


def load(mean, longest=None, limit=100_000):
    return Load(sequences=64, mean_tokens=float(mean), longest_tokens=int(longest or 1.5 * mean), limit_tokens=limit)


def begun(costs, **fields):
    return Selector({"update": [SMALL, LARGE]}, costs, {"update": 3.0}, **fields)


def grown(selector, lengths, first=1):
    """A decision for each length, which the step then has."""
    decisions = []
    for step, length in enumerate(lengths, first):
        decisions.append(selector.decide("update", step))
        selector.record_load(step, load(length))
    return decisions


def test_the_faster_one_is_taken_as_contexts_grow():
    selector = begun(Crossing())
    selector.record_load(0, load(100))
    decisions = grown(selector, range(101, 401, 3))
    assert decisions[0].choice == SMALL and decisions[0].reason == "first"
    assert decisions[-1].choice == LARGE
    switches = [decision for decision in decisions if decision.switched]
    assert [decision.reason for decision in switches] == ["faster"]
    assert 195 <= switches[0].inputs.mean_tokens[0] <= 230  # they meet at 200


def test_it_leaves_before_contexts_outgrow_the_memory():
    room = 240  # for the longest, at a mean of 160: the small one is still the faster
    selector = begun(Crossing(room))
    selector.record_load(0, load(100))
    lengths = range(101, 180)
    decisions = grown(selector, lengths)
    for decision, length in zip(decisions, lengths, strict=True):
        assert decision.choice == LARGE or 1.5 * length <= room
    switch = next(decision for decision in decisions if decision.switched)
    assert switch.reason == "forced"
    assert switch.step > 30  # not before it has to


def test_a_choice_fits_the_shorter_the_longer_contexts_become():
    selector = begun(Crossing(room=240))
    selector.record_load(0, load(100))
    grown(selector, (102, 97, 108, 101, 110, 104))
    small, large = selector.inputs("update", 7).candidates
    assert sorted(small.futures, reverse=True) == list(small.futures)
    assert small.futures[0] > small.futures[-1] >= 3
    assert large.futures == (8,) * 5


def test_a_limit_that_fits_keeps_a_choice_from_being_left():
    selector = begun(Crossing(room=240))
    selector.record_load(0, load(100, limit=240))
    for step in range(1, 60):
        assert selector.decide("update", step).choice == SMALL
        selector.record_load(step, load(100 + step, longest=min(240, 150 + 2 * step), limit=240))


def test_what_ran_out_of_memory_is_not_taken_again_for_such_contexts():
    selector = begun(Crossing())
    selector.record_load(0, load(100))
    assert selector.decide("update", 1).choice == SMALL
    selector.out_of_memory(SMALL, load(100, longest=150), step=1)
    again = selector.decide("update", 1)
    assert (again.choice, again.reason) == (LARGE, "forced")
    assert "ran out of memory at step 1" in again.why
    for step in range(1, 30):
        selector.record_load(step, load(90, longest=140))  # the same bucket: 129 to 256
        assert selector.decide("update", step + 1).choice == LARGE
    for step in range(30, 60):
        selector.record_load(step, load(40, longest=60))  # another, where it is much faster
        last = selector.decide("update", step + 1)
    assert last.choice == SMALL


def test_measurements_correct_what_is_predicted():
    selector = begun(Crossing())
    selector.record_load(0, load(150))
    selector.measured(LARGE, load(150), 2.0)  # as predicted
    assert selector.decide("update", 1).choice == SMALL  # 1.5 s against 2 s
    for step in range(1, 40):
        decision = selector.decide("update", step)
        seconds = 3.0 if decision.choice == SMALL else 2.0  # the small one takes twice as long as predicted
        selector.measured(decision.choice, load(150), seconds)
        selector.record_load(step, load(150))
    assert decision.choice == LARGE
    assert {one.origin for one in decision.inputs.candidates} == {"measured"}
    assert decision.inputs.candidates[1].seconds[0] == pytest.approx(2.0, rel=0.05)


def test_a_measured_switch_counts_as_much_as_what_was_taken_for_it():
    selector = begun(Crossing())
    selector.record_load(0, load(100))
    selector.switched(LARGE, 9.0)
    costs = {one.choice: one.cost_seconds for one in selector.inputs("update", 1).candidates}
    assert costs == {SMALL: 3.0, LARGE: 6.0}  # (3 + 9) / 2


def test_a_resumed_selector_decides_alike():
    selector = begun(Crossing(room=240))
    selector.record_load(0, load(100))
    grown(selector, range(101, 140))
    selector.measured(SMALL, load(139), 1.6)
    selector.switched(LARGE, 2.0)
    selector.out_of_memory(SMALL, load(139, longest=600), step=39)
    resumed = begun(Crossing(room=240))
    resumed.restore(json.loads(json.dumps(selector.state())))
    assert resumed.state() == selector.state()
    assert grown(resumed, range(140, 200), 40) == grown(selector, range(140, 200), 40)


def test_what_may_not_last_is_taken_where_nothing_else_is_left():
    selector = begun(Crossing(room=3000))
    selector.record_load(0, replace(load(100), longest_tokens=3990))
    decision = selector.decide("update", 1)  # contexts may well grow above 4000, but so far they have not
    assert (decision.choice, decision.inputs.candidates[1].fits) == (LARGE, 0)
    assert "nothing fits" in decision.why


def test_nothing_that_fits_is_said_with_reasons():
    selector = begun(Crossing())
    selector.record_load(0, replace(load(100), longest_tokens=20_000))
    with pytest.raises(EarlError, match=r"nothing fits contexts of \d+ tokens \(dp4 tp1: .* of 10000 tokens; dp2 tp2"):
        selector.decide("update", 1)


def test_a_step_that_ran_out_of_memory_is_not_tried_in_the_same_choice_again():
    selector = begun(Crossing())
    selector.record_load(0, load(100, longest=120))  # the step comes with contexts of another bucket than those seen
    failed = load(400, longest=900)
    assert selector.decide("update", 1).choice == SMALL
    selector.out_of_memory(SMALL, failed, step=1)
    assert selector.decide("update", 1).choice == LARGE
    selector.out_of_memory(LARGE, failed, step=1)
    with pytest.raises(EarlError, match="dp2 tp2: it ran out of memory at step 1"):
        selector.decide("update", 1)
