"""What the selector makes of what it has seen: the inputs of a decision."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.errors import EarlError
from earl.parallel.layout import Choice, Layout
from earl.parallel.memory import Load
from earl.parallel.selector.decide import AHEAD, Settings, StageState, decide
from earl.parallel.selector.selector import (
    KEPT_STEPS,
    OomBan,
    Selector,
    _never_shrinking,
    inputs_from_json,
    inputs_to_json,
)

SMALL, LARGE = Choice("update", Layout(dp=4)), Choice("update", Layout(dp=2, tp=2))
SEEN = Load(sequences=64, mean_tokens=100.0, longest_tokens=150, limit_tokens=400)


class Costs:
    """A choice takes 1 s per 100 tokens of the longest context, and 2 s in all if it is large; both hold `room`."""

    def __init__(self, room=10_000):
        self.room, self.asked = room, []

    def seconds(self, choice, load):
        self.asked.append(load)
        return load.longest_tokens / 100 if choice == SMALL else 2.0

    def obstacle(self, choice, load):
        return "" if load.longest_tokens <= self.room else f"{load.longest_tokens} of {self.room}"


def begun(costs=None, loads=((0, SEEN),), **fields):
    selector = Selector({"update": [SMALL, LARGE]}, costs or Costs(), {"update": 3.0}, **fields)
    for step, load in loads:
        selector.record_load(step, load)
    return selector


def test_the_inputs_of_a_step():
    steady = [(step, SEEN) for step in range(30)]
    made = begun(loads=steady, steps=40).inputs("update", 30)
    assert (made.step, made.stage, made.sequences, made.remaining, made.settings) == (30, "update", 64, 10, Settings())
    assert made.mean_tokens == pytest.approx((100.0,) * 8, rel=1e-3)
    # 5 % more than the 150 that are expected; much later they may have turned, up to the limit.
    assert made.longest_tokens[:4] == pytest.approx((157,) * 4, abs=1)
    assert sorted(made.longest_tokens) == [*made.longest_tokens] and made.longest_tokens[-1] == 400
    assert begun(loads=steady, steps=7).inputs("update", 30).remaining == 0
    assert begun(loads=steady).inputs("update", 30).remaining is None
    small, large = made.candidates
    # The longest are 1.5 times as long as the mean: 1.5 s and 2 s, both drawn to their mean, as either may be wrong.
    assert small.seconds == pytest.approx((small.seconds[0],) * 8, rel=1e-2) and 1.5 < small.seconds[0] < 3.0**0.5
    assert small.seconds[0] * large.seconds[0] == pytest.approx(3.0, rel=1e-2)
    assert (small.choice, small.origin, small.fits, small.futures, small.fits_seen) == (
        SMALL,
        "predicted",
        8,
        (8,) * 5,
        True,
    )
    assert (small.why_not, small.cost_seconds) == ("", 3.0)


def test_an_expected_context_never_passes_the_limit():
    growing = [(step, replace(SEEN, longest_tokens=100 + 10 * step, limit_tokens=400)) for step in range(30)]
    longest = begun(loads=growing).inputs("update", 29).longest_tokens
    assert longest[0] == 390 and longest[-1] == 400
    failed = begun(loads=growing)
    failed.out_of_memory(SMALL, replace(SEEN, longest_tokens=700, sequences=70), step=29)
    again = failed.inputs("update", 29)  # a step that ran out of memory comes as it came
    assert (again.longest_tokens[0], again.sequences) == (700, 70)
    assert again.candidates[0].fits == 0 and not again.candidates[0].fits_seen
    assert failed.inputs("update", 30).longest_tokens[0] == 400


def test_a_step_is_recorded_once_and_the_oldest_are_dropped():
    selector = begun(loads=[(step, SEEN) for step in range(KEPT_STEPS + 3)])
    loads = selector.state()["loads"]
    assert (len(loads), loads[0][0], loads[-1][0]) == (KEPT_STEPS, 3, KEPT_STEPS + 2)
    selector.record_load(KEPT_STEPS, replace(SEEN, mean_tokens=50.0))  # a step that is done again
    loads = selector.state()["loads"]
    assert (loads[-2][0], loads[-1][0], loads[-1][1]["mean_tokens"]) == (KEPT_STEPS - 1, KEPT_STEPS, 50.0)


def test_times_are_asked_for_contexts_whose_longest_grow_with_the_mean():
    costs = Costs()
    begun(costs, [(step, replace(SEEN, mean_tokens=100.0 + 10 * step)) for step in range(21)]).inputs("update", 20)
    first = costs.asked[0]
    assert (first.mean_tokens, first.longest_tokens) == (150.0, 75) or first.longest_tokens == round(
        first.mean_tokens / 2
    )
    last = costs.asked[len(AHEAD) - 1]
    assert last.longest_tokens == round(0.5 * last.mean_tokens)
    assert (last.sequences, last.limit_tokens) == (64, 400)


def test_measured_choices_are_said_to_be():
    selector = begun()
    selector.measured(LARGE, SEEN, 4.0)
    small, large = selector.inputs("update", 1).candidates
    assert (small.origin, large.origin) == ("predicted", "measured")
    assert large.seconds[0] > 2.5  # twice what was predicted
    selector.measured(LARGE, SEEN, 4.0)
    assert selector.inputs("update", 1).candidates[1].seconds[0] > large.seconds[0]


def test_a_switch_costs_the_mean_of_what_it_took_and_of_what_was_assumed():
    selector = begun()
    for seconds in (9.0, 6.0):
        selector.switched(LARGE, seconds)
    selector.switched(SMALL, 1.0)
    assert [one.cost_seconds for one in selector.inputs("update", 1).candidates] == [2.0, 6.0]  # (3 + 1) / 2, 18 / 3


def test_a_choice_is_barred_for_its_bucket_and_above():
    barred = OomBan(SMALL, Load(64, 300.0, 300, 1000), 3)  # contexts of 257 to 512, loads of 33 to 64
    assert barred.covers(SMALL, Load(33, 1.0, 257, 1000)) and barred.covers(SMALL, Load(200, 1.0, 900, 1000))
    assert not barred.covers(SMALL, Load(32, 1.0, 300, 1000))
    assert not barred.covers(SMALL, Load(64, 1.0, 256, 1000))
    assert not barred.covers(LARGE, Load(64, 1.0, 300, 1000))
    selector = begun()
    selector.out_of_memory(SMALL, Load(64, 300.0, 300, 1000), 3)
    told = "it ran out of memory at step 3 with contexts of 300 tokens"
    assert selector.obstacle(SMALL, Load(64, 1.0, 400, 1000)) == told
    assert selector.obstacle(SMALL, SEEN) == ""
    assert begun(Costs(room=100)).obstacle(LARGE, SEEN) == "150 of 100"


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12).map(sorted), st.integers(0, 55))
def test_bisection_finds_what_a_scan_finds(lengths, room):
    loads = [replace(SEEN, longest_tokens=length) for length in lengths]
    selector = begun(Costs(room))
    fits = sum(length <= room for length in lengths)
    why_not = "" if fits == len(lengths) else f"{lengths[fits]} of {room}"
    assert selector._fits(SMALL, loads) == (fits, why_not)
    assert selector._fits(SMALL, loads, fits) == (fits, why_not)
    assert selector._fits(SMALL, loads, len(loads)) == (len(loads), "")


def test_memory_is_prepared_for_the_longest_mean_so_far():
    loads = [replace(SEEN, mean_tokens=mean) for mean in (3.0, 2.0, 5.0)]
    assert [load.mean_tokens for load in _never_shrinking(loads)] == [3.0, 3.0, 5.0]


def test_a_decision_is_a_line_of_json_and_back():
    made = begun().inputs("update", 1)
    _, decision = decide(StageState(), made)
    text = inputs_to_json(decision)
    assert set(json.loads(text)) == {"inputs", "state"} and ": " not in text and ", " not in text.replace("tp1, ", "")
    assert inputs_from_json(text) == (StageState(), made)
    with pytest.raises(EarlError) as error:
        inputs_from_json("{}")
    told = "a decision's inputs cannot be read ('inputs'); the run is of another earl, use that one"
    assert str(error.value) in (told, told.replace("inputs'", "state'"))
    broken = json.loads(text)
    broken["inputs"]["candidates"][0]["seconds"] = "soon"
    with pytest.raises(EarlError, match=r"a decision's inputs cannot be read \(.+\); the run is of another earl"):
        inputs_from_json(json.dumps(broken))


def test_recomputation_is_offered_where_it_is_needed_or_was_in_use():
    again = Choice("update", SMALL.layout, recompute=True)

    class Memory(Costs):
        def obstacle(self, choice, load):
            return "" if choice == again else super().obstacle(choice, load)

    def offered(room, used=False):
        selector = Selector({"update": [SMALL, again]}, Memory(room), {"update": 3.0})
        selector.record_load(0, SEEN)
        if used:
            selector.measured(again, SEEN, 1.0)
        return [one.choice for one in selector.inputs("update", 1).candidates]

    assert offered(10_000) == [SMALL]
    assert offered(100) == offered(10_000, used=True) == [SMALL, again]
