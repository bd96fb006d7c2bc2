"""Simulated time against arithmetic by hand, and the cells of services."""

from random import Random

import pytest

from earl.actions.queue import ActionQueue, Cells, Durations, Rate, ToolCost
from earl.actions.scheduler import SpeedCurve
from earl.actions.simulator import HOLD, SimulatedCall, simulate
from earl.benchmarks.actions import CASES
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


def test_a_service_stays_until_another_needs_its_devices() -> None:
    cells, curve = Cells(4, 2.0), SpeedCurve((2,), (1.0,))
    first = cells.take("one", curve, 2)
    second = cells.take("two", curve, 2)
    assert first is not None and second is not None
    assert (first.units, first.ready_seconds, second.units) == ((0, 1), 1.0, (2, 3))
    assert cells.take("three", curve, 2) is None
    cells.give(second)
    cells.give(first)
    again = cells.take("one", curve, 2)
    assert again is not None and again.ready_seconds == 0.0
    cells.give(again)
    other = cells.take("three", curve, 2)  # in place of two, used longer ago
    assert other is not None and other.units == (2, 3)


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
        order.append(run.action.number)
        queue.end(run.action.number, 6.0)
    assert order == [2, 1, 3, 0]


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
