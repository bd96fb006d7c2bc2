"""Which way is taken, from what ways took."""

from earl.dispatch.transports.choice import AGAIN, KEPT, TRIALS, Pace

EXPECTED = {"objects": 0.004, "peers": 0.003}
TRUE = {"objects": 0.004, "peers": 0.006}


def paced(steps, true=TRUE, expected=EXPECTED):
    pace, taken = Pace(), []
    for _ in range(steps):
        way = pace.pick(expected)
        pace.took(way, expected[way], true[way])
        taken.append(way)
    return pace, taken


def test_both_are_tried_then_the_faster_one_is_taken():
    pace, taken = paced(20)
    assert taken[: 2 * TRIALS].count("peers") == taken[: 2 * TRIALS].count("objects") == TRIALS
    assert set(taken[2 * TRIALS :]) == {"objects"}
    assert pace.settled(EXPECTED) == "objects"
    # peers took 0.006 / 0.003 = 2 times what was expected: at 0.001 s expected, 0.002 s.
    assert pace.seconds({"objects": 0.004, "peers": 0.001}) == {"objects": 0.004, "peers": 0.002}
    assert pace.pick({"objects": 0.004, "peers": 0.001}) == "peers"


def test_nothing_is_settled_before_both_are_tried():
    assert Pace().settled(EXPECTED) is None
    assert paced(2 * TRIALS - 1)[0].settled(EXPECTED) is None


def test_a_way_that_is_expected_to_be_far_slower_is_never_tried():
    pace, taken = paced(60, true={"objects": 1.0, "peers": 0.1}, expected={"objects": 1.0, "peers": 0.1})
    assert set(taken) == {"peers"}
    assert pace.settled({"objects": 1.0, "peers": 0.1}) == "peers"


def test_the_other_way_is_tried_again_now_and_then():
    _, taken = paced(3 * AGAIN)
    assert taken[2 * TRIALS :].count("peers") == 3  # picks 25, 50 and 75


def test_one_slow_time_does_not_change_the_way():
    pace, _ = paced(20)
    pace.took("objects", 0.004, 0.4)
    assert pace.pick(EXPECTED) == "objects"


def test_ways_that_cannot_be_told_apart_are_tried_more_often():
    # objects take 3, 4, 5, 3, … ms, peers 3.5, 4.5, 5.5, …: quartiles of the last ones overlap.
    pace, taken, expected = Pace(), [], {"objects": 0.004, "peers": 0.004}
    for _ in range(2 * KEPT):
        way = pace.pick(expected)
        count = taken.count(way)
        pace.took(way, 0.004, 0.003 + 0.001 * (count % 3) + 0.0005 * (way == "peers"))
        taken.append(way)
    assert taken[: 2 * KEPT - 1].count("objects") >= KEPT - 1
    assert taken.count("peers") == KEPT
    assert pace.settled(expected) == pace.best(expected) == "objects"


def test_times_far_apart_are_told_apart_by_three_each():
    # 3, 4, 5 ms against 9, 10, 11 ms.
    pace, expected = Pace(), {"objects": 0.004, "peers": 0.004}
    for count in range(TRIALS):
        pace.took("objects", 0.004, 0.003 + 0.001 * count)
        pace.took("peers", 0.004, 0.009 + 0.001 * count)
    assert pace.settled(expected) == "objects"
