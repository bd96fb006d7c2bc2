"""Which points are tried: by memory, and by what the model expects once one point was measured."""

from dataclasses import dataclass, replace

import pytest

from earl.parallel.layout import Choice, Layout
from earl.parallel.memory import Load
from earl.parallel.profile import Point, Timing, spread_of
from earl.profiling.campaign import Expectation, contexts_of, loads_of

SMALL, LARGE, HUGE = (Choice("rollout", Layout(4 // tp, tp)) for tp in (1, 2, 4))


@dataclass
class Model:
    """A token takes as many seconds as the split is wide; only the small one is short of memory."""

    def seconds(self, choice, load):
        return load.mean_tokens * choice.layout.tp

    def obstacle(self, choice, load: Load):
        return "2 GiB of 1 GiB" if choice == SMALL and load.longest_tokens > 100 else ""


def timing(choice, seconds, tokens=100):
    return Timing(Point(choice, tokens, 8), seconds, 0.0, 1, "2026-11-21T03:00:00+00:00")


def test_nothing_is_expected_of_a_layout_before_it_was_measured():
    known = Expectation(Model())
    assert known.seconds(Point(SMALL, 100, 8)) is None
    known.learn(timing(SMALL, 0.5))  # 100 predicted: 0.005 s for each
    assert known.seconds(Point(SMALL, 50, 8)) == pytest.approx(0.25)
    assert known.seconds(Point(LARGE, 100, 8)) is None
    assert known.obstacle(Point(HUGE, 100, 8)) == ""


def test_a_layout_that_would_be_slower_even_if_it_surprised_is_left_once_it_was_tried():
    known = Expectation(Model())
    known.learn(timing(SMALL, 0.25, tokens=50))
    known.learn(timing(SMALL, 0.5))
    assert known.obstacle(Point(HUGE, 100, 8)) == ""  # by the model alone 4 times as slow
    known.learn(timing(HUGE, 0.8, tokens=50))
    said = known.obstacle(Point(HUGE, 100, 8))  # 1.6 s is 3.2 times 0.5 s, above e^0.7 = 2.01
    assert said == "expected to take 1.6 s, more than 2.0 times the 0.5 s of 4 x tp1 (measured)"
    assert known.obstacle(Point(HUGE, 25, 8)) == ""  # nothing was measured at this context
    known.learn(timing(LARGE, 0.5, tokens=50))
    assert known.obstacle(Point(LARGE, 100, 8)) == ""  # 1.0 s is 2.0 times 0.5 s


def test_the_nearest_measurement_of_a_layout_counts():
    known = Expectation(Model())
    known.learn(timing(SMALL, 0.25, tokens=50))
    known.learn(timing(SMALL, 1.0, tokens=100))
    assert known.seconds(Point(SMALL, 25, 8)) == pytest.approx(0.125)  # half of 0.25
    assert known.seconds(Point(SMALL, 90, 8)) == pytest.approx(0.9)  # 0.9 of 1.0


def test_what_does_not_fit_is_not_tried():
    assert Expectation(Model()).obstacle(Point(SMALL, 101, 8)) == "does not fit: 2 GiB of 1 GiB"


def test_contexts_and_loads_follow_from_the_recipe():
    assert contexts_of(1024) == [128, 256, 512, 1024]
    assert contexts_of(40) == [20, 40]  # 10 is below 16
    assert contexts_of(10) == [10]
    assert loads_of(384) == [96, 384]
    assert loads_of(1) == [1]


def test_a_timing_is_json_that_says_where_its_seconds_are_from():
    one = replace(timing(LARGE, 1.5), count=3, spread=0.1)
    assert one.as_object()["origin"] == "measured"


def test_the_spread_is_that_of_a_sample():
    assert spread_of([1.0, 2.0, 3.0]) == (2.0, 1.0)  # (1 + 0 + 1) / (3 - 1)
    assert spread_of([0.25]) == (0.25, 0.0)
