"""Which process sends which box of which tensor to which other one, and in which bucket: pure, from shapes alone.

    a learner's layout (dp × tp, FSDP2)  ─▶  a sampler's (tp), or another learner's
    boxes of both sides ─▶ what lies in both ─▶ who gives it to whom (routes.py) ─▶ buckets (buckets.py)

Every process makes the same plan, once for two layouts: weights change, their shapes do not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from earl.dispatch.buckets import buckets, cut, largest
from earl.dispatch.copies import Copies, Weight
from earl.dispatch.plan import tabled
from earl.dispatch.routes import ACROSS, INSIDE, Demand, Routes, least, owed, routes
from earl.dispatch.spread import Numbers
from earl.dispatch.volume import Volume, tallied
from earl.parallel.layout import Box


@dataclass(frozen=True, slots=True)
class Move:
    """A piece on its way."""

    weight: int
    box: Box
    source: int
    destination: int
    size: int
    """In bytes."""
    hop: int


@dataclass(frozen=True)
class WeightPlan:
    """What is moved so that every process of `target` has its boxes."""

    weights: tuple[Weight, ...]
    source: Copies
    target: Copies
    hosts: Numbers
    """[P], the host of each process."""
    bucket_bytes: int
    pieces: tuple[tuple[int, Box], ...]
    """S of them: the number of the tensor, and what of it."""
    demand: Demand
    """Who has and who needs each piece, [S]."""
    ways: Routes
    """[M], by hop, then by tensor."""
    bucket: Numbers
    """[M], in which each travels; those of the second hop come behind all of the first."""

    @property
    def num_buckets(self) -> int:
        """Over both hops."""
        return int(self.bucket.max(initial=-1)) + 1

    @cached_property
    def size(self) -> Numbers:
        """Bytes of each way, [M]."""
        return self.demand.size[self.ways.at]

    def of(self, process: int) -> list[list[Move]]:
        """What one process sends, receives and keeps, by bucket."""
        ways = self.ways
        own = np.flatnonzero((ways.source == process) | (ways.destination == process))
        moves: list[list[Move]] = [[] for _ in range(self.num_buckets)]
        columns = (ways.at, ways.source, ways.destination, self.size, ways.hop, self.bucket)
        for at, *ends, bucket in zip(*(column[own].tolist() for column in columns), strict=True):
            weight, box = self.pieces[at]
            moves[bucket].append(Move(weight, box, *ends))
        return moves

    def sizes(self, bucket: int) -> Numbers:
        """Of the messages of a bucket, [P, P]: bytes from each process to each other one."""
        ways = self.ways
        chosen = (self.bucket == bucket) & (ways.source != ways.destination)
        return tabled(ways.source[chosen], ways.destination[chosen], self.size[chosen], len(self.hosts))

    def volume(self) -> Volume:
        """What is moved over which link, and what has to be at least; `total` is the model, once."""
        count = int(self.hosts.max(initial=-1)) + 1
        total = sum(int(np.prod(weight.shape)) * weight.number_bytes for weight in self.weights)
        into = least(self.demand, self.hosts, count)
        out = owed(self.demand, self.hosts, count)
        return tallied(self.ways.source, self.ways.destination, self.size, self.hosts, into, out, total)


def plan_weights(
    weights: Sequence[Weight], source: Copies, target: Copies, hosts: Sequence[int] | Numbers, bucket_bytes: int
) -> WeightPlan:
    """Plan the way of a model's tensors from one layout to another.

    Args:
        hosts: the host of each process, [P].
        bucket_bytes: the most that a process sends, receives and keeps at a time, which is all the memory that it
            needs beside its boxes of both sides.

    Raises:
        EarlError: when a bucket is too small for anything.
    """
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
    """All pieces, and who has and needs them. Tensors that are alike are cut once."""
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
    """The pieces of one tensor, with who has and who needs each; of every pair the first ones, then the second ones,
    so that all processes are busy from the beginning."""
    given, wanted = source.boxes(weight.shape, weight.given), target.boxes(weight.shape, weight.wanted)
    pairs = [
        [(piece, having, needing) for piece in cut(common, most)] for common, having, needing in _common(given, wanted)
    ]
    longest = max(map(len, pairs), default=0)
    return [pair[turn] for turn in range(longest) for pair in pairs if turn < len(pair)]


def _common(given: Mapping[Box, list[int]], wanted: Mapping[Box, list[int]]) -> list[tuple[Box, list[int], list[int]]]:
    """What lies in a box of either side, for all pairs of boxes."""
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
    """Where boxes begin and end, [boxes, axes] each."""
    begins = np.array([box.offset for box in boxes], np.int64)
    return begins, begins + np.array([box.shape for box in boxes], np.int64)


def _lines(processes: Sequence[Sequence[int]]) -> Numbers:
    """Lists of processes as rows of one length: shorter ones begin again."""
    longest = max(map(len, processes), default=1)
    rows = [np.resize(np.array(own, np.int64), longest) for own in processes]
    return np.array(rows, np.int64).reshape(len(rows), longest)
