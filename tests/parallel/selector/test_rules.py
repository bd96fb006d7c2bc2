"""The parts of a decision, each with its arithmetic."""

from dataclasses import replace

import numpy as np
import pytest

from earl.errors import EarlError
from earl.parallel.layout import Choice, Layout
from earl.parallel.selector.decide import (
    AHEAD,
    Candidate,
    Inputs,
    PastLayout,
    Settings,
    StageState,
    decide,
    dwell_steps,
    hindrance,
    note_fastest,
    past_layouts,
    recently_left,
    risks,
    weights,
)

A, B, C = (Choice("rollout", Layout(dp=8 // tp, tp=tp)) for tp in (1, 2, 4))
LONGEST = tuple(range(100, 100 + len(AHEAD)))


def candidate(choice, seconds=1.0, fits=8, cost=2.0, seen=None):
    why_not = "" if fits == 8 else "too small"
    seen = fits > 0 if seen is None else seen
    return Candidate(choice, (seconds,) * 8, "predicted", fits, (fits,), seen, why_not, cost)


def inputs(step, *candidates, remaining=None, **settings):
    return Inputs(step, "rollout", 64, (1.0,) * 8, LONGEST, remaining, candidates, Settings(**settings))


def test_each_step_counts_less_than_the_one_before():
    # Kept with 1/2: the look-aheads stand for steps 1, 2, 3-4, 5-8 …, which count 1, 1/2, 1/4 + 1/8, 1/16 + … + 1/128.
    assert weights(2.0, None)[:4] == pytest.approx([1, 1 / 2, 3 / 8, 15 / 128])
    assert weights(2.0, None).sum() == pytest.approx(2)
    assert weights(0.5, None) == pytest.approx(weights(2.0, None))  # at least two steps
    assert weights(2.0, 2) == pytest.approx([1, 1 / 2, 1 / 4, 0, 0, 0, 0, 0])  # this step and two more
    assert weights(1e9, None) == pytest.approx([1, 1, 2, 4, 8, 16, 32, 64], rel=1e-5)


def test_the_fastest_changes_when_another_is_clearly_faster():
    state = note_fastest(StageState(), inputs(0, candidate(A, 1.0), candidate(B, 2.0)))
    assert (state.fastest, state.reversals, state.steps) == ((A,), 0, 1)
    state = note_fastest(state, inputs(1, candidate(A, 1.0), candidate(B, 0.99)))  # by less than 2 %
    assert (state.fastest, state.steps) == ((A,), 2)
    state = note_fastest(state, inputs(2, candidate(A, 1.0), candidate(B, 0.97)))
    assert (state.fastest, state.reversals) == ((A, B), 0)
    state = note_fastest(state, inputs(3, candidate(A, 0.9), candidate(B, 1.0)))
    assert (state.fastest, state.reversals) == ((B, A), 1)
    state = note_fastest(state, inputs(4, candidate(A, 0.1, fits=0), candidate(B, 1.0)))  # A does not fit
    assert (state.fastest, state.reversals) == ((A, B), 2)
    assert note_fastest(state, inputs(5, candidate(A, fits=0))) == replace(state, steps=6)
    # 100 steps are taken for granted, 20 were seen, and each of three advantages lasted a third of them.
    assert dwell_steps(StageState(steps=20, reversals=2), Settings()) == 40


def test_switches_back_are_forgotten_after_a_hundred_steps():
    state = StageState(backs=(0, 1, 50), left=(PastLayout(A, 0), PastLayout(B, 1)))
    assert note_fastest(state, inputs(100)).backs == (1, 50)
    assert recently_left(state, inputs(100)) == {B}
    assert recently_left(state, inputs(100, back_steps=101)) == {A, B}


def test_a_risk_is_the_loss_while_a_choice_cannot_be_left():
    state = StageState(left=(PastLayout(A, -60, 0.5), PastLayout(B, 10, 0.25)))
    three = (candidate(A), candidate(B), candidate(C))

    def turned(steps):
        """Steps of so many for which the load has turned, when an advantage lasts 100."""
        return steps - 100 * (1 - 0.99**steps)

    assert risks(state, inputs(50, *three), 100) == pytest.approx([0.5 * turned(5), 0.25 * turned(100), 0])
    assert turned(100) == pytest.approx(36.6, abs=0.01)
    back = replace(state, backs=(3, 20))  # no other switch back is free for 70 steps
    assert risks(back, inputs(50, *three), 100) == pytest.approx([0.5 * turned(70), 0.25 * turned(100), 0])
    near = inputs(50, *three, remaining=3)
    assert risks(back, near, 100) == pytest.approx([0.5 * turned(3), 0.25 * turned(3), 0])
    assert risks(state, inputs(50, *three), 1) == pytest.approx(risks(state, inputs(50, *three), 2))


def test_what_hinders_a_switch():
    two = (candidate(A), candidate(B))
    rested = StageState(current=A, since=8)
    assert hindrance(rested, inputs(10, *two), 1, 0.9, 3.0) == "the last switch was at step 8"  # 3 steps lose 2.7 s
    assert hindrance(rested, inputs(10, *two), 1, 1.0, 3.0) == ""
    assert hindrance(rested, inputs(13, *two), 1, 0.0, 3.0) == ""
    assert hindrance(StageState(current=A), inputs(10, *two), 1, 0.0, 3.0) == ""
    lately = StageState(current=A, since=10, left=(PastLayout(B, 10, 0.0, 116),))
    told = "it was left lately, as contexts of 116 tokens were expected, and they have hardly fallen"
    assert hindrance(lately, inputs(50, *two), 1, 1.0, 3.0) == told  # 105 in 16 steps, more than 0.9 x 116 = 104.4
    fallen = replace(lately, left=(PastLayout(B, 10, 0.0, 117),))
    assert hindrance(fallen, inputs(50, *two), 1, 1.0, 3.0) == ""
    assert hindrance(replace(lately, left=(PastLayout(B, 10),)), inputs(50, *two), 1, 1.0, 3.0) == ""
    short = inputs(50, candidate(A), candidate(B, fits=5))  # not in 16 steps any more
    assert hindrance(fallen, short, 1, 1.0, 3.0) == "it was left lately, and may not fit for long"
    shorter = inputs(50, candidate(A, fits=4), candidate(B, fits=5))  # but for as long as any
    assert hindrance(fallen, shorter, 1, 1.0, 3.0) == ""
    told = "it was left lately, and step 30 switched back already"
    assert hindrance(replace(fallen, backs=(20, 30)), inputs(50, *two), 1, 1.0, 3.0) == told


def test_what_is_left_is_kept_once_the_latest_last():
    state = StageState(current=A, left=(PastLayout(A, 1, 9.0), PastLayout(C, 2)))
    two = inputs(7, candidate(A, 2.0, fits=3), candidate(B, 1.5))
    assert past_layouts(state, two, 1, freely=True) == (PastLayout(C, 2), PastLayout(A, 7, 0.5))
    # 103 are the tokens that did not fit in 4 steps.
    assert past_layouts(state, two, 1, freely=False) == (PastLayout(C, 2), PastLayout(A, 7, 0.0, 103))
    slower = inputs(7, candidate(A, 1.0), candidate(B, 1.5))
    assert past_layouts(state, slower, 1, freely=True) == (PastLayout(C, 2), PastLayout(A, 7, 0.0))
    # It fits for all that is known.
    assert past_layouts(state, slower, 1, freely=False) == (PastLayout(C, 2), PastLayout(A, 7, 0.0, None))
    assert past_layouts(state, inputs(7, candidate(B)), 0, freely=True) == (PastLayout(C, 2), PastLayout(A, 7))
    assert past_layouts(replace(state, current=None), two, 1, freely=True) == state.left


def test_the_first_choice_pays_for_its_start():
    # 0.1 s a step over 73 steps are 7.3 s, and starting it costs 1.5 x 10 s more.
    state, decision = decide(StageState(), inputs(0, candidate(A, 1.0, cost=10), candidate(B, 1.1, cost=0)))
    assert (decision.choice, decision.reason, decision.why) == (B, "first", "the cheapest of what fits")
    assert (state.current, state.since, state.left, decision.state) == (B, None, (), StageState())


def test_a_switch_that_pays_says_what_it_saves():
    # Else it would come a step later: 0.5 s and the switch's 1.5 x 2 s.
    state = StageState(current=A)
    after, decision = decide(state, inputs(3, candidate(A, 2.0), candidate(B, 1.5)))
    assert decision.why == (
        "4 x tp2 (predicted) saves 0.5 s a step now and 3.5 s as long as that is expected to last; "
        "the switch is weighed with 3 s"
    )
    assert (after.current, after.since, after.left, after.backs) == (B, 3, (PastLayout(A, 3, 0.5),), ())
    assert (decision.step, decision.stage, decision.before, decision.switched) == (3, "rollout", A, True)
    again, decision = decide(after, inputs(200, candidate(A, 2.0), candidate(B, 1.5)))
    assert (decision.reason, decision.why) == ("stays", "no other choice saves more than the switch to it costs")
    assert (decision.switched, again.current, again.since) == (False, B, 3)


def test_a_choice_has_to_fit_until_a_switch_is_done():
    two = (candidate(A, 1.0, fits=2), candidate(B, 1.1))
    state = StageState(current=A)
    assert decide(state, inputs(0, *two))[1].reason == "forced"  # two steps ahead it does not
    assert decide(state, inputs(0, *two, remaining=1))[1].reason == "stays"  # there is but one more
    assert decide(state, inputs(0, *two, guard_steps=1))[1].reason == "stays"
    gone = decide(state, inputs(0, candidate(A, 1.0, fits=0), candidate(B)))[1]
    assert gone.why == "8 x tp1 does not fit contexts of 100 tokens, expected now: too small"
    both = decide(state, inputs(0, candidate(A, 9.0, fits=1), candidate(B, 1.0, fits=1)))[1]
    assert both.reason == "faster"  # neither fits for long, and both fit as long


def test_where_nothing_fits_what_was_seen_last_decides():
    nothing = "nothing fits contexts of 100 tokens (8 x tp1: too small; 4 x tp2: too small)"
    slow, fast = candidate(A, 2.0, fits=0, seen=True), candidate(B, 1.0, fits=0, seen=True)
    stay = decide(StageState(current=A), inputs(4, slow, fast))[1]
    assert (stay.choice, stay.reason) == (A, "forced")
    assert stay.why == f"{nothing}, but what was seen last does"
    first = decide(StageState(), inputs(4, slow, fast))[1]
    assert (first.choice, first.reason) == (B, "first")
    gone = decide(StageState(current=A), inputs(4, replace(slow, fits_seen=False), fast))[1]
    assert (gone.choice, gone.reason) == (B, "forced")
    with pytest.raises(EarlError) as error:
        decide(StageState(current=A), inputs(4, *(replace(one, fits_seen=False) for one in (slow, fast))))
    cure = "lower context.limit, or give the run more or larger devices"
    assert str(error.value) == f"rollout at step 4: {nothing}; {cure}"


def test_going_back_is_noted():
    state = StageState(current=B, since=10, left=(PastLayout(A, 10),), backs=())
    after, decision = decide(state, inputs(50, candidate(A, 1.0), candidate(B, 2.0)))
    assert (decision.reason, after.backs, after.since) == ("faster", (50,), 50)
    assert np.isfinite(risks(after, inputs(51, candidate(A), candidate(B)), 50)).all()
