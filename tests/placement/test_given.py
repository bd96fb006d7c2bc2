"""Bytes of weights between hosts: those that are counted, and the fewest that have to go."""

import numpy as np
import pytest
import torch

from earl.dispatch.weights import Weight
from earl.parallel.layout import Layout
from earl.placement.ray.weight_sync import LoadedWeights, WeightManifest, WeightSource

# 8 x 4 numbers of 4 bytes: 128 bytes; and a norm of 4 numbers: 16 bytes.
WEIGHTS = (Weight("a", (8, 4), torch.float32, axis=0), Weight("norm", (4,), torch.float32))


def metrics(layout, ranks, samplers, loaded=()):
    return WeightSource(WeightManifest(WEIGHTS, layout, 1 << 16), (), ranks).metrics(samplers, loaded)


def test_on_one_host_nothing_crosses():
    # A sampler over two processes, which need a half of `a` each, and the norm: 64 + 16 bytes.
    loaded = [LoadedWeights(81, 80, ()), LoadedWeights(80, 80, ("said",))]
    assert metrics(Layout(2), (0, 0), (0,), loaded) == {
        "weights/received_bytes": 161.0,
        "weights/needed_bytes": 160.0,
        "weights/bytes_across": 0.0,
        "weights/bytes_least": 0.0,
        "weights/ratio": 1.0,
    }


def test_a_byte_crosses_once_for_all_samplers_of_a_host():
    # dp 2: each rank has one half, 72 bytes. The samplers' host has neither.
    found = metrics(Layout(2), (0, 1), (2, 2))
    assert found["weights/bytes_across"] == found["weights/bytes_least"] == 144.0


@pytest.mark.parametrize("layout", [Layout(), Layout(2), Layout(1, 2), Layout(2, 2), Layout(3)], ids=str)
@pytest.mark.parametrize("samplers", [(0,), (1, 2), (0, 0, 3)], ids=str)
def test_the_least_is_what_hosts_lack_number_by_number(layout, samplers):
    ranks = tuple(rank % 3 for rank in range(layout.size))
    least = 0
    for host in {*samplers}:
        for weight in WEIGHTS:
            here = np.zeros(weight.shape, bool)
            for rank in [rank for rank in range(layout.size) if ranks[rank] == host]:
                here[layout.box(weight.shape, weight.axis, rank).slices] = True
            least += int((~here).sum()) * weight.dtype.itemsize
    found = metrics(layout, ranks, samplers)
    assert found["weights/bytes_least"] == least
    assert found["weights/bytes_across"] >= least
