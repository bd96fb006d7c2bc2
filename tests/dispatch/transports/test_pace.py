"""Which way is taken, from what ways took."""

from earl.dispatch.transports.base import AGAIN, KEPT, TRIALS, Pace

TRUE = {"objects": 0.004, "peers": 0.006}


def paced(steps, true=TRUE, pace=None):
    pace, taken = pace or Pace(*TRUE), []
    for _ in range(steps):
        way = pace.pick()
        pace.took(way, true[way])
        taken.append(way)
    return pace, taken


def test_both_are_tried_then_the_faster_one_is_taken():
    pace, taken = paced(20)
    assert taken[: 2 * TRIALS] == ["objects", "peers"] * TRIALS
    assert set(taken[2 * TRIALS :]) == {"objects"}
    assert pace.chosen == "objects" and pace.medians == TRUE


def test_nothing_is_chosen_before_both_are_tried():
    assert not Pace(*TRUE).chosen
    assert not paced(2 * TRIALS - 1)[0].chosen


def test_the_other_way_is_tried_again_now_and_then():
    _, taken = paced(3 * AGAIN)
    assert taken[2 * TRIALS :].count("peers") == 3  # picks 25, 50 and 75
    _, taken = paced(AGAIN, pace=paced(40 * KEPT)[0])
    assert taken.count("peers") == 1


def test_one_slow_time_does_not_change_the_way():
    pace, _ = paced(20)
    pace.took("objects", 0.4)
    assert pace.pick() == "objects"


def test_a_way_that_becomes_faster_is_found():
    pace, taken = paced(40 * AGAIN, {"objects": 0.004, "peers": 0.001}, paced(20)[0])
    assert pace.chosen == "peers" and taken[-AGAIN:].count("peers") == AGAIN - 1


def test_ways_that_are_about_equal_do_not_take_turns():
    pace, _ = paced(20)
    _, taken = paced(20 * AGAIN, {"objects": 0.004, "peers": 0.0039}, pace)
    assert taken.count("peers") == 20
