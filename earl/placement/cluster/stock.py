"""Weights that samplers draw from the ranks bucket by bucket, so that nobody ever has them a second time.

    sampler: the bucket that it has come to ─▶ rank: packs it, keeps it until all have it ─▶ object store ─▶ sampler

Where learner and samplers take turns on a device, the learner's shards lie in host memory meanwhile, and are packed
there: a device has what the sampler loads, and beside it a bucket, KEPT at most. Only for samplers
that load while the learner waits: what is packed are the weights as they are now.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from earl.dispatch.carry import Hand
from earl.dispatch.messages import Bytes
from earl.dispatch.tensors import Tensors
from earl.engine.keeping import Held
from earl.placement.cluster.budget import aside
from earl.placement.cluster.offer import Described, Fetched, Reference

KEPT = 8
"""Buckets that lie in the object store at most. Those that all samplers have asked for are let go of."""


class Stock:
    """What one rank gives, each bucket packed when it is asked for.

    Args:
        held: the rank's boxes, wherever they lie at the moment.
        readers: how many processes load weights.
    """

    def __init__(self, held: Callable[[], Held], rank: int, described: Described, readers: int) -> None:
        self._held, self._readers = held, readers
        self._rank, self._reader = rank, described.layout.size
        self._plan = described.plan
        self._moves = self._plan.of(rank)
        self._kept: OrderedDict[int, Reference] = OrderedDict()
        self._asked: Counter[int] = Counter()

    def bucket(self, number: int) -> Reference:
        """A bucket in the object store, there as long as somebody refers to it."""
        reference = self._kept.get(number)
        if reference is None:
            reference = self._packed(number)
            while len(self._kept) >= KEPT:
                self._kept.popitem(last=False)
            self._kept[number] = reference
        self._asked[number] += 1
        if self._asked[number] % self._readers == 0:
            del self._kept[number]
        return reference

    def _packed(self, number: int) -> Reference:
        shelf = Tensors({name: part.numbers for name, part in self._held().parts.items()})
        packed = Hand(self._plan, self._rank, shelf, Tensors()).pack(self._moves[number])
        with aside():
            return ray.put(packed[self._reader])


@dataclass(frozen=True, slots=True)
class Drawn:
    """Weights that lie with the ranks."""

    described: Described
    ranks: tuple[Any, ...]
    """The actors."""

    def taken(self) -> Fetched:
        """The weights, drawn as they are asked for, tensor by tensor."""
        return Fetched(self)

    def fetch(self, wanted: Sequence[tuple[int, int]]) -> list[Bytes]:
        """Messages by rank and bucket. Raises what Ray raises when a rank is gone."""
        asked = [self.ranks[rank].bucket.remote(bucket) for rank, bucket in wanted]
        messages: list[Bytes] = ray.get([reference for (reference,) in ray.get(asked)])
        return messages
