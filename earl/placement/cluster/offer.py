"""How a learner's weights get to the samplers: every rank offers its boxes, every sampler takes them tensor by tensor.

    rank: its boxes ─▶ buckets ─▶ objects in the store of its host ─┐
    driver: references alone                                        ├─▶ sampler: one tensor at a time
    rank: …                                                        ─┘

Nobody but a sampler ever holds whole weights, and of one that is split over processes each takes its part alone. What
several ranks hold alike, one of them offers, all of them equally much. A host's store fetches an object once for all
samplers there. All of it lies in the stores at once, for samplers that load while the learner learns on; those that it
waits for draw it bucket by bucket, see stock.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray

from earl.dispatch.carry import Hand
from earl.dispatch.messages import Bytes, seal
from earl.dispatch.tensors import Tensors
from earl.engine.keeping import Held
from earl.placement.cluster.budget import aside
from earl.placement.cluster.described import BUCKET_BYTES, Described, described
from earl.placement.cluster.fetched import Fetched

Reference = Any
"""`ray.ObjectRef`; Ray is not seen by the type checker."""


def offer(held: Held, rank: int, bucket_bytes: int = BUCKET_BYTES, checksums: bool = False) -> list[Reference | None]:
    """Put what a rank is to give into Ray's object store: a reference by bucket, None where it gives nothing."""
    plan = described(held, bucket_bytes).plan
    shelf = Tensors({name: part.numbers for name, part in held.parts.items()})
    hand, reader = Hand(plan, rank, shelf, Tensors()), held.layout.size
    return [put(hand.pack(moves)[reader], checksums) if moves else None for moves in plan.of(rank)]


def put(message: Bytes, checksums: bool) -> Reference:
    """Put a message into the object store, sealed if that is asked for."""
    with aside():
        return ray.put(seal(message) if checksums else message)


@dataclass(frozen=True, slots=True)
class Offered:
    """Weights that lie in Ray's object stores. The objects are there as long as one of these is."""

    described: Described
    references: tuple[tuple[Reference | None, ...], ...]
    """By rank and bucket."""
    ranks: tuple[Any, ...] = ()
    """The actors, who are asked for what came damaged."""
    checksums: bool = False

    def taken(self) -> Fetched:
        """The weights, fetched tensor by tensor as they are asked for."""
        return Fetched(self)

    def fetch(self, bucket: int, ranks: Sequence[int]) -> list[Bytes]:
        """See `Source`."""
        messages: list[Bytes] = ray.get([self.references[rank][bucket] for rank in ranks])
        return messages

    def again(self, bucket: int, rank: int) -> Bytes:
        """What lies in the rank's own store, put there and brought here a second time."""
        (reference,) = ray.get(self.ranks[rank].again.remote([self.references[rank][bucket]]))
        message: Bytes = ray.get(reference)
        return message

    def leave(self) -> None:
        """Whoever has this lets go of it."""
