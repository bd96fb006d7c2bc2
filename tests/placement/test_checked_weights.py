"""Weights that arrive damaged are named, and sent again."""

import pytest
import torch

from earl.dispatch.transports.base import Corrupted
from earl.engine.model import make, tensors_once
from earl.parallel.layout import Layout
from earl.placement.ray.learner import WeightServer
from earl.placement.ray.memory_budget import Budget
from earl.placement.ray.weight_sync import BucketBarrier, BucketStore, WeightReader, WeightSource, manifest_of
from tests.placement.test_offer import BUCKET, MODEL, held

LAYOUT = Layout(2)


class Rank(WeightServer):
    """A learner rank without a learner, of whose second bucket a bit flips on the way the first so many times."""

    def __init__(self, rank, damaged, checksums):
        own = held(make(MODEL, seed=3).model, LAYOUT, rank)
        self._damaged, self._budget, self._manifest = damaged, Budget(None), manifest_of(own, BUCKET)
        self._barrier = BucketBarrier(1)
        self._buckets = BucketStore(lambda: own, rank, self._manifest, 1, checksums)

    def bucket(self, number, again=False):
        return [self._flipped(own) if number == 1 and own else own for own in super().bucket(number, again)]

    def manifest(self):
        return self._manifest

    def _flipped(self, reference):
        import ray

        if not self._damaged:
            return reference
        self._damaged -= 1
        message = ray.get(reference).copy()
        message[7] ^= 1
        return ray.put(message)


def taken(ray, damaged, checksums=True):
    """Weights from two ranks, the second of which sends damaged ones so often: are they the same, what was said."""
    kind = ray.remote(concurrency_groups={"health": 1, "saving": 1})(Rank).options(num_cpus=0)
    ranks = tuple(kind.remote(rank, damaged * rank, checksums) for rank in range(LAYOUT.size))
    read = WeightReader(WeightSource(ray.get(ranks[0].manifest.remote()), ranks, checksums=checksums))
    expected = tensors_once(make(MODEL, seed=3).model)
    return all(torch.equal(read[name], tensor) for name, tensor in expected.items()), read.damaged


@pytest.mark.slow
def test_a_flipped_bit_is_named_and_the_bucket_is_sent_again(ray):
    assert taken(ray, damaged=0) == (True, [])
    same, said = taken(ray, damaged=2)
    assert same and len(said) == 2
    assert said[0].startswith("bucket 1 of the weights of learner rank 1 arrived damaged")
    with pytest.raises(Corrupted, match=r"learner rank 1 arrived damaged.* checksum differs; this was tried 3 times"):
        taken(ray, damaged=3)
    # Unasked for, nobody looks.
    assert taken(ray, damaged=1, checksums=False) == (False, [])
