"""Readers of the same buckets keep step, and whoever is gone holds nobody up for ever."""

from random import Random

import pytest

from earl.placement.ray.weight_sync import PATIENCE_SECONDS, BucketBarrier


class Clock:
    """Goes on when it is told to."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


def test_the_next_bucket_opens_when_all_have_let_go_of_the_last_one():
    steps = BucketBarrier(2)
    assert not steps.come("one", 0), "the other one is still to come"
    assert steps.come("other", 0) and steps.come("one", 0)
    assert not steps.come("one", 1), "the other one reads 0"
    assert steps.come("other", 1) and steps.come("one", 1)
    steps.leave("other")
    assert steps.come("one", 2)


def test_whoever_wants_less_lets_the_others_go_first():
    steps = BucketBarrier(2)
    steps.come("one", 3)
    assert steps.come("other", 0), "the lowest is first"
    assert not steps.come("one", 3)
    assert steps.come("other", 1) and not steps.come("one", 3)
    assert steps.come("other", 3) and steps.come("one", 3)


@pytest.mark.parametrize("dies", ["before", "reading", "waiting"])
def test_nobody_is_waited_for_without_end(dies):
    clock = Clock()
    steps = BucketBarrier(2, clock)
    steps.come("one", 0)
    if dies != "before":
        assert steps.come("other", 0) and steps.come("one", 0)
    if dies == "waiting":
        assert not steps.come("other", 1)
    assert steps.come("one", 1) == (dies == "waiting"), "who died waiting is taken for a reader from then on"
    if dies == "waiting":
        assert not steps.come("one", 2)
    clock.seconds += PATIENCE_SECONDS + 1
    assert steps.come("one", 2)
    for bucket in range(3, 9):
        assert steps.come("one", bucket), "once was enough"
    assert not steps.come("late", 0), "it was replaced, and begins anew"
    assert not steps.come("one", 9), "so that it is waited for"
    assert steps.come("late", 0)


def test_one_bucket_at_a_time_however_readers_drift():
    random = Random(0)
    clock = Clock()
    steps = BucketBarrier(3, clock)
    wanted = {name: sorted(random.sample(range(20), 12)) for name in ("a", "b", "c")}  # none wants all of them
    reading: dict[str, int] = {}
    for _ in range(10_000):
        name = random.choice([*wanted])
        if name in reading:
            del reading[name]
            wanted[name].pop(0)
        if not wanted[name]:
            del wanted[name]
            steps.leave(name)
            if not wanted:
                break
        elif steps.come(name, wanted[name][0]):
            reading[name] = wanted[name][0]
        assert len({*reading.values()}) <= 1
    assert not wanted, "all have come to the end, and nobody's patience was needed"
