"""Plans weight sync: which learner rank gives which part of which tensor to which reader, and in which bucket.

Pure, from shapes alone; every process computes the same plan. Ranks with equal parts share the giving, and a bucket is
what all ranks together pack at a time. Where samplers are split, a message holds what one of their processes needs, or
what all of them need. The same arithmetic regroups tensors for checkpoints.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

import numpy as np
import torch
from torch import Tensor

from earl.dispatch.transports.base import Bytes
from earl.parallel.layout import Axis, Box, Layout

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

    def given_bytes(self) -> list[int]:
        """[ranks], what each gives."""
        given = [0] * self.layout.size
        for piece in chain(*self.buckets):
            given[piece.source] += piece.size
        return given

    def taken_bytes(self) -> list[int]:
        """[readers], what each process of a reader takes."""
        taken = [0] * (self.readers + 1)
        for piece in chain(*self.buckets):
            taken[piece.reader] += piece.size
        return [taken[0] + own for own in taken[1:]]


def plan_weights(weights: Sequence[Weight], layout: Layout, bucket_bytes: int, readers: int = 1) -> WeightPlan:
    """The plan for one reader. Of ranks that hold a part alike, the one that gives least so far gives it."""
    buckets: list[list[WeightPiece]] = [[]]
    given, load = [0] * layout.size, 0
    known: dict[Weight, list[tuple[Box, list[int], int]]] = {}
    for number, weight in enumerate(weights):
        kind, number_bytes = replace(weight, name=""), weight.dtype.itemsize
        if kind not in known:
            known[kind] = _cut_evenly(kind, layout, readers, max(1, bucket_bytes // PIECES // number_bytes))
        for box, ranks, reader in known[kind]:
            piece = WeightPiece(number, box, min(ranks, key=given.__getitem__), box.numbers * number_bytes, reader)
            given[piece.source] += piece.size
            if load and load + piece.size > bucket_bytes:
                buckets.append([])
                load = 0
            buckets[-1].append(piece)
            load += piece.size
    return WeightPlan(tuple(weights), layout, tuple(map(tuple, buckets)), readers)


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
    split = [
        Layout(tp=readers, ep=readers).box(weight.shape, weight.reader_axis, process) for process in range(readers)
    ]
    parts = [(own.common(box), reader) for reader, own in enumerate(split, 1)]
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
