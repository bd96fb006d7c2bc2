"""The pure decision: whatever the inputs, it keeps its rules, and the same inputs give the same decision."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from earl.errors import EarlError
from earl.parallel.layout import Bucket, Choice, Layout, bucket_of
from earl.parallel.selector.decide import (
    AHEAD,
    Candidate,
    Inputs,
    PastLayout,
    Settings,
    StageState,
    decide,
    weights,
    worth,
)
from earl.parallel.selector.selector import inputs_from_json, inputs_to_json

CHOICES = [Choice("rollout", Layout(dp=8 // tp, tp=tp)) for tp in (1, 2, 4, 8)]
PLACES = len(AHEAD)
FLAT = (1.0,) * PLACES


def candidate(choice, seconds=FLAT, fits=PLACES, cost=2.0, origin="predicted", telling=0.0):
    why_not = "" if fits == PLACES else "too small"
    return Candidate(
        choice, tuple(seconds), origin, fits, (fits,), fits > 0, why_not, cost, (telling,) * PLACES if telling else ()
    )


def inputs(step, candidates, remaining=None, own=None):
    longest = tuple(range(100, 100 + len(AHEAD)))
    return Inputs(step, "rollout", 64, FLAT, longest, remaining, tuple(candidates), own or Settings())


seconds = st.lists(st.floats(0.1, 100), min_size=len(AHEAD), max_size=len(AHEAD))
origins = st.sampled_from(["predicted", "measured"])
some = st.tuples(seconds, st.integers(0, len(AHEAD)), st.floats(0, 50), origins, st.floats(0, 1))
courses = st.lists(st.lists(some, min_size=4, max_size=4), min_size=1, max_size=30)


def candidates_of(rows):
    return [candidate(choice, *row) for choice, row in zip(CHOICES, rows, strict=True)]


@given(courses)
def test_it_keeps_its_rules(course):
    state, unforced = StageState(), []
    left = {}
    for step, rows in enumerate(course):
        given_inputs = inputs(step, candidates_of(rows))
        fits = {one.choice: one.fits for one in given_inputs.candidates}
        if not any(fits.values()):
            with pytest.raises(EarlError, match="nothing fits"):
                decide(state, given_inputs)
            continue
        before = state.current
        again = decide(state, given_inputs)
        state, decision = decide(state, given_inputs)
        assert again == (state, decision)
        guarded = min(3, max(fits.values()))  # now, in one step and in two; where nothing does, the longest
        assert fits[decision.choice] >= guarded
        if before is not None and fits[before] >= guarded and decision.choice != before:
            assert decision.reason in ("faster", "trial")
            if decision.reason == "faster" and step - left.get(decision.choice, -1000) < 100:
                unforced.append(step)
        if decision.switched and decision.reason != "trial":
            left[before] = step
    assert len(unforced) <= 1  # fewer than a hundred steps


def test_a_layout_of_which_little_is_known_is_tried_for_what_that_tells():
    """Predicted as fast as the present one, and a measurement would move that by 20 %: E[min(1, e^X)] = 0.5 + e^0.02 *
    Phi(-0.2) = 0.929, so each of 300 steps may save 0.071 s: 21.2 s, which the switch may cost."""
    state = StageState(current=CHOICES[0], since=-50)
    for cost, reason in ((21.0, "trial"), (21.4, "stays")):
        present, untried = candidate(CHOICES[0], origin="measured"), candidate(CHOICES[1], cost=cost, telling=0.2)
        assert decide(state, inputs(0, [present, untried], 299))[1].reason == reason
        assert decide(state, inputs(0, [present, replace(untried, telling=())], 299))[1].reason == "stays"


def test_a_trial_is_ended_without_waiting_and_is_no_switch_back():
    slow = (2.0,) * PLACES
    state = StageState(current=CHOICES[0], since=-1, left=(PastLayout(CHOICES[2], -5),), backs=(-5,))
    two = [candidate(CHOICES[0], origin="measured"), candidate(CHOICES[1], telling=0.5)]
    tried, decision = decide(state, inputs(0, two, 299))
    assert (decision.reason, tried.current, tried.on_trial) == ("trial", CHOICES[1], True)
    assert (tried.left, tried.since) == (state.left, state.since)
    back, decision = decide(tried, inputs(1, [two[0], candidate(CHOICES[1], slow, origin="measured")], 298))
    assert (decision.reason, back.current, back.on_trial, back.backs) == ("trial", CHOICES[0], False, (-5,))
    kept, decision = decide(tried, inputs(1, [two[0], candidate(CHOICES[1], (0.5,) * PLACES, origin="measured")], 298))
    assert (decision.reason, kept.current, kept.on_trial) == ("stays", CHOICES[1], False)


def test_what_a_measurement_tells_is_worth_the_smaller_of_two_in_expectation():
    present, untried = candidate(CHOICES[0], origin="measured"), candidate(CHOICES[1], (1.1,) * PLACES, telling=0.3)
    drawn = 1.1 * np.exp(0.3 * np.random.default_rng(0).standard_normal(400_000))
    saved = 1.0 - np.minimum(1.0, drawn).mean()  # s a step
    given_inputs = inputs(0, [present, untried], remaining=299)
    assert worth(given_inputs, weights(100, 299)) == pytest.approx([0.0, 300 * saved], rel=0.01)
    # It fits for 4 look-aheads: the present step and 7 more. Later it is 10 times as slow, and nothing is saved.
    assert worth(inputs(0, [present, replace(untried, fits=4)], 299), FLAT)[1] == pytest.approx(8 * saved, rel=0.01)
    late = replace(untried, seconds=(1.1,) * 4 + (10.0,) * 4)
    assert worth(inputs(0, [present, late], 299), FLAT)[1] == pytest.approx(8 * saved, rel=0.01)


@settings(max_examples=30, deadline=None)
@given(courses)
def test_what_is_recorded_is_decided_again(course):
    state, recorded, made = StageState(), [], []
    for step, rows in enumerate(course):
        given_inputs = inputs(step, candidates_of(rows))
        if any(one.fits for one in given_inputs.candidates):
            state, decision = decide(state, given_inputs)
            made.append(decision)
            recorded.append(inputs_to_json(decision))
            assert inputs_from_json(recorded[-1]) == (decision.state, given_inputs)
    assert [decide(*inputs_from_json(text))[1] for text in recorded] == made


def test_a_switch_has_to_save_its_cost_and_more():
    # 100 steps of dwell: the first of them counts 1, the next 0.99, …; until step 128: 100 * (1 - 0.99 ** 128) = 72.4
    assert weights(100, None).sum() == pytest.approx(72.4, abs=0.1)
    slow, fast = (2.0,) * len(AHEAD), (1.9,) * len(AHEAD)  # 0.1 s a step: 7.24 s
    state = StageState(current=CHOICES[0], since=-50)
    for cost, reason in ((4.7, "faster"), (4.9, "stays")):  # with a margin of 50 %: 7.05 and 7.35 s
        _, decision = decide(state, inputs(0, [candidate(CHOICES[0], slow), candidate(CHOICES[1], fast, cost=cost)]))
        assert decision.reason == reason
    # Of a run that ends after 20 more steps, 21 steps are left: 0.1 * 100 * (1 - 0.99 ** 21) = 1.9 s
    near = inputs(0, [candidate(CHOICES[0], slow), candidate(CHOICES[1], fast, cost=2.0)], remaining=20)
    assert decide(state, near)[1].reason == "stays"


def test_it_rests_between_switches_unless_it_has_to_leave_or_waiting_costs_more():
    slow = (1.9,) * len(AHEAD)
    state = StageState(current=CHOICES[0], since=8)
    _, decision = decide(state, inputs(10, [candidate(CHOICES[0], slow), candidate(CHOICES[1])]))
    assert (decision.reason, decision.choice) == ("held", CHOICES[0])  # 3 steps more lose 2.7 s, the switch costs 3 s
    assert "the last switch was at step 8" in decision.why
    _, decision = decide(state, inputs(10, [candidate(CHOICES[0], (2.1,) * len(AHEAD)), candidate(CHOICES[1])]))
    assert decision.reason == "faster"  # 3.3 s
    _, decision = decide(state, inputs(10, [candidate(CHOICES[0], slow, fits=2), candidate(CHOICES[1])]))
    assert (decision.reason, decision.choice) == ("forced", CHOICES[1])
    assert decision.why == "8 x tp1 does not fit contexts of 102 tokens, expected in 2 steps: too small"


def test_going_back_is_weighed_with_what_was_lost_there():
    # 0.1 s a step: 7.24 s in all, as above, of which the switch takes 3 s. No other switch back is free for 100 steps,
    # of which the load will have turned for 100 - 100 * (1 - 0.99 ** 100) = 36.6: of 0.1 s 3.66 s, of 0.5 s 18.3 s.
    both = [candidate(CHOICES[0], (2.0,) * len(AHEAD)), candidate(CHOICES[1], (1.9,) * len(AHEAD))]
    for lost, reason in ((0.0, "faster"), (0.1, "faster"), (0.5, "held")):
        state = StageState(current=CHOICES[0], since=10, left=(PastLayout(CHOICES[1], 10, lost),), steps=-1)
        _, decision = decide(state, inputs(50, both))
        assert decision.reason == reason, lost
    assert "the load may turn again" in decision.why
    # Left long ago, it may be left again as soon as the run has rested: 5 steps, of which 0.1 have turned.
    assert decide(replace(state, left=(PastLayout(CHOICES[1], -60, 0.5),)), inputs(50, both))[1].reason == "faster"


def test_none_is_taken_for_one_that_may_not_be():
    three = [
        candidate(choice, (seconds,) * len(AHEAD)) for choice, seconds in zip(CHOICES, (5.0, 1.0, 2.0), strict=False)
    ]
    state = StageState(current=CHOICES[0], since=20, left=(PastLayout(CHOICES[1], 20),), backs=(20,))
    _, decision = decide(state, inputs(50, three))
    assert (decision.reason, decision.choice) == ("held", CHOICES[0])
    assert "step 20 switched back already" in decision.why
    assert decide(state, inputs(121, three))[1].choice == CHOICES[1]


def test_what_memory_forced_out_is_taken_again_once_contexts_have_fallen():
    # Left for 120 tokens; in 16 steps 105 are expected (the longest of 100, 101, …): below 0.9 * 120 = 108.
    both = [candidate(CHOICES[0], (2.0,) * len(AHEAD)), candidate(CHOICES[1], (1.0,) * len(AHEAD))]
    for unfit, reason in ((120, "faster"), (110, "held")):  # 0.9 * 110 = 99
        state = StageState(current=CHOICES[0], since=10, left=(PastLayout(CHOICES[1], 10, 0.0, unfit),))
        _, decision = decide(state, inputs(50, both))
        assert decision.reason == reason
    assert "as contexts of 110 tokens were expected, and they have hardly fallen" in decision.why


def test_what_is_left_is_remembered_with_what_it_lost():
    both = [candidate(CHOICES[0], (2.0,) * len(AHEAD)), candidate(CHOICES[1], (1.5,) * len(AHEAD))]
    state = decide(StageState(current=CHOICES[0]), inputs(7, both))[0]
    assert (state.left, state.since) == ((PastLayout(CHOICES[0], 7, 0.5),), 7)
    state = decide(state, inputs(30, [both[0], replace(both[1], fits=1, futures=(1,))]))[0]
    # Memory forced it, one step ahead.
    assert (state.left[-1], state.backs) == (PastLayout(CHOICES[1], 30, 0.0, 101), (30,))
    assert TypeAdapter(StageState).validate_python(json.loads(json.dumps(asdict(state)))) == state


def test_other_texts_are_no_inputs():
    for text in ("{}", "[]", "no json", '{"candidates": 3}'):
        with pytest.raises(EarlError, match="cannot be read"):
            inputs_from_json(text)


def test_a_present_choice_that_is_no_candidate_is_left():
    state = StageState(current=Choice("rollout", Layout(dp=3)))
    _, decision = decide(state, inputs(0, [candidate(CHOICES[0])]))
    assert (decision.reason, decision.why) == ("forced", "3 x tp1 is not among the candidates any more")


def test_words_and_buckets():
    update = Choice("update", Layout(2, 2, 2), 8192, recompute=True, offload=True)
    assert str(update) == "dp2 tp2 cp2, 8192 tokens, recompute, offload"
    assert Choice.of(json.loads(json.dumps(asdict(update)))) == update
    assert bucket_of(1024, 32) == Bucket(10, 5) and bucket_of(1025, 33) == Bucket(11, 6)
    assert replace(update, offload=False) != update
