"""Decisions against rules that always hold, and against the best schedule there is, found by trying all."""

from functools import cache
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from earl.actions.scheduler import Action, SpeedCurve, schedule


def amdahl(seconds: float, serial: float, widths: tuple[int, ...]) -> SpeedCurve:
    return SpeedCurve(widths, tuple(seconds * (serial + (1 - serial) / width) for width in widths))


def begun_action(cores: int, began: float, ends: float) -> Action:
    curve = SpeedCurve((cores,), (ends - began,))
    return Action(0, "tool", {}, "cores", curve, units=(0,) * cores, began=began, ends=ends)


CURVES = st.builds(
    amdahl,
    st.floats(0.1, 50),
    st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    st.sampled_from([(1,), (1, 2), (1, 2, 4), (2, 4, 8), (4,)]),
)
QUEUES = st.lists(st.tuples(CURVES, st.sampled_from(["cores", "devices"]), st.booleans()), max_size=12)


def queue(drawn: list[tuple[SpeedCurve, str, bool]]) -> list[Action]:
    return [
        Action(number, "tool", {"memory": 2.0} if large else {}, resource, curve)
        for number, (curve, resource, large) in enumerate(drawn)
    ]


def played(actions: list[Action], capacity: dict[str, float]) -> tuple[float, list[int]]:
    """Run a queue that is there at once: the sum of completion times, and the order of beginnings."""
    now, total, begun = 0.0, 0.0, list[int]()
    running: list[Action] = []
    while actions or running:
        free = dict(capacity)
        for action in running:
            free[action.elastic] -= len(action.units)
            for name, units in action.needs.items():
                free[name] -= units
        assert min(free.values()) >= 0, "capacity is exceeded"
        granted = schedule(actions, running, free, capacity, now)
        for action, width in granted:
            assert width in action.curve.widths
            action.units, action.began, action.ends = (0,) * width, now, now + action.curve.at(width)
            running.append(action)
            begun.append(action.number)
        actions = [one for one in actions if one.number not in {*begun}]
        if granted:
            continue
        assert running, "actions wait, and nothing runs"
        running.sort(key=lambda one: one.ends)
        now = running.pop(0).ends
        total += now
    return total, begun


@given(QUEUES)
def test_all_actions_end_within_capacity_and_those_of_one_width_in_their_order(
    drawn: list[tuple[SpeedCurve, str, bool]],
) -> None:
    actions = queue(drawn)
    _, begun = played(actions, {"cores": 8, "devices": 4 if all(c.least <= 4 for c, _, _ in drawn) else 8, "memory": 5})
    assert sorted(begun) == [action.number for action in actions]
    for resource in ("cores", "devices"):
        own = [actions[number] for number in begun if actions[number].elastic == resource]
        narrow = [action.number for action in own if len(action.curve.widths) == 1]
        assert narrow == sorted(narrow)


def test_a_second_action_waits_where_width_pays() -> None:
    # Two of 8 s on 4 cores that share nothing serial: one after the other at four, 2 + 4; at once at two, 4 + 4.
    curve = amdahl(8, 0.0, (1, 2, 4))
    two = [Action(number, "tests", {}, "cores", curve) for number in range(2)]
    cores = {"cores": 4.0}
    assert [(one.number, width) for one, width in schedule(two, [], cores, cores, 0.0)] == [(0, 4)]
    # Where half is serial: 5 + 10 s against 6 + 6.
    slow = amdahl(8, 0.5, (1, 2, 4))
    two = [Action(number, "tests", {}, "cores", slow) for number in range(2)]
    assert [(one.number, width) for one, width in schedule(two, [], cores, cores, 0.0)] == [(0, 2), (1, 2)]


def test_a_large_action_is_not_passed_by_small_ones_after_it() -> None:
    wide, narrow = SpeedCurve((4,), (1.0,)), SpeedCurve((1,), (1.0,))
    waiting = [Action(0, "wide", {"memory": 1.0}, "cores", wide), Action(1, "narrow", {}, "cores", narrow)]
    other = Action(2, "look up", {}, "quota", narrow)
    sharing = Action(3, "look up", {"memory": 1.0}, "quota", narrow)
    free = {"cores": 3.0, "quota": 5.0, "memory": 9.0}
    assert [one.number for one, _ in schedule([*waiting, other, sharing], [], free, free, 0.0)] == [2]


def best_of_all(curves: tuple[SpeedCurve, ...], units: int) -> float:
    """The least sum of completion times of actions that are all there at once, in any order."""

    @cache
    def least(left: tuple[int, ...], running: tuple[tuple[float, int], ...]) -> float:
        """Of what is to come, from the last event on; each running one counts at its end."""
        free = units - sum(width for _, width in running)
        costs = []
        if running:
            first = running[0][0]
            later = tuple((round(ends - first, 9), width) for ends, width in running[1:])
            costs.append(first * (len(left) + len(running)) + least(left, later))
        for number in left:
            curve = curves[number]
            for width, seconds in zip(curve.widths, curve.seconds, strict=True):
                if width <= free:
                    rest = tuple(one for one in left if one != number)
                    costs.append(least(rest, tuple(sorted([*running, (seconds, width)]))))
        return min(costs, default=0.0)

    return least(tuple(range(len(curves))), ())


def test_the_mean_is_near_that_of_the_best_schedule() -> None:
    rng, ratios = Random(1), []
    for _ in range(120):
        units = rng.choice([2, 4])
        widths = (1, 2) if units == 2 else (1, 2, 4)
        curves = tuple(
            amdahl(rng.choice([1.0, 2.0, 5.0, 9.0]), rng.choice([0.0, 0.1, 0.4]), rng.choice([widths, (1,)]))
            for _ in range(rng.randint(2, 4))
        )
        actions = [Action(number, "tool", {}, "cores", curve) for number, curve in enumerate(curves)]
        total, _ = played(sorted(actions, key=lambda one: one.order), {"cores": units})
        ratios.append(total / best_of_all(curves, units))
    assert min(ratios) > 1 - 1e-9
    assert sum(ratios) / len(ratios) < 1.05


def test_an_elastic_action_lets_others_pass_for_as_long_as_it_is_to_run() -> None:
    # 8 s on one core. Two of seventeen cores are free, fifteen more in 0.1 s: 0.1 + 8 / 16 s against 8 / 2 s.
    tests, command = amdahl(8, 0.0, (1, 2, 4, 8, 16)), SpeedCurve((1,), (1.0,))
    waiting = [Action(0, "tests", {}, "cores", tests, 10.0), Action(1, "command", {}, "cores", command, 10.0)]

    def begun(now: float) -> list[int]:
        running = [begun_action(15, now, now + 0.1)]
        return [one.number for one, _ in schedule(waiting, running, {"cores": 2}, {"cores": 17}, now)]

    assert begun(10.0) == [1]
    assert begun(10.4) == [1]
    assert begun(10.5) == []


def test_actions_are_narrower_the_more_others_they_delay() -> None:
    # 8 s on one core, 4.4, 2.6, 1.7 s on 2, 4, 8. Alone an action delays none. Where seven others wait for 8 cores, a
    # core costs them 7/8 s a second: 15, 12.1, 11.7, 13.6 s in all.
    curve = amdahl(8, 0.1, (1, 2, 4, 8))
    tests = [Action(number, "tests", {}, "cores", curve) for number in range(8)]

    def widths(waiting: list[Action]) -> list[int]:
        return [width for _, width in schedule(waiting, [], {"cores": 8}, {"cores": 8}, 0.0)]

    assert (widths(tests[:1]), widths(tests)) == ([8], [4, 4])


def test_those_that_run_make_an_action_narrower_where_hardly_a_unit_is_free() -> None:
    # The same on 64 cores. 40 in use: 40 · (40/64)^4 / 64 = 0.1 s a core and second, 5.0, 3.6, 3.0 s on 2, 4, 8. 56 in
    # use: 56 · (56/64)^4 / 64 = 0.5 s, 8.9, 7.9, 8.7 s.
    tests = [Action(0, "tests", {}, "cores", amdahl(8, 0.1, (1, 2, 4, 8)))]

    def width(used: int) -> int:
        running = [begun_action(1, 0.0, 1.0)] * used
        return schedule(tests, running, {"cores": 64 - used}, {"cores": 64}, 0.0)[0][1]

    assert (width(40), width(56)) == (8, 4)
