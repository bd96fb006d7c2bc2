"""Who runs out of memory is laid out anew and asked again; what ran out is not taken again, and everybody is told."""

import pytest

from earl.errors import EarlError, OutOfMemory
from earl.layouts import Layouts
from earl.parallel.layout import Choice, Layout
from earl.parallel.memory import Load, ModelShape
from earl.parallel.profile import Point, Timing
from earl.parallel.selector.decide import decide
from earl.parallel.selector.selector import inputs_from_json
from earl.placement.peers import WorkerLost
from earl.profiling.kept import Profile
from earl.runs.journal import Clock

SHAPE = ModelShape(100_000, 2, 64, 4, 4, 16, 256, 100, 4096)
LOAD = Load(sequences=8, mean_tokens=90.0, longest_tokens=100, limit_tokens=256)


class Placement:
    """Notes how it is laid out."""

    def __init__(self, config):
        self.config, self.shape, self.laid = config, SHAPE, []

    def lay_out(self, choice, after=None):
        self.laid.append((choice, after))


class Notes:
    """Keeps what is told."""

    def __init__(self):
        self.events, self.decisions = [], []

    def decision(self, decision):
        self.decisions.append(decision)

    def event(self, step, kind, message):
        self.events.append((step, kind, message))


def made(tiny, kind="auto", state=None, **place):
    config = tiny(
        placement={"kind": "colocated", "dp": 2, "samplers": 2, **place},
        learner={"recompute": True},
        selector={"kind": kind},
    )
    placement, notes = Placement(config), Notes()
    layouts = Layouts(placement, notes)
    layouts.restore(state or {}, 0)
    layouts.record_load(1, LOAD)
    return layouts, placement, notes


def failing(*errors):
    """Work that fails so often, then is done."""
    left = list(errors)

    def work():
        if left:
            raise left.pop(0)
        return "done"

    return work


SHORT = OutOfMemory("update", "learner rank 1", "you tried to allocate 4096 bytes")


def test_what_ran_out_is_left_and_the_work_done_again(tiny):
    layouts, placement, notes = made(tiny)
    assert layouts.run_with_oom_retry("update", 1, failing(SHORT)) == "done"
    # dp2 tp1 is what is set; the other ways to use 2 ranks are dp1 tp2 and dp1 cp2
    [(choice, after)] = placement.laid
    assert (choice.stage, choice.layout, after) == ("update", Layout(1, 1, 2), SHORT)
    [(step, kind, message), (_, switched, _)] = notes.events
    assert (step, kind, switched) == (1, "out_of_memory", "layout")
    assert "learner rank 1 ran out of memory during update: you tried to allocate 4096 bytes" in message
    assert "under dp2 tp1, 2048 tokens, recompute with contexts of up to 100 tokens" in message


def test_it_is_not_taken_again_for_such_contexts(tiny):
    layouts, placement, _ = made(tiny)
    layouts.run_with_oom_retry("update", 1, failing(SHORT))
    for step in range(2, 30):
        layouts.record_load(step, LOAD)
        layouts.choose_layout("update", step, Clock())
    assert len(placement.laid) == 1


def test_without_another_layout_the_run_ends_with_all_reasons(tiny):
    layouts, _, notes = made(tiny)
    with pytest.raises(EarlError, match=r"nothing fits contexts of 100 tokens .*dp2 tp1.*; dp1 tp2"):
        layouts.run_with_oom_retry("update", 1, failing(*[SHORT] * 9))
    assert [kind for _, kind, _ in notes.events] == [
        "out_of_memory",
        "layout",
        "out_of_memory",
        "layout",
        "out_of_memory",
    ]


def test_without_a_selector_the_run_ends_with_the_cure(tiny):
    layouts, placement, _ = made(tiny, kind="off")
    with pytest.raises(EarlError, match=r"with contexts of up to 100 tokens; .*selector.kind = 'auto'.*--resume"):
        layouts.run_with_oom_retry("update", 1, failing(SHORT))
    assert not placement.laid


def test_players_who_are_replaced_have_to_play_again(tiny):
    layouts, placement, notes = made(tiny)
    with pytest.raises(WorkerLost, match="is to be played again"):
        layouts.run_with_oom_retry("update", 1, failing(OutOfMemory("rows", "rollout worker 0", "nothing is left")))
    assert placement.laid[0][0].stage == "rollout"
    notes.events.clear()  # a run that goes back to its checkpoint forgets what was told since
    layouts.restore({}, 0)
    [(step, kind, message)] = notes.events
    assert (step, kind) == (0, "out_of_memory")
    assert message.startswith("at step 1: rollout worker 0 ran out of memory during rows")


def test_a_run_that_is_resumed_knows_what_was_barred(tiny):
    layouts, _, _ = made(tiny)
    layouts.run_with_oom_retry("update", 1, failing(SHORT))
    resumed, placement, _ = made(tiny, state=layouts.state())
    resumed.choose_layout("update", 2, Clock())
    assert placement.laid[0][0].layout == Layout(1, 1, 2)


def test_every_decision_is_kept_and_can_be_made_again(tiny):
    layouts, _, notes = made(tiny)
    layouts.run_with_oom_retry("update", 2, failing(SHORT))
    layouts.record_load(2, LOAD)
    layouts.choose_layout("update", 3, Clock())  # how fast these machines are is unknown: the first time was cold
    layouts.run_with_oom_retry("update", 3, failing())
    layouts.choose_layout("update", 4, Clock())
    assert [one.step for one in notes.decisions] == [2, 4]
    assert notes.decisions[0].reason == "forced"
    again = [decide(*inputs_from_json(one.inputs))[1] for one in notes.decisions]
    assert [str(one.choice) for one in again] == [one.choice for one in notes.decisions]


def test_a_run_that_knows_a_profile_takes_the_layout_that_was_measured_faster(tiny):
    layouts, placement, _ = made(tiny)
    before, after = (Choice("update", Layout(*split), 2048, recompute=True) for split in ((2, 1), (1, 2)))
    seconds = {before: 20.0, after: 10.0}  # counted alone, dp1 tp2 would be the slower one
    points = {choice: Point(choice, 90, 8) for choice in seconds}
    timings = {points[c]: Timing(points[c], own, 0.1, 4, "2026-11-21T03:00:00+00:00") for c, own in seconds.items()}
    layouts.take(Profile({}, timings, {after: 0.5}))
    layouts.choose_layout("update", 5, Clock())  # the earliest that it switches
    assert placement.laid == [(after, None)]


def test_what_a_profile_knows_of_other_layouts_is_left(tiny):
    layouts, placement, _ = made(tiny)
    point = Point(Choice("update", Layout(8, 1), 2048), 90, 8)
    layouts.take(Profile({}, {point: Timing(point, 1.0, 0.0, 4, "2026-11-21T03:00:00+00:00")}))
    layouts.choose_layout("update", 5, Clock())
    assert not placement.laid


OWN = Choice("update", Layout(2, 1), 2048, recompute=True)


def tight(tiny, state=None):
    """A budget of a tenth more than is expected of dp2 tp1; and what is expected."""
    expected = made(tiny, memory_gib=1.0)[0]._costs.expected_bytes(OWN, LOAD)
    return made(tiny, state=state, memory_gib=1.1 * expected / 2**30)[0], expected


@pytest.mark.parametrize(("seen", "fits"), [(None, False), (0.5, False), (0.9, True), (1.0, True), (1.1, False)])
def test_what_a_layout_was_seen_to_take_replaces_the_margin(tiny, seen, fits):
    # 1.15 of what is expected as long as nothing is known, then 1.05 of what was seen; half of it is not all there was
    layouts, expected = tight(tiny)
    if seen:
        layouts.record_peak_memory({"values": 1.0, "update": seen * expected, "rollout": 1.0})
    resumed, _ = tight(tiny, layouts.state())
    for own in (layouts, resumed):
        if fits:
            own.choose_layout("update", 2, Clock())
        else:
            with pytest.raises(EarlError, match="nothing fits contexts of"):
                own.choose_layout("update", 2, Clock())


def test_what_was_seen_never_makes_less_of_what_is_expected(tiny):
    layouts, expected = tight(tiny)
    for seen, known in ((0.9, 1.0), (1.08, 1.08), (0.9, 1.08)):
        layouts.record_peak_memory({"update": seen * expected})
        assert [one["times"] for one in layouts.state()["filled"]] == [pytest.approx(known)]


def test_what_two_layouts_took_in_one_step_says_nothing_of_either(tiny):
    layouts, _, _ = made(tiny)
    layouts.run_with_oom_retry("update", 1, failing(SHORT))
    layouts.record_peak_memory({"update": 1e12})
    assert layouts.state()["filled"] == []
    layouts.record_peak_memory({"update": 1e12})
    assert [one["choice"]["layout"]["cp"] for one in layouts.state()["filled"]] == [2]


def test_micro_batches_that_need_as_much_memory_are_not_tried_instead(tiny):
    layouts, _, _ = made(tiny, dp=1, samplers=1)
    under = layouts._current["update"]
    more = [own for own in layouts._candidates["update"] if own.micro_batch_tokens != under.micro_batch_tokens]
    assert more and set(more) < set(layouts._no_smaller(under))  # 8 rows of 100 tokens fill none of them


def test_one_layout_alone_is_told_and_never_decided(tiny):
    layouts, _, notes = made(tiny, dp=1, samplers=1)
    assert layouts.alone() == ["rollout: 1 x tp1 is the only layout there is, so there is nothing to choose"]
    layouts.run_with_oom_retry("rollout", 1, failing())
    for step in range(2, 5):
        layouts.run_with_oom_retry("rollout", step, failing())
        layouts.record_load(step, LOAD)
        layouts.choose_layout("rollout", step, Clock())
    assert not notes.decisions
    assert made(tiny, kind="off")[0].alone() == []
