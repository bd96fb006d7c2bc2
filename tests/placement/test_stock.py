"""Weights that samplers draw bucket by bucket: the same to the bit, and never a second time in memory."""

import threading
import time

import pytest
import torch

from earl.config import ModelConfig
from earl.engine.model import make, tensors_once
from earl.parallel.layout import Layout
from earl.placement.cluster.offer import described
from earl.placement.cluster.stock import KEPT, Drawn, Stock
from tests.placement.test_offer import held

MODEL = ModelConfig(hidden=256, layers=8, heads=4, head_dim=64, intermediate=768)
BUCKET = 1 << 18
LAYOUT = Layout(2, 2)


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=1, object_store_memory=200 << 20, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


class Rank:
    """A learner rank."""

    def __init__(self, rank):
        own = held(make(MODEL, seed=3).model, LAYOUT, rank)
        self._known = described(own, BUCKET)
        self._stock = Stock(lambda: own, rank, self._known, readers=2)

    def described(self):
        return self._known

    def bucket(self, number):
        return [self._stock.bucket(number)]


class Sampler:
    """Loads, and compares."""

    def load(self, drawn):
        expected, taken = tensors_once(make(MODEL, seed=3).model), drawn.taken()
        same = [*taken] == [*expected]
        for name, tensor in expected.items():
            same &= torch.equal(taken[name], tensor)
            time.sleep(0.1)  # Ray gives memory back once a second
        return same


class Store:
    """The most bytes in the object store, looked at again and again."""

    def __init__(self, node):
        self.most, self._go = 0, True
        self._where = node["NodeManagerAddress"], node["NodeManagerPort"]

    def __enter__(self):
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._go = False
        self._thread.join()

    def _look(self):
        from ray._private.internal_api import node_stats

        while self._go:
            self.most = max(self.most, node_stats(*self._where, False).store_stats.object_store_bytes_used)
            time.sleep(0.002)


@pytest.mark.slow
def test_samplers_draw_all_weights_and_the_store_never_has_them_all(ray):
    remote = ray.remote(num_cpus=0)
    ranks = [remote(Rank).remote(rank) for rank in range(LAYOUT.size)]
    drawn = Drawn(ray.get(ranks[0].described.remote()), tuple(ranks))
    total = sum(tensor.nbytes for tensor in tensors_once(make(MODEL, seed=3).model).values())
    samplers = [remote(Sampler).remote() for _ in range(2)]
    with Store(ray.nodes()[0]) as store:
        assert ray.get([sampler.load.remote(drawn) for sampler in samplers]) == [True, True]
    # Those that the samplers are at, three where a tensor lies in as many, and those of the second before Ray deletes
    # what nobody refers to (later where the machine is busy): 108 of them come in ten seconds.
    assert 0 < store.most < total / 2


@pytest.mark.slow
def test_a_bucket_is_packed_once_for_all_who_come_in_time(ray):
    own = held(make(MODEL, seed=3).model, LAYOUT, 0)
    packed = []
    stock = Stock(lambda: packed.append(1) or own, 0, described(own, BUCKET), readers=2)
    first = stock.bucket(0)
    assert stock.bucket(0) == first and len(packed) == 1
    assert stock.bucket(0) != first, "both had it, and it was let go of"
    for number in range(1, KEPT + 1):
        stock.bucket(number)
    assert len(packed) == 2 + KEPT
    stock.bucket(1)
    assert len(packed) == 2 + KEPT
    stock.bucket(0)
    assert len(packed) == 3 + KEPT, "the oldest had to make room, whoever still wants it"
