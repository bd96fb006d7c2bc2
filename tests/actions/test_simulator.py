"""Simulated time against arithmetic by hand, and the cells of services."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.actions.queue import ActionQueue, Cells, Durations, Rate, ToolCost
from earl.actions.scheduler import SpeedCurve
from earl.actions.simulator import HOLD, SimulatedCall, simulate
from earl.benchmarks.actions import CASES, HELD_CORES
from earl.errors import EarlError


def test_two_trajectories_share_a_core_call_by_call() -> None:
    # Each generates 1 s, calls for 2 s, generates 3 s, calls for 2 s. The second's calls wait 2 s and then nothing:
    # ends at 8 and at 10 s.
    calls = [SimulatedCall("run", 1.0, 2.0), SimulatedCall("run", 3.0, 2.0)]
    queue = ActionQueue({"cores": 1}, {"run": ToolCost("cores")})
    played = simulate([calls, calls], lambda _, tool: None if tool == HOLD else queue)
    assert played.seconds == pytest.approx(10.0)
    assert played.queue == pytest.approx(2.0 / 4)
    assert played.completion == pytest.approx(2.0 + 2.0 / 4)
    held = ActionQueue({"cores": 1}, {HOLD: ToolCost("cores")})
    played = simulate([calls, calls], lambda _, tool: held if tool == HOLD else None)
    assert played.seconds == pytest.approx(16.0)
    assert played.completion == pytest.approx(2.0 + 8.0 / 4)


def test_a_rate_is_kept() -> None:
    # Ten calls at once, two a second, the first at once: the last begins at 4.5 s.
    queue = ActionQueue({"slots": 9}, {"search": ToolCost("slots", (1,), {"rate": 1.0})}, {"rate": Rate(2.0)})
    played = simulate([[SimulatedCall("search", 0.0, 1.0)]] * 10, lambda _, tool: None if tool == HOLD else queue)
    assert played.seconds == pytest.approx(5.5, abs=1e-3)


def test_a_service_stays_until_another_needs_its_memory() -> None:
    # Two devices have memory for two services that are spread over both, one of which runs at a time.
    cells, curve = Cells(2, 2.0), SpeedCurve((2,), (1.0,))

    def ready_seconds(tool: str) -> float:
        units, ready = cells.take(tool, curve, 2)
        assert units == (0, 1)
        assert cells.take("another", curve, 2) is None
        cells.give(units)
        return ready

    assert [ready_seconds(tool) for tool in ("one", "two", "one", "two", "one")] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert ready_seconds("three") == 1.0  # in place of two, used longer ago
    assert [ready_seconds(tool) for tool in ("one", "two")] == [0.0, 1.0]


def test_a_service_is_loaded_where_none_has_to_leave() -> None:
    cells, curve = Cells(4, 2.0), SpeedCurve((1, 2), (1.5, 1.0))
    taken = [cells.take("one", curve, 1), cells.take("two", curve, 1)]
    assert taken == [((0,), 2.0), ((1,), 2.0)]
    third = cells.take("three", curve, 2)  # 2 s with what its loading takes, 3.5 s on one device
    assert third == ((2, 3), 1.0)
    for units, _ in (*taken, third):
        cells.give(units)
    assert cells.take("four", curve, 2) == ((2, 3), 1.0)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 2, 4, 8]), st.booleans()), max_size=60))
def test_cells_in_use_are_apart_and_services_fit_the_memory(calls: list[tuple[int, int, bool]]) -> None:
    cells, held = Cells(11, 1.0), list[tuple[int, ...]]()
    for tool, width, ends in calls:
        if ends and held:
            cells.give(held.pop(0))
        place = cells.take(f"{tool}", SpeedCurve((1, 2, 4, 8), (8.0, 4.4, 2.6, 1.7)), width)
        held += [place[0]] if place else []
        used = [device for units in held for device in units]
        assert len(used) == len({*used}) and {*used} <= {*range(11)}
        assert all(units[0] % len(units) == 0 for units in held)
        assert {*held} <= {cell for _, cell in cells.resident}
        for device in range(11):
            assert sum(1 / len(cell) for _, cell in cells.resident if device in cell) <= 1


def test_durations_are_learned_by_width() -> None:
    durations, rng = Durations(), Random(0)
    for _ in range(400):
        width = rng.choice([1, 2, 4])
        durations.add("tests", width, (2.0 + 8.0 / width) * rng.uniform(0.9, 1.1))
    curve = durations.curve("tests", (1, 2, 4, 8))
    assert curve.seconds == pytest.approx((10.0, 6.0, 4.0, 3.0), rel=0.05)


def test_calls_that_still_run_count_in_what_is_expected() -> None:
    # One call of 2 s has ended, three others have run for 6 s: (2 + 18) s for one that ended.
    durations = Durations()
    for _ in range(4):
        durations.begin("tests", 1, 10.0)
    durations.end("tests", 1, 10.0, 12.0)
    assert durations.curve("tests", (1,), 16.0).seconds == pytest.approx((20.0,))


def test_calls_of_a_trajectory_that_began_earlier_go_first() -> None:
    queue = ActionQueue({"cores": 1}, {"run": ToolCost("cores")})
    for number, since in enumerate([None, 3.0, 1.0, 3.0]):
        queue.ask(number, "run", 5.0, since)
    order = []
    while queue.waiting:
        (run,) = queue.begin(5.0)
        order.append(run.number)
        queue.end(run.number, 6.0)
    assert order == [2, 1, 3, 0]


def test_a_short_call_passes_a_long_one_that_came_a_tenth_of_its_seconds_before() -> None:
    durations = Durations()
    for _ in range(100):
        durations.add("tests", 1, 60.0)
        durations.add("command", 1, 1.0)
    costs = {"tests": ToolCost("cores"), "command": ToolCost("cores")}
    queue = ActionQueue({"cores": 1}, costs, durations=durations)
    for number, (tool, now) in enumerate([("tests", 0.0), ("command", 5.8), ("command", 6.0)]):
        queue.ask(number, tool, now)
    # 0 + 60/10 s, 5.8 + 1/10 s, 6 + 1/10 s
    assert [one.number for one in queue.waiting] == [1, 0, 2]


def test_a_call_that_can_never_begin_is_refused() -> None:
    with pytest.raises(EarlError, match="takes more cores than the 2 that there is"):
        ActionQueue({"cores": 2}, {"run": ToolCost("cores", (4,))}).ask(1, "run", 0.0)


@pytest.mark.parametrize("name", CASES)
def test_elastic_calls_end_sooner_than_with_resources_held(name: str) -> None:
    case = CASES[name]
    drawn = case.draw(100, 1)
    share = 0.5 if name == "teachers" else 0.08
    elastic = simulate(drawn, *case.arms["elastic"](share))
    held = simulate(drawn, *case.arms[case.baseline](share))
    assert len(elastic.done) == sum(map(len, drawn))
    assert elastic.completion < held.completion


def test_ten_devices_do_for_nine_teachers_as_well_as_published() -> None:
    # 0.621 + 0.081 + 0.201 s at 2,048 trajectories, 0.705 + 15.05 + 0.240 s at 3,072, where many more wait; the
    # workload was fitted to these with LRU and first come first served.
    case = CASES["teachers"]
    for batch, published in ((2048, 0.903), (3072, 15.995)):
        assert simulate(case.draw(batch, 0), *case.arms["elastic"](10 / 40)).completion < published


def test_twelve_devices_do_for_nine_teachers_what_four_for_each_do() -> None:
    # 1 - 12 / 36 of the devices are saved.
    case = CASES["teachers"]
    drawn = case.draw(2048, 0)
    held = simulate(drawn, *case.arms[case.baseline](1.0))
    assert simulate(drawn, *case.arms["elastic"](12 / 40)).completion < held.completion


def test_sandboxes_held_are_in_use_as_much_as_published() -> None:
    drawn = [call for calls in CASES["coding"].draw(1280, 0) for call in calls]
    used = sum(call.on(HELD_CORES) for call in drawn)
    assert used / (used + sum(call.after for call in drawn)) == pytest.approx(0.47, abs=0.01)


def test_a_call_whose_service_is_loaded_passes_one_that_would_have_to_be_loaded() -> None:
    # A device has memory for one service, whose loading takes 2 s: a call of the other one is passed by those that come
    # up to 4 s later.
    costs = {"one": ToolCost("devices"), "two": ToolCost("devices")}
    queue = ActionQueue({"devices": 1}, costs, places={"devices": Cells(1, 2.0)})
    queue.ask(0, "one", 0.0)
    (run,) = queue.begin(0.0)
    for number, (tool, now) in enumerate([("two", 1.0), ("one", 4.9), ("one", 5.1)], 1):
        queue.ask(number, tool, now)
    order = []
    while queue.waiting:
        queue.end(run.number, 6.0)
        (run,) = queue.begin(6.0)
        order.append(run.number)
    assert order == [2, 1, 3]
