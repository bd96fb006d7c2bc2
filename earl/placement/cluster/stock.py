"""Weights that samplers draw from the ranks bucket by bucket, so that nobody ever has them a second time.

    sampler: the bucket that it has come to ─▶ rank: packs it, keeps it until the next one ─▶ object store ─▶ sampler

Where learner and samplers take turns on a device, the learner's shards lie in host memory meanwhile, and are packed
there. All samplers are at the same bucket (lockstep.py), and all that the ranks give in it together is a bucket at
most: this is what lies in the object stores, with what Ray has not deleted yet of the one before; and for a moment,
while a rank packs and Ray copies, the rank's part of it is in its own memory too (twice, where it gets a checksum). Ray
deletes within milliseconds where `free_objects_batch_size` is 1, as in a cluster of earl's own, else once a second.
A sampler that the others have given up waiting for is at another bucket, which is one more. Only for samplers that load
while the learner waits: what is packed are the weights as they are now.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import ray

from earl.dispatch.carry import Hand
from earl.dispatch.messages import Bytes
from earl.dispatch.tensors import Tensors
from earl.engine.keeping import Held
from earl.placement.cluster.described import Described
from earl.placement.cluster.fetched import Fetched
from earl.placement.cluster.offer import Reference, put

SOON_SECONDS, LATER_SECONDS = 0.001, 0.05
"""Between two questions whether a bucket may be read: at first, and at most."""


class Stock:
    """What one rank gives, each bucket packed when it is asked for.

    Args:
        held: the rank's boxes, wherever they lie at the moment.
        readers: how many processes load weights.
        checksums: whether each message has its checksum behind it.
    """

    def __init__(
        self, held: Callable[[], Held], rank: int, described: Described, readers: int, checksums: bool = False
    ) -> None:
        self._held, self._rank, self._readers, self._checksums = held, rank, readers, checksums
        self._reader, self._plan = described.layout.size, described.plan
        self._moves = self._plan.of(rank)
        self._number = -1
        self._kept: Reference | None = None
        self._gone = 0

    def bucket(self, number: int, again: bool = False) -> Reference | None:
        """A bucket in the object store, in place of the one before; None: this rank gives nothing in it.

        Args:
            again: whether to pack it anew.
        """
        if number != self._number or again or self._kept is None:
            self._kept = None
            self._number, self._kept = number, self._packed(number)
        return self._kept

    def leave(self) -> None:
        """A reader has all that it wants; when none is left, nothing is kept."""
        self._gone += 1
        if self._gone >= self._readers:
            self._kept = None

    def _packed(self, number: int) -> Reference | None:
        moves = self._moves[number]
        if not moves:
            return None
        shelf = Tensors({name: part.numbers for name, part in self._held().parts.items()})
        return put(Hand(self._plan, self._rank, shelf, Tensors()).pack(moves)[self._reader], self._checksums)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Weights that lie with the ranks."""

    described: Described
    ranks: tuple[Any, ...]
    """The actors; the first one says who reads when."""
    checksums: bool = False

    def taken(self) -> Fetched:
        """The weights, drawn as they are asked for, tensor by tensor."""
        return Fetched(Drawing(self.described, self.ranks, self.checksums, uuid4().hex))


@dataclass(frozen=True, slots=True)
class Drawing:
    """One reader's way through the buckets."""

    described: Described
    ranks: tuple[Any, ...]
    checksums: bool
    name: str
    """No other reader has the same."""

    def fetch(self, bucket: int, ranks: Sequence[int]) -> list[Bytes]:
        """See `Source`. All ranks hear of a new bucket, and let go of the one before."""
        pause = SOON_SECONDS
        while not ray.get(self.ranks[0].come.remote(self.name, bucket)):
            time.sleep(pause)
            pause = min(2 * pause, LATER_SECONDS)
        asked = [rank.bucket.remote(bucket) for rank in self.ranks]
        references = [reference for (reference,) in ray.get(asked)]
        messages: list[Bytes] = ray.get([references[rank] for rank in ranks])
        return messages

    def again(self, bucket: int, rank: int) -> Bytes:
        """Packed anew."""
        (reference,) = ray.get(self.ranks[rank].bucket.remote(bucket, True))
        message: Bytes = ray.get(reference)
        return message

    def leave(self) -> None:
        """Others need not wait for it any more."""
        ray.get([rank.leave_stock.remote(self.name) for rank in self.ranks])
