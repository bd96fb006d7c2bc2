"""Tests of the branches that only CUDA runs. A test that takes `device` runs on the CPU too, as its stand-in there."""

import sys

import pytest
import torch

from earl.benchmarks.layouts import batch, free_port
from earl.engine.ranks import Ranks
from earl.engine.sharding.mesh import joined_mesh
from earl.engine.sharding.shards import Shards
from earl.parallel.layout import Layout
from earl.placement.peers import Peers
from tests.gpu.small import learner_of


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request):
    return torch.device(request.param)


@pytest.fixture
def mesh(device, monkeypatch):
    """A grid of this process alone, on the device."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    with joined_mesh(0, Layout(), "127.0.0.1", free_port(), str(device)) as joined:
        yield joined


@pytest.fixture
def sharded(mesh):
    """Makes a learner of this process alone, sharded and on the device, with some of [learner]'s settings."""
    return lambda **settings: learner_of(Shards(mesh), **settings)


@pytest.fixture
def plain():
    """Makes the same learner as a whole copy on the CPU, in float32."""
    return lambda **settings: learner_of(Ranks(Peers()), **settings)


@pytest.fixture
def rows():
    """Six rows of five lengths, in several micro-batches."""
    return batch([40, 33, 33, 17, 9, 25], prompt=4)
