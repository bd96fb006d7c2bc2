"""How a learner's weights get to the samplers: every rank offers its boxes, every sampler takes them tensor by tensor.

    rank: its boxes ─▶ buckets ─▶ objects in the store of its host ─┐
    driver: references alone                                        ├─▶ sampler: one tensor at a time
    rank: …                                                        ─┘

Nobody but a sampler ever holds whole weights, and of one that is split over processes each takes its part alone. What
several ranks hold alike, one of them offers, all of them equally much. A host's store fetches an object once for all
samplers there. All of it lies in the stores at once, for samplers that load while the learner learns on; those that it
waits for draw it bucket by bucket, see stock.py.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import ray
import torch
from torch import Tensor

from earl.dispatch.execute import TRIES
from earl.dispatch.transports.base import CHECKSUM_BYTES, Bytes, Corrupted, intact, seal
from earl.dispatch.weight_transfer import Hand, Tensors
from earl.dispatch.weights import Copies, Move, Weight, WeightPlan, plan_weights
from earl.engine.train_state import HeldTensors
from earl.parallel.layout import Box, Layout, whole
from earl.placement.ray.memory_budget import aside

# What has to be known of a learner's weights to find them in what its ranks give: shapes, types, and the plan.

BUCKET_BYTES = 1 << 28
"""What all ranks together pack at a time for a reader."""


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """What has to be known of weights to find a tensor in what the ranks offer."""

    weights: tuple[Weight, ...]
    kinds: tuple[str, ...]
    """The type of each one's numbers, as torch calls it."""
    layout: Layout
    """Of the ranks."""
    bucket_bytes: int = BUCKET_BYTES

    @property
    def plan(self) -> WeightPlan:
        """To one process that needs all of them, behind the ranks."""
        return _plan(self.weights, self.layout, self.bucket_bytes)


def described(held: HeldTensors, bucket_bytes: int = BUCKET_BYTES) -> WeightManifest:
    """What every rank says alike."""
    parts = held.parts.items()
    weights = (Weight(name, part.shape, part.numbers.itemsize, held.axes[name]) for name, part in parts)
    kinds = (str(part.numbers.dtype).removeprefix("torch.") for _, part in parts)
    return WeightManifest(tuple(weights), tuple(kinds), held.layout, bucket_bytes)


@lru_cache(maxsize=4)
def _plan(weights: tuple[Weight, ...], layout: Layout, bucket_bytes: int) -> WeightPlan:
    ranks, reader = tuple(range(layout.size)), layout.size
    source, target = Copies(layout, (ranks,)), Copies(Layout(), ((reader,),))
    return plan_weights(weights, source, target, [0] * (layout.size + 1), bucket_bytes)


# Weights as a sampler sees them while it loads: tensor by tensor, out of messages that come bucket by bucket.


class WeightSource(Protocol):
    """Where messages of a plan are had."""

    @property
    def described(self) -> WeightManifest:
        """What they are."""

    @property
    def checksums(self) -> bool:
        """Whether each has its checksum behind it."""

    def fetch(self, bucket: int, ranks: Sequence[int]) -> Sequence[Bytes]:
        """What some ranks give in a bucket."""

    def again(self, bucket: int, rank: int) -> Bytes:
        """One of these, sent anew: it came damaged."""

    def leave(self) -> None:
        """Nothing more is fetched."""


class WeightReader(Mapping[str, Tensor]):
    """Whole tensors, each made when it is asked for and kept by nobody but who asked; tied ones once.

    Messages of one bucket are in use at a time, also where a tensor lies in several. Asked for in order, as samplers
    do, each is fetched once.

    Attributes:
        damaged: what arrived damaged and was sent again.

    Raises:
        Corrupted: from every way to a tensor, when a message came damaged however often it was sent.
        RayError: likewise, when a rank or its host is gone.
    """

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        described = source.described
        self._plan = described.plan
        self._numbers = {weight.name: number for number, weight in enumerate(described.weights)}
        self._pieces: list[list[tuple[int, Move, int]]] = [[] for _ in described.weights]
        for bucket, moves in enumerate(self._plan.of(described.layout.size)):
            begins = [0] * described.layout.size
            for move in moves:
                self._pieces[move.weight].append((bucket, move, begins[move.source]))
                begins[move.source] += move.size
        self._left = set(self._numbers)
        self._bucket, self._messages = -1, dict[int, Bytes]()
        self.damaged: list[str] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __getitem__(self, name: str) -> Tensor:
        """All of a tensor."""
        return self.part(name, whole(self._plan.weights[self._numbers[name]].shape))

    def part(self, name: str, box: Box) -> Tensor:
        """What lies in a box of a tensor: of pieces that reach into it, only this is copied."""
        number = self._numbers[name]
        made = torch.empty(box.shape, dtype=getattr(torch, self._source.described.kinds[number]))
        reaching = [(piece, common) for piece in self._pieces[number] if (common := piece[1].box.common(box))]
        for bucket, own in groupby(reaching, key=lambda reached: reached[0][0]):
            self._copy(bucket, [(move, begin, common) for (_, move, begin), common in own], box, made)
        self._left.discard(name)
        if not self._left and self._messages:
            self._messages.clear()
            self._source.leave()
        return made

    def _copy(self, bucket: int, pieces: Sequence[tuple[Move, int, Box]], box: Box, made: Tensor) -> None:
        self._come(bucket, {move.source for move, _, _ in pieces})
        for move, begin, common in pieces:
            message = self._messages[move.source][begin : begin + move.size]
            numbers = message.reshape(*move.box.shape, -1)[common.inside(move.box)].copy()  # of the store, only views
            made[common.inside(box)] = torch.from_numpy(numbers).view(made.dtype).view(common.shape)

    def _come(self, bucket: int, ranks: set[int]) -> None:
        """Let go of another bucket's messages, and get those that are missing of this one: views of the store."""
        if bucket != self._bucket:
            self._bucket, self._messages = bucket, {}
        missing = sorted(ranks - self._messages.keys())
        if missing:
            came = self._source.fetch(bucket, missing)
            for rank, message in zip(missing, came, strict=True):
                self._messages[rank] = self._checked(rank, message) if self._source.checksums else message

    def _checked(self, rank: int, message: Bytes) -> Bytes:
        """A message without its checksum, sent again until it is what was sent."""
        said = (
            f"bucket {self._bucket} of the weights of learner rank {rank} arrived damaged at a sampler: "
            "its checksum differs"
        )
        for attempt in range(TRIES):
            if attempt:
                self.damaged.append(said)
                message = self._source.again(self._bucket, rank)
            if intact(message):
                return message[:-CHECKSUM_BYTES]
        raise Corrupted(f"{said}; this was tried {TRIES} times, look at the network and the memory of both hosts")


Reference = Any
"""`ray.ObjectRef`; Ray is not seen by the type checker."""


def offer(
    held: HeldTensors, rank: int, bucket_bytes: int = BUCKET_BYTES, checksums: bool = False
) -> list[Reference | None]:
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
class WeightOffer:
    """Weights that lie in Ray's object stores. The objects are there as long as one of these is."""

    described: WeightManifest
    references: tuple[tuple[Reference | None, ...], ...]
    """By rank and bucket."""
    ranks: tuple[Any, ...] = ()
    """The actors, who are asked for what came damaged."""
    checksums: bool = False

    def taken(self) -> WeightReader:
        """The weights, fetched tensor by tensor as they are asked for."""
        return WeightReader(self)

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


# Weights that samplers draw from the ranks bucket by bucket, so that nobody ever has them a second time.
#
# sampler: the bucket that it has come to ─▶ rank: packs it, keeps it until the next one ─▶ object store ─▶ sampler
#
# Where learner and samplers take turns on a device, the learner's shards lie in host memory meanwhile, and are packed
# there. All samplers are at the same bucket (lockstep.py), and all that the ranks give in it together is a bucket at
# most: this is what lies in the object stores, with what Ray has not deleted yet of the one before; and for a moment,
# while a rank packs and Ray copies, the rank's part of it is in its own memory too (twice, where it gets a checksum).
# Ray deletes within milliseconds where `free_objects_batch_size` is 1, as in a cluster of earl's own, else once a
# second. A sampler that the others have given up waiting for is at another bucket, which is one more. Only for
# samplers that load while the learner waits: what is packed are the weights as they are now.

SOON_SECONDS, LATER_SECONDS = 0.001, 0.05
"""Between two questions whether a bucket may be read: at first, and at most."""


class BucketStore:
    """What one rank gives, each bucket packed when it is asked for.

    Args:
        held: the rank's boxes, wherever they lie at the moment.
        readers: how many processes load weights.
        checksums: whether each message has its checksum behind it.
    """

    def __init__(
        self,
        held: Callable[[], HeldTensors],
        rank: int,
        described: WeightManifest,
        readers: int,
        checksums: bool = False,
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
class BucketTensors:
    """Weights that lie with the ranks."""

    described: WeightManifest
    ranks: tuple[Any, ...]
    """The actors; the first one says who reads when."""
    checksums: bool = False

    def taken(self) -> WeightReader:
        """The weights, drawn as they are asked for, tensor by tensor."""
        return WeightReader(BucketReader(self.described, self.ranks, self.checksums, uuid4().hex))


@dataclass(frozen=True, slots=True)
class BucketReader:
    """One reader's way through the buckets."""

    described: WeightManifest
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


# What it takes to give weights to samplers, in bytes: who has to get what from where of what lies in object stores.


def given(described: WeightManifest, ranks: tuple[int, ...], samplers: tuple[int, ...]) -> dict[str, float]:
    """Bytes that samplers load, those of them that go between hosts, and their ratio to the fewest that have to.

    A host's object store fetches an object once, however many samplers are there.

    Args:
        ranks: the host of each learner rank, as of each sampler.
    """
    plan = described.plan
    by_rank = np.bincount(plan.ways.source, weights=plan.size, minlength=len(ranks))
    reached = np.unique(samplers)
    across = sum(float(by_rank[np.asarray(ranks) != host].sum()) for host in reached)
    bound = _least(described, ranks, samplers)
    return {
        "weights/bytes": float(plan.size.sum()) * len(samplers),
        "weights/bytes_across": across,
        "weights/bytes_least": float(bound),
        "weights/ratio": across / bound if bound else 1.0,
    }


@lru_cache(maxsize=4)
def _least(described: WeightManifest, ranks: tuple[int, ...], samplers: tuple[int, ...]) -> int:
    """Bytes that hosts of samplers need and none of their ranks has, once into each."""
    copies, bound = Copies(described.layout, (tuple(range(len(ranks))),)), 0
    for weight in described.weights:
        boxes = copies.boxes(weight.shape, weight.given)  # that ranks have are the same, or do not overlap
        for host in set(samplers):
            lacked = sum(box.numbers for box, having in boxes.items() if host not in {ranks[rank] for rank in having})
            bound += lacked * weight.number_bytes
    return bound


# Who goes through the same buckets keeps step, so that there is one bucket at a time.
#
# reader: lets go of a bucket ─▶ comes to its next one ─▶ waits until nobody reads any more ─▶ the lowest one opens
#
# Readers may come late, be slow, or die: nobody is waited for longer than PATIENCE_SECONDS.

PATIENCE_SECONDS = 10.0
"""Since a bucket was opened, or somebody came for the first time, until those who are not back are left behind."""


class BucketBarrier:
    """The one bucket that may be read now.

    Args:
        readers: how many are expected; more may come.
        clock: gives the seconds.

    Example:
        >>> steps = Lockstep(readers=2)
        >>> steps.come("one", 0), steps.come("other", 0), steps.come("one", 0)  # the first asks again
        (False, True, True)
        >>> steps.come("one", 1), steps.leave("other"), steps.come("one", 1)  # the other reads, then leaves
        (False, None, True)
    """

    def __init__(self, readers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._expected, self._clock = readers, clock
        self._known: set[str] = set()
        self._waiting: dict[str, int] = {}
        self._reading: set[str] = set()
        self._open = -1
        self._since = clock()

    def come(self, reader: str, bucket: int) -> bool:
        """Whether a reader may have a bucket now; else it asks again. Of others that it had it has let go."""
        if reader not in self._known:
            self._known.add(reader)
            self._since = self._clock()
        if reader in self._reading and bucket == self._open:
            return True
        self._reading.discard(reader)
        self._waiting[reader] = bucket
        if self._reading and bucket == self._open:
            self._admit()
        elif not (self._reading or len(self._known) < self._expected) or self._late():
            self._expected = 0
            self._reading.clear()
            self._open = min(self._waiting.values())
            self._admit()
            self._since = self._clock()
        return reader in self._reading

    def leave(self, reader: str) -> None:
        """A reader has all that it wants."""
        self._reading.discard(reader)
        self._waiting.pop(reader, None)

    def _late(self) -> bool:
        return self._clock() - self._since > PATIENCE_SECONDS

    def _admit(self) -> None:
        """Let all read who wait for the bucket that is open."""
        self._reading |= {reader for reader, bucket in self._waiting.items() if bucket == self._open}
        for reader in self._reading:
            self._waiting.pop(reader, None)
