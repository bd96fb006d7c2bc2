"""Plans weight sync: which learner rank gives which part of which tensor to which reader, and in which bucket.

Pure, from shapes alone; every process computes the same plan. Ranks with equal parts share the giving, and a bucket is
what all ranks together pack at a time. Where samplers are split, a message holds what one of their processes needs, or
what all of them need. The same arithmetic regroups tensors for checkpoints.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, zip_longest

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from earl.batch import bundles
from earl.dispatch.transports.base import Bytes
from earl.parallel.layout import Axis, Box, Layout, whole

PIECES = 8
"""A piece is at most this fraction of a bucket, so at most this fraction of a bucket stays empty."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor to transfer; of tied ones, only one."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype  # in which it travels: the reader's
    axis: Axis | None = None
    """What it is split along beside FSDP2; None: not split."""
    reader_axis: Axis | None = None
    """Along which readers split it; None: each needs all of it."""

    def needed(self, reader: int, readers: int) -> Box:
        """The part that one of the `readers` processes of a reader needs; counted from 1."""
        if self.reader_axis is None or readers == 1:
            return whole(self.shape)
        return Layout(tp=readers, ep=readers).box(self.shape, self.reader_axis, reader - 1)


@dataclass(frozen=True, slots=True)
class WeightPiece:
    weight: int
    box: Box
    source: int  # the rank that gives it
    size: int  # bytes
    reader: int = 0
    """Which process of a split reader needs it, counted from 1; 0: each."""


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """Every number of every tensor once."""

    weights: tuple[Weight, ...]
    layout: Layout  # of the ranks
    buckets: tuple[tuple[WeightPiece, ...], ...]
    readers: int = 1  # processes that one reader is split over

    def sent_bytes(self) -> list[int]:
        """Bytes that each rank sends, [ranks]."""
        sent = [0] * self.layout.size
        for piece in chain(*self.buckets):
            sent[piece.source] += piece.size
        return sent


def plan_weights(weights: Sequence[Weight], layout: Layout, bucket_bytes: int, readers: int = 1) -> WeightPlan:
    """The plan for one reader. Of ranks that hold a part alike, the one that gives least so far gives it."""
    pieces: list[WeightPiece] = []
    sent = [0] * layout.size
    known: dict[Weight, list[tuple[Box, list[int], int]]] = {}
    for number, weight in enumerate(weights):
        kind, number_bytes = replace(weight, name=""), weight.dtype.itemsize
        if kind not in known:
            known[kind] = _cut_evenly(kind, layout, readers, max(1, bucket_bytes // PIECES // number_bytes))
        for box, ranks, reader in known[kind]:
            piece = WeightPiece(number, box, min(ranks, key=sent.__getitem__), box.numbers * number_bytes, reader)
            sent[piece.source] += piece.size
            pieces.append(piece)
    buckets = bundles(pieces, lambda piece: piece.size, bucket_bytes)
    return WeightPlan(tuple(weights), layout, tuple(map(tuple, buckets)), readers)


_plan = lru_cache(maxsize=4)(plan_weights)
BUCKET_BYTES = 1 << 28  # what all ranks together pack at a time for a reader


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """What is needed to find a tensor in the ranks' messages; equal on every rank."""

    weights: tuple[Weight, ...]
    layout: Layout  # of the ranks
    bucket_bytes: int = BUCKET_BYTES
    readers: int = 1  # processes that a sampler is split over

    @property
    def plan(self) -> WeightPlan:
        return _plan(self.weights, self.layout, self.bucket_bytes, self.readers)


def holders(weight: Weight, layout: Layout) -> dict[Box, list[int]]:
    """The ranks that hold each box of a tensor; boxes are equal or disjoint, empty ones are left out."""
    found: dict[Box, list[int]] = {}
    for rank in range(layout.size):
        box = layout.box(weight.shape, weight.axis, rank)
        if box.numbers:
            found.setdefault(box, []).append(rank)
    return found


def regrouping(
    weights: Sequence[Weight], owners: Sequence[int], layout: Layout, piece_bytes: int
) -> Iterator[list[WeightPiece]]:
    """Rounds in which every tensor comes to its owner, whole. In a round each owner is sent at most a piece of each box
    of one tensor, so that all ranks send at the same time; what an owner holds itself is a piece too."""
    queues: list[list[list[WeightPiece]]] = [[] for _ in range(layout.size)]
    for number, weight in enumerate(weights):
        cuts = []
        for box, ranks in holders(weight, layout).items():
            source = owners[number] if owners[number] in ranks else ranks[number % len(ranks)]
            parts = cut(box, max(1, piece_bytes // weight.dtype.itemsize))
            cuts.append([WeightPiece(number, part, source, part.numbers * weight.dtype.itemsize) for part in parts])
        queues[owners[number]] += [[piece for piece in turn if piece] for turn in zip_longest(*cuts)]
    for turns in zip_longest(*queues):
        yield [piece for turn in turns if turn for piece in turn]


def _cut_evenly(weight: Weight, layout: Layout, readers: int, most: int) -> list[tuple[Box, list[int], int]]:
    """The pieces of one tensor; alternates between its boxes, so that all ranks pack a part of each bucket."""
    cuts = [
        [(piece, ranks, reader) for part, reader in _by_reader(weight, box, readers) for piece in cut(part, most)]
        for box, ranks in holders(weight, layout).items()
    ]
    return [own for turn in zip_longest(*cuts) for own in turn if own is not None]


def _by_reader(weight: Weight, box: Box, readers: int) -> list[tuple[Box, int]]:
    """A box in parts, and the process of a reader that needs each."""
    if weight.reader_axis is None or readers == 1:
        return [(box, 0)]
    parts = [(weight.needed(reader, readers).common(box), reader) for reader in range(1, readers + 1)]
    return [(part, reader) for part, reader in parts if part is not None]


def cut(box: Box, most: int) -> list[Box]:
    """A box in pieces of at most `most` numbers, along its first axes: (5, 4), 8 give (2, 4), (2, 4), (1, 4)."""
    if box.numbers <= most:
        return [box]
    axis = next(axis for axis, size in enumerate(box.shape) if size > 1)
    length = box.shape[axis]
    step = max(1, most * length // box.numbers)
    pieces = []
    for start in range(0, length, step):
        offset = (*box.offset[:axis], box.offset[axis] + start, *box.offset[axis + 1 :])
        shape = (*box.shape[:axis], min(step, length - start), *box.shape[axis + 1 :])
        pieces += cut(Box(offset, shape), most)
    return pieces


def pack(plan: WeightPlan, rank: int, pieces: Sequence[WeightPiece], held: Mapping[str, Tensor]) -> Bytes:
    """One rank's message of a bucket, from its boxes of the tensors, cast here to what a reader computes in."""
    message = np.empty(sum(piece.size for piece in pieces), np.uint8)
    begin = 0
    for piece in pieces:
        weight = plan.weights[piece.weight]
        own = plan.layout.box(weight.shape, weight.axis, rank)
        part = held[weight.name].detach()[piece.box.inside(own)]
        raw = torch.from_numpy(message[begin : begin + piece.size])
        raw.view(weight.dtype).view(part.shape).copy_(part)
        begin += piece.size
    return message


# Directly: in one exchange for each bucket, every rank sends every process of every reader its part of the bucket.


@dataclass(frozen=True, slots=True)
class SentWeights:
    """Weights that the ranks send to all processes of `copies` samplers while these load them."""

    manifest: WeightManifest
    copies: int

    @property
    def processes(self) -> int:
        return self.manifest.layout.size + self.copies * self.manifest.readers

    def exchanges(self) -> Iterator[NDArray[np.int64]]:
        """For each bucket [P, P], the bytes from each process to each: ranks, then the processes of each sampler."""
        ranks, readers = self.manifest.layout.size, self.manifest.readers
        for bucket in self.manifest.plan.buckets:
            sizes = np.zeros((self.processes, self.processes), np.int64)
            for piece in bucket:
                first, step = (ranks + piece.reader - 1, readers) if piece.reader else (ranks, 1)
                sizes[piece.source, first::step] += piece.size
            yield sizes

    def messages(self, rank: int, held: Mapping[str, Tensor]) -> Iterator[dict[int, Bytes]]:
        """For each bucket, the messages of a rank by process."""
        plan, first = self.manifest.plan, self.manifest.layout.size
        for bucket in plan.buckets:
            own = [piece for piece in bucket if piece.source == rank]
            by_reader = ([one for one in own if one.reader in (0, reader)] for reader in range(1, plan.readers + 1))
            packed = [pack(plan, rank, pieces, held) if pieces else None for pieces in by_reader] * self.copies
            yield {process: message for process, message in enumerate(packed, first) if message is not None}


def assemble(plan: WeightPlan, reader: int, buckets: Iterable[Mapping[int, Bytes]]) -> Iterator[tuple[int, Tensor]]:
    """The parts of tensors that a process of a reader needs (`Weight.needed`), each with the tensor's number, once all
    its pieces have come. buckets: the messages to the process in each exchange, by rank."""
    parts: dict[int, Tensor] = {}
    left: dict[int, int] = {}  # numbers of a part that are still to come
    for bucket, messages in zip(plan.buckets, buckets, strict=True):
        begins = Counter[int]()
        for piece in bucket:
            if piece.reader not in (0, reader):
                continue
            box, begin = plan.weights[piece.weight].needed(reader, plan.readers), begins[piece.source]
            if piece.weight not in parts:
                parts[piece.weight] = torch.empty(box.shape, dtype=plan.weights[piece.weight].dtype)
                left[piece.weight] = box.numbers
            raw = torch.from_numpy(messages[piece.source][begin : begin + piece.size].copy())  # aligned
            part = parts[piece.weight]
            part[piece.box.inside(box)] = raw.view(part.dtype).view(piece.box.shape)
            begins[piece.source] += piece.size
            left[piece.weight] -= piece.box.numbers
            if not left[piece.weight]:
                yield piece.weight, parts.pop(piece.weight)
