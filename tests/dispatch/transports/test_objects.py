"""Transfers through Ray's object store, with real actors."""

import time

import numpy as np
import pytest

from earl.dispatch.plan import plan
from earl.dispatch.rows import columns, spread
from earl.dispatch.transports.base import Corrupted, ProcessLost
from earl.dispatch.transports.objects import offer, references_for, take
from earl.parallel.layout import Layout
from tests.dispatch.simulated import filled

pytestmark = pytest.mark.slow


class Worker:
    """One process of a transfer."""

    def __init__(self, transfer, process):
        self.transfer, self.process = transfer, process
        self.held = filled(transfer, transfer.source, process)

    def offer(self):
        return offer(self.transfer, self.process, self.held, checksums=True)

    def take(self, references):
        return take(self.transfer, self.process, references, self.held, checksums=True, seconds=20)


@pytest.fixture(scope="module")
def transfer():
    """dp 2 on processes 0 and 1 of host 0, to dp 1, tp 2, cp 2 on processes 2 to 5 of host 1."""
    lengths = np.array([5, 900, 0, 33])
    source = spread(Layout(2), [0, 1], [0, 1, 0, 1])
    target = spread(Layout(tp=2, cp=2), [2, 3, 4, 5], [0, 0, 0, 0])
    return plan(lengths, columns(["tokens", "mask"]), source, target, np.array([0, 0, 1, 1, 1, 1]))


def test_consumers_take_their_part_of_one_object_per_host(ray, transfer):
    workers = [ray.remote(Worker).remote(transfer, process) for process in range(6)]
    offered = dict(enumerate(ray.get([worker.offer.remote() for worker in workers])))
    # Each of the two producers makes one object, for host 1; consumers make none.
    assert {source: [*made] for source, made in offered.items() if made} == {0: [1], 1: [1]}
    sizes = [len(ray.get(offered[source][1])) - 4 for source in (0, 1)]
    assert sizes == [5 * 5, (900 + 33) * 5]  # five bytes a token, once for four consumers
    takes = [
        worker.take.remote(references_for(transfer.hosts, process, offered)) for process, worker in enumerate(workers)
    ]
    for process, shard in enumerate(ray.get(takes)):
        whole = filled(transfer, transfer.target, process)
        for name in transfer.columns:
            assert np.array_equal(shard.columns[name], whole.columns[name])


def test_a_damaged_object_and_a_lost_producer_are_named(ray, transfer):
    held = filled(transfer, transfer.source, 2)
    workers = [ray.remote(Worker).remote(transfer, process) for process in range(2)]
    offered = [ray.get(worker.offer.remote())[1] for worker in workers]
    damaged = ray.get(offered[1]).copy()
    damaged[7] ^= 1
    with pytest.raises(Corrupted, match=r"what process 1 \(host 0\) offered to process 2 \(host 1\)"):
        take(transfer, 2, {0: offered[0], 1: ray.put(damaged)}, held, checksums=True)
    ray.kill(workers[0])
    end = time.monotonic() + 60
    with pytest.raises(ProcessLost, match=r"what process 0 \(host 0\) offered is lost"):
        while time.monotonic() < end:  # until Ray has noticed
            take(transfer, 2, {0: offered[0], 1: offered[1]}, held, checksums=True, seconds=20)
