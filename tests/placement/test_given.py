"""Bytes of weights between hosts: those that are counted, and the fewest that have to go."""

import numpy as np
import pytest

from earl.dispatch.weights import Copies, Weight, plan_weights
from earl.parallel.layout import Layout
from earl.placement.ray.weight_sync import WeightManifest, given

# 8 x 4 numbers of 4 bytes: 128 bytes; and a norm of 4 numbers: 16 bytes.
WEIGHTS = (Weight("a", (8, 4), 4, given=0), Weight("norm", (4,), 4))


def described(layout):
    return WeightManifest(WEIGHTS, ("float32", "float32"), layout, 1 << 16)


def test_on_one_host_nothing_crosses():
    assert given(described(Layout(2)), (0, 0), (0,)) == {
        "weights/bytes": 144.0,
        "weights/bytes_across": 0.0,
        "weights/bytes_least": 0.0,
        "weights/ratio": 1.0,
    }


def test_a_byte_crosses_once_for_all_samplers_of_a_host():
    # dp 2: each rank has one half, 72 bytes. The samplers' host has neither; both load 144 bytes.
    found = given(described(Layout(2)), (0, 1), (2, 2))
    assert found["weights/bytes"] == 288.0
    assert found["weights/bytes_across"] == found["weights/bytes_least"] == 144.0


@pytest.mark.parametrize("layout", [Layout(), Layout(2), Layout(1, 2), Layout(2, 2), Layout(3)], ids=str)
@pytest.mark.parametrize("samplers", [(0,), (1, 2), (0, 0, 3)], ids=str)
def test_the_least_is_that_of_a_plan(layout, samplers):
    ranks = tuple(rank % 3 for rank in range(layout.size))
    target = Copies(Layout(), tuple((layout.size + number,) for number in range(len(samplers))))
    source = Copies(layout, (tuple(range(layout.size)),))
    plan = plan_weights(WEIGHTS, source, target, np.array([*ranks, *samplers]), 1 << 16)
    found = given(described(layout), ranks, samplers)
    assert found["weights/bytes_least"] == plan.volume().least.sum()
    assert found["weights/bytes_across"] >= found["weights/bytes_least"]
