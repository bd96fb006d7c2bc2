"""Plans weight transfers: which process sends which box of which tensor to which other one, and in which bucket.

Pure, from shapes alone. Source is a learner's layout (dp × tp, FSDP2), target a sampler's (tp) or another learner's.
Boxes of both sides are intersected, routed (`plan.routes`), and put into buckets. Every process computes the same plan,
once for two layouts: weights change, their shapes do not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from earl.dispatch.plan import ACROSS, INSIDE, Demand, Routes, Volume, least, owed, routes, tabled, tallied
from earl.dispatch.rows import Numbers
from earl.errors import EarlError
from earl.parallel.layout import Box, Layout

PIECES = 8
"""A piece is at most this fraction of a bucket, so at most this fraction of a bucket stays empty."""


def largest(bucket_bytes: int, number_bytes: int) -> int:
    """The most numbers in a piece. Raises EarlError when it would be none."""
    if bucket_bytes < PIECES * number_bytes:
        raise EarlError(
            f"a bucket of {bucket_bytes} bytes has no room for {PIECES} numbers of {number_bytes} bytes; "
            f"give it {PIECES * number_bytes} bytes or more, better some hundred million"
        )
    return bucket_bytes // PIECES // number_bytes


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


def buckets(source: Numbers, destination: Numbers, size: Numbers, bucket_bytes: int, begin: int = 0) -> Numbers:
    """The bucket of each piece, [M]; no process sends, receives and keeps more than `bucket_bytes` in one bucket.
    Pieces are taken in order; each goes into the first bucket that neither of its two processes has left yet and that
    has room on both sides. size: [M], in bytes, each at most `bucket_bytes`; begin: the first bucket."""
    count = int(max(source.max(initial=-1), destination.max(initial=-1))) + 1
    at, load = [begin] * count, [0] * count
    chosen = np.empty(len(size), np.int64)
    ways = zip(source.tolist(), destination.tolist(), size.tolist(), strict=True)
    for index, (one, other, add) in enumerate(ways):
        bucket = max(at[one], at[other])
        if any(at[own] == bucket and load[own] + add > bucket_bytes for own in (one, other)):
            bucket += 1
        for own in {one, other}:
            if at[own] < bucket:
                at[own], load[own] = bucket, 0
            load[own] += add
        chosen[index] = bucket
    return chosen


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor to transfer; of tied ones, only one."""

    name: str
    shape: tuple[int, ...]
    number_bytes: int
    given: int | None = None
    """The axis along which tensor parallelism splits it at the source; None: not split."""
    wanted: int | None = None  # the same at the target


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of a model, each spread over its own processes, such as Copies(Layout(tp=2), ((4, 5), (6, 7)))."""

    layout: Layout
    processes: tuple[tuple[int, ...], ...]
    """By copy: the process of each rank. No process is several ranks."""

    def box(self, shape: Sequence[int], axis: int | None, process: int) -> Box | None:
        """The part of a tensor that a process holds; None when it is not in `processes`."""
        rank = next((copy.index(process) for copy in self.processes if process in copy), None)
        return None if rank is None else self.layout.box(shape, axis, rank)

    def boxes(self, shape: Sequence[int], axis: int | None) -> dict[Box, list[int]]:
        """The processes that hold each box of a tensor; empty boxes are left out."""
        found: dict[Box, list[int]] = {}
        for rank, alike in enumerate(zip(*self.processes, strict=True)):
            box = self.layout.box(shape, axis, rank)
            if box.numbers:
                found.setdefault(box, []).extend(alike)
        return found


@dataclass(frozen=True, slots=True)
class Move:
    weight: int
    box: Box
    source: int
    destination: int
    size: int
    hop: int


@dataclass(frozen=True)
class WeightPlan:
    """All moves after which every process of `target` has its boxes."""

    weights: tuple[Weight, ...]
    source: Copies
    target: Copies
    hosts: Numbers  # [P], the host of each process
    bucket_bytes: int
    pieces: tuple[tuple[int, Box], ...]  # [S], index of the tensor, and the box
    demand: Demand
    ways: Routes  # [M], by hop, then by tensor
    bucket: Numbers  # [M]; buckets of the second hop come after all of the first

    @property
    def num_buckets(self) -> int:
        return int(self.bucket.max(initial=-1)) + 1

    @cached_property
    def size(self) -> Numbers:
        return self.demand.size[self.ways.at]

    def of(self, process: int) -> list[list[Move]]:
        ways = self.ways
        own = np.flatnonzero((ways.source == process) | (ways.destination == process))
        moves: list[list[Move]] = [[] for _ in range(self.num_buckets)]
        columns = (ways.at, ways.source, ways.destination, self.size, ways.hop, self.bucket)
        for at, *ends, bucket in zip(*(column[own].tolist() for column in columns), strict=True):
            weight, box = self.pieces[at]
            moves[bucket].append(Move(weight, box, *ends))
        return moves

    def sizes(self, bucket: int) -> Numbers:
        """Message sizes of a bucket, [P, P]: bytes from each process to each other one."""
        ways = self.ways
        chosen = (self.bucket == bucket) & (ways.source != ways.destination)
        return tabled(ways.source[chosen], ways.destination[chosen], self.size[chosen], len(self.hosts))

    def volume(self) -> Volume:
        """Bytes over each link and lower bounds; `total` is the model once."""
        count = int(self.hosts.max(initial=-1)) + 1
        total = sum(int(np.prod(weight.shape)) * weight.number_bytes for weight in self.weights)
        into = least(self.demand, self.hosts, count)
        out = owed(self.demand, self.hosts, count)
        return tallied(self.ways.source, self.ways.destination, self.size, self.hosts, into, out, total)


def plan_weights(
    weights: Sequence[Weight], source: Copies, target: Copies, hosts: Sequence[int] | Numbers, bucket_bytes: int
) -> WeightPlan:
    """Plan the transfer of a model's tensors from one layout to another. hosts: [P], the host of each process;
    bucket_bytes: the most a process sends, receives and keeps at a time, which is its extra memory beside the boxes.
    Raises EarlError when a bucket is too small for a piece."""
    on = np.asarray(hosts, np.int64)
    pieces, demand = _demand(weights, source, target, bucket_bytes)
    found = routes(demand, on)
    order = np.lexsort((found.destination, found.at, found.hop))
    ways = Routes(found.at[order], found.hop[order], found.source[order], found.destination[order])
    size = demand.size[ways.at]
    bucket = np.zeros(len(size), np.int64)
    for hop in (ACROSS, INSIDE):
        own = ways.hop == hop
        begin = int(bucket[~own].max(initial=-1)) + 1 if hop else 0
        bucket[own] = buckets(ways.source[own], ways.destination[own], size[own], bucket_bytes, begin)
    return WeightPlan(tuple(weights), source, target, on, bucket_bytes, tuple(pieces), demand, ways, bucket)


def _demand(
    weights: Sequence[Weight], source: Copies, target: Copies, bucket_bytes: int
) -> tuple[list[tuple[int, Box]], Demand]:
    """All pieces and their demand. Tensors of the same kind are cut once."""
    known: dict[Weight, list[tuple[Box, list[int], list[int]]]] = {}
    pieces, size, holders, readers = [], [], [], []
    for number, weight in enumerate(weights):
        kind = Weight("", weight.shape, weight.number_bytes, weight.given, weight.wanted)
        if kind not in known:
            known[kind] = _cut(kind, source, target, largest(bucket_bytes, weight.number_bytes))
        for box, having, needing in known[kind]:
            pieces.append((number, box))
            size.append(box.numbers * weight.number_bytes)
            holders.append(having)
            readers.append(needing)
    return pieces, Demand(np.array(size, np.int64), _lines(holders), _lines(readers))


def _cut(weight: Weight, source: Copies, target: Copies, most: int) -> list[tuple[Box, list[int], list[int]]]:
    """The pieces of one tensor; alternates between pairs of boxes to keep all processes busy from the start."""
    given, wanted = source.boxes(weight.shape, weight.given), target.boxes(weight.shape, weight.wanted)
    pairs = [
        [(piece, having, needing) for piece in cut(common, most)] for common, having, needing in _common(given, wanted)
    ]
    longest = max(map(len, pairs), default=0)
    return [pair[turn] for turn in range(longest) for pair in pairs if turn < len(pair)]


def _common(given: Mapping[Box, list[int]], wanted: Mapping[Box, list[int]]) -> list[tuple[Box, list[int], list[int]]]:
    ours, theirs = [*given], [*wanted]
    (from_start, from_stop), (to_start, to_stop) = _edges(ours), _edges(theirs)
    start = np.maximum(from_start[:, None], to_start[None])  # [boxes of the source, boxes of the target, axes]
    stop = np.minimum(from_stop[:, None], to_stop[None])
    shape = stop - start
    pairs = zip(*np.nonzero((start < stop).all(axis=2)), strict=True)
    return [
        (Box(tuple(start[a, b].tolist()), tuple(shape[a, b].tolist())), given[ours[a]], wanted[theirs[b]])
        for a, b in pairs
    ]


def _edges(boxes: Sequence[Box]) -> tuple[Numbers, Numbers]:
    """Begin and end of boxes, [boxes, axes] each."""
    begins = np.array([box.offset for box in boxes], np.int64)
    return begins, begins + np.array([box.shape for box in boxes], np.int64)


def _lines(processes: Sequence[Sequence[int]]) -> Numbers:
    """Process lists as rows of equal length: shorter ones repeat."""
    longest = max(map(len, processes), default=1)
    rows = [np.resize(np.array(own, np.int64), longest) for own in processes]
    return np.array(rows, np.int64).reshape(len(rows), longest)


def extra_bytes(plan: WeightPlan) -> Numbers:
    """The most extra memory of each process beside its boxes, [P], not counting a transport's own: messages packed and
    received, and pieces kept. Never more than a bucket."""
    count = len(plan.hosts)
    load = np.zeros((plan.num_buckets, count), np.int64)
    ways, size = plan.ways, plan.size
    np.add.at(load, (plan.bucket, ways.source), size)
    other = ways.source != ways.destination
    np.add.at(load, (plan.bucket[other], ways.destination[other]), size[other])
    most: Numbers = load.max(axis=0, initial=0)
    return most
