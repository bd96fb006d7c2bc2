"""Weight sync: every learner rank offers its boxes, and every sampler reads them tensor by tensor.

Ranks pack buckets into the object stores of their hosts; the driver passes references only. Only samplers hold whole
weights, and a split sampler reads only its part. Of ranks with equal parts one offers each, evenly spread. A host's
store fetches an object once for all samplers there. Samplers that load while the learner learns find all weights in the
stores; otherwise they draw them bucket by bucket while the learner waits (`BucketStore`).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any
from uuid import uuid4

import ray
import torch
from torch import Tensor

from earl.dispatch.execute import TRIES
from earl.dispatch.transports.base import CHECKSUM_BYTES, Bytes, Corrupted, intact, seal
from earl.dispatch.weights import Weight, WeightPiece, WeightPlan, holders, pack, plan_weights
from earl.engine.train_state import HeldTensors
from earl.parallel.layout import Box, Layout, whole
from earl.placement.ray.memory_budget import aside

BUCKET_BYTES = 1 << 28  # what all ranks together pack at a time for a reader
Reference = Any  # `ray.ObjectRef`; the type checker does not see Ray


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """Names, shapes, dtypes and layout of weights: what is needed to find a tensor in the ranks' messages."""

    weights: tuple[Weight, ...]
    kinds: tuple[str, ...]  # the dtype of each, as torch names it
    layout: Layout  # of the ranks
    bucket_bytes: int = BUCKET_BYTES

    @property
    def plan(self) -> WeightPlan:
        return _plan(self.weights, self.layout, self.bucket_bytes)


def described(held: HeldTensors, bucket_bytes: int = BUCKET_BYTES) -> WeightManifest:
    """The manifest, equal on every rank."""
    parts = held.parts.items()
    weights = (Weight(name, part.shape, part.numbers.itemsize, held.axes[name]) for name, part in parts)
    kinds = (str(part.numbers.dtype).removeprefix("torch.") for _, part in parts)
    return WeightManifest(tuple(weights), tuple(kinds), held.layout, bucket_bytes)


_plan = lru_cache(maxsize=4)(plan_weights)


class WeightReader(Mapping[str, Tensor]):
    """Whole tensors, each made when it is read and not kept; tied ones once. Only messages of one bucket are held at a
    time, even if a tensor spans several; read in order, each is fetched once. `damaged` lists messages that arrived
    damaged and were sent again. Reading raises Corrupted when a message arrives damaged in every try, and RayError when
    a rank or its host is gone."""

    def __init__(self, offer: "WeightOffer") -> None:
        self._offer, self._name = offer, uuid4().hex
        described = offer.described
        self._plan = described.plan
        self._numbers = {weight.name: number for number, weight in enumerate(described.weights)}
        self._pieces: list[list[tuple[int, WeightPiece, int]]] = [[] for _ in described.weights]
        for bucket, pieces in enumerate(self._plan.buckets):
            begins = [0] * described.layout.size
            for piece in pieces:
                self._pieces[piece.weight].append((bucket, piece, begins[piece.source]))
                begins[piece.source] += piece.size
        self._left = set(self._numbers)
        self._bucket, self._messages = -1, dict[int, Bytes]()
        self._references: Sequence[Reference | None] = ()  # of the bucket, by rank
        self.damaged: list[str] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __getitem__(self, name: str) -> Tensor:
        return self.part(name, whole(self._plan.weights[self._numbers[name]].shape))

    def part(self, name: str, box: Box) -> Tensor:
        """The part of a tensor in a box; only overlapping pieces are copied."""
        number = self._numbers[name]
        made = torch.empty(box.shape, dtype=getattr(torch, self._offer.described.kinds[number]))
        reaching = [(*own, common) for own in self._pieces[number] if (common := own[1].box.common(box))]
        for bucket, found in groupby(reaching, key=lambda own: own[0]):
            self._copy(bucket, [own[1:] for own in found], box, made)
        self._left.discard(name)
        if not self._left and self._messages:
            self._bucket, self._messages, self._references = -1, {}, ()
            if self._offer.references is None:  # no other reader has to wait for this one
                ray.get([rank.leave_stock.remote(self._name) for rank in self._offer.ranks])
        return made

    def _copy(self, bucket: int, pieces: Sequence[tuple[WeightPiece, int, Box]], box: Box, made: Tensor) -> None:
        self._come(bucket, {piece.source for piece, _, _ in pieces})
        for piece, begin, common in pieces:
            message = self._messages[piece.source][begin : begin + piece.size].reshape(*piece.box.shape, -1)
            numbers = message[common.inside(piece.box)].copy()  # the store's arrays are views
            made[common.inside(box)] = torch.from_numpy(numbers).view(made.dtype).view(common.shape)

    def _come(self, bucket: int, ranks: set[int]) -> None:
        """Drop another bucket's messages, and fetch those missing of this one, as views of the store."""
        if bucket != self._bucket:
            self._messages, self._references = {}, ()
            self._references, self._bucket = self._opened(bucket), bucket
        missing = sorted(ranks - self._messages.keys())
        came = ray.get([self._references[rank] for rank in missing])
        for rank, message in zip(missing, came, strict=True):
            self._messages[rank] = self._checked(rank, message) if self._offer.checksums else message

    def _opened(self, bucket: int) -> Sequence[Reference | None]:
        """References by rank. Where they are drawn, all ranks are asked for a new bucket, and drop the previous one."""
        if self._offer.references is not None:
            return [own[bucket] for own in self._offer.references]
        pause = SOON_SECONDS
        while not ray.get(self._offer.ranks[0].come.remote(self._name, bucket)):
            time.sleep(pause)
            pause = min(2 * pause, LATER_SECONDS)
        return [own for (own,) in ray.get([rank.bucket.remote(bucket) for rank in self._offer.ranks])]

    def _checked(self, rank: int, message: Bytes) -> Bytes:
        """A message without its checksum, fetched again until it is intact, at most TRIES times."""
        actor, drawn = self._offer.ranks[rank], self._offer.references is None
        said = (
            f"bucket {self._bucket} of the weights of learner rank {rank} arrived damaged at a sampler: "
            "its checksum differs"
        )
        for attempt in range(TRIES):
            if attempt:
                self.damaged.append(said)
                if drawn:
                    (reference,) = ray.get(actor.bucket.remote(self._bucket, True))
                else:  # a second copy of the object in the rank's own store
                    (reference,) = ray.get(actor.again.remote([self._references[rank]]))
                message = ray.get(reference)
            if intact(message):
                return message[:-CHECKSUM_BYTES]
        raise Corrupted(f"{said}; this was tried {TRIES} times, look at the network and the memory of both hosts")


@dataclass(frozen=True, slots=True)
class WeightOffer:
    """The weights of all ranks: in Ray's object stores, where they live as long as such an offer does, or drawn from
    the ranks by bucket."""

    described: WeightManifest
    references: tuple[tuple[Reference | None, ...], ...] | None  # by rank and bucket; None: they are drawn
    ranks: tuple[Any, ...] = ()  # the actors; the first one runs the barrier
    checksums: bool = False

    def taken(self) -> WeightReader:
        return WeightReader(self)


def offer(
    held: HeldTensors, rank: int, bucket_bytes: int = BUCKET_BYTES, checksums: bool = False
) -> list[Reference | None]:
    """Put a rank's part into the object store; references by bucket, None where it gives nothing."""
    plan = described(held, bucket_bytes).plan
    return [_packed(plan, rank, bucket, held, checksums) for bucket in range(len(plan.buckets))]


def _packed(plan: WeightPlan, rank: int, bucket: int, held: HeldTensors, checksums: bool) -> Reference | None:
    pieces = [piece for piece in plan.buckets[bucket] if piece.source == rank]
    if not pieces:
        return None
    message = pack(plan, rank, pieces, {name: part.numbers for name, part in held.parts.items()})
    with aside():
        return ray.put(seal(message) if checksums else message)


# Samplers draw buckets from the ranks, so that weights never exist a second time. A rank packs a bucket and keeps it
# until the next one; all samplers are at the same bucket (`BucketBarrier`). The stores hold one bucket, plus the
# previous one until Ray frees it (milliseconds with `free_objects_batch_size` 1, else a second), plus one for a sampler
# that the others gave up on. Packing needs a rank's part of a bucket in its own memory for a moment, twice with
# checksums. Only for samplers that load while the learner waits: buckets hold the current weights.

SOON_SECONDS, LATER_SECONDS = 0.001, 0.05
"""Interval of asking whether a bucket may be read: at first, and at most."""


@dataclass(slots=True)
class BucketStore:
    """One rank's buckets, each packed when it is requested."""

    held: Callable[[], HeldTensors]
    """Returns the rank's boxes, on host or device."""
    rank: int
    described: WeightManifest
    readers: int  # processes that load weights and are not done
    checksums: bool = False
    number: int = -1
    kept: Reference | None = None

    def bucket(self, number: int, again: bool = False) -> Reference | None:
        """A bucket in the object store, replacing the previous one; None where this rank gives nothing."""
        if number != self.number or again or self.kept is None:
            self.kept, self.number = None, number
            self.kept = _packed(self.described.plan, self.rank, number, self.held(), self.checksums)
        return self.kept

    def leave(self) -> None:
        """A reader is done; after the last one, nothing is kept."""
        self.readers -= 1
        if self.readers <= 0:
            self.kept = None


def given(described: WeightManifest, ranks: tuple[int, ...], samplers: tuple[int, ...]) -> dict[str, float]:
    """Bytes that samplers load, those of them between hosts, their lower bound, and the ratio. A host's object store
    fetches an object once, however many samplers are there. ranks, samplers: their hosts."""
    by_rank = described.plan.given_bytes()
    across = sum(size for host in {*samplers} for size, own in zip(by_rank, ranks, strict=True) if own != host)
    bound = _least(described, ranks, samplers)
    return {
        "weights/bytes": float(sum(by_rank) * len(samplers)),
        "weights/bytes_across": float(across),
        "weights/bytes_least": float(bound),
        "weights/ratio": across / bound if bound else 1.0,
    }


@lru_cache(maxsize=4)
def _least(described: WeightManifest, ranks: tuple[int, ...], samplers: tuple[int, ...]) -> int:
    """Bytes that hosts of samplers need and none of their ranks has, once per host."""
    bound = 0
    for weight in described.weights:
        boxes = holders(weight, described.layout)
        for host in set(samplers):
            lacked = sum(box.numbers for box, having in boxes.items() if host not in {ranks[rank] for rank in having})
            bound += lacked * weight.number_bytes
    return bound


PATIENCE_SECONDS = 10.0
"""Readers that are not back this long after a bucket was opened, or a new reader came, are left behind."""


class BucketBarrier:
    """Keeps readers at the same bucket: when all have left one, the lowest requested one opens. Readers may be late,
    slow, or dead: none is waited for longer than PATIENCE_SECONDS. readers: how many are expected, at least."""

    def __init__(self, readers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._expected, self._clock = readers, clock
        self._at: dict[str, int] = {}  # the bucket that each reader reads or waits for
        self._open, self._since = -1, clock()

    def come(self, reader: str, bucket: int) -> bool:
        """Whether a reader may have a bucket now; if not, it asks again. Asking releases its previous bucket."""
        late = self._clock() - self._since > PATIENCE_SECONDS
        if reader not in self._at:
            self._since = self._clock()
        self._at[reader] = bucket
        if late:
            self._expected = 0
            self._at = {name: at for name, at in self._at.items() if at != self._open or name == reader}
        if self._open not in self._at.values() and len(self._at) >= self._expected:
            self._open, self._since = min(self._at.values()), self._clock()
        return bucket == self._open

    def leave(self, reader: str) -> None:
        if self._at.pop(reader, None) is not None:
            self._expected -= 1
