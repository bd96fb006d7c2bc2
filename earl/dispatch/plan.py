"""Plans row transfers: which process sends which tokens of which rows to which other one. Pure, from lengths alone.

A process keeps what it already has. The rest enters a host that lacks it once (first hop, across hosts); its receiver
hands it on to the other readers on that host (second hop, faster links). Every process computes the same plan from the
same lengths, so plans are never sent. `volume` adds up what a plan moves, and lower bounds.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.rows import Columns, Numbers, Spread, token_bytes

ACROSS, INSIDE = 0, 1
BLOCK = 1 << 22
"""The most process pairs compared at once; bounds the memory of pairwise arrays."""


class _Table:
    """A dataclass of arrays of equal length."""

    __slots__: tuple[str, ...] = ()

    def where(self, chosen: NDArray[np.bool_] | Numbers | slice) -> Self:
        return type(self)(*(getattr(self, name)[chosen] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Segments(_Table):
    """S ranges of tokens, cut where a range of either side ends. Each is held whole by the processes of one rank of the
    producers and needed whole by those of one of the consumers."""

    row: Numbers
    start: Numbers
    stop: Numbers
    holders: Numbers  # [S, h]
    readers: Numbers  # [S, r]

    @property
    def tokens(self) -> Numbers:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Pieces(_Table):
    """M ranges of tokens to move. Where source and destination are the same, the range is kept."""

    hop: Numbers
    source: Numbers
    destination: Numbers
    origin: Numbers  # the producer: the source of the first hop
    row: Numbers
    start: Numbers
    stop: Numbers

    def __len__(self) -> int:
        return len(self.row)

    @property
    def tokens(self) -> Numbers:
        return self.stop - self.start


@dataclass(frozen=True, eq=False)
class TransferPlan:
    """All moves after which every process of `target` has its rows."""

    lengths: Numbers  # tokens of each row, [N]
    columns: Columns
    source: Spread
    target: Spread
    hosts: Numbers  # [P], the host of each process
    pieces: Pieces  # by row and first token

    @cached_property
    def bytes(self) -> Numbers:
        return self.pieces.tokens * token_bytes(self.columns)

    def of(self, process: int, hop: int) -> Pieces:
        pieces = self.pieces
        return pieces.where((pieces.hop == hop) & ((pieces.source == process) | (pieces.destination == process)))

    @cached_property
    def sizes(self) -> list[Numbers]:
        """Message sizes of each hop, [P, P]: bytes from each process to each other one."""
        pieces, count = self.pieces, len(self.hosts)
        moved, way = pieces.source != pieces.destination, pieces.source * count + pieces.destination
        tables = []
        for chosen in (moved & (pieces.hop == hop) for hop in self.hops):
            table = np.bincount(way[chosen], weights=self.bytes[chosen], minlength=count * count)
            tables.append(table.reshape(count, count).astype(np.int64))
        return tables

    @property
    def hops(self) -> range:
        return range(int(self.pieces.hop.max(initial=-1)) + 1)


def plan(lengths: Numbers, columns: Columns, source: Spread, target: Spread, hosts: Numbers) -> TransferPlan:
    """Plan the transfer of rows to `target`. lengths: [N], in tokens; hosts: [P]."""
    segments = _segments(lengths, source, target)
    turns = _turns(segments)
    readers, holders = segments.readers.shape[1], segments.holders.shape[1]
    step = max(1, BLOCK // (readers * max(readers, holders)))
    blocks = [slice(begin, begin + step) for begin in range(0, max(1, len(turns)), step)]
    routes = [route for own in blocks for route in _routes(segments.where(own), hosts, turns[own])]
    pieces = Pieces(*(np.concatenate(column) for column in zip(*routes, strict=True)))
    return TransferPlan(lengths, columns, source, target, hosts, pieces.where(np.lexsort((pieces.start, pieces.row))))


def _segments(lengths: Numbers, source: Spread, target: Spread) -> Segments:
    given, wanted = source.bounds(lengths), target.bounds(lengths)
    start = np.maximum(given[:, :-1, None], wanted[:, None, :-1])  # [N, cp of the producers, cp of the consumers]
    stop = np.minimum(given[:, 1:, None], wanted[:, None, 1:])
    row, from_rank, to_rank = cut = np.nonzero(start < stop)
    holders = source.processes[source.parts[row], from_rank]
    return Segments(row, start[cut], stop[cut], holders, target.processes[target.parts[row], to_rank])


def _routes(segments: Segments, hosts: Numbers, turns: Numbers) -> list[tuple[Numbers, ...]]:
    """Route each segment once to every reader that does not hold it; the columns of pieces, four times. Holders take
    turns, those on a reader's own host first."""
    holders, readers = segments.holders, segments.readers
    turn = np.broadcast_to(turns[:, None], readers.shape)
    kept = (readers[:, :, None] == holders[:, None, :]).any(axis=2)
    near = hosts[readers][:, :, None] == hosts[holders][:, None, :]  # [S, readers, holders]
    close = near.any(axis=2)
    together = hosts[readers][:, :, None] == hosts[readers][:, None, :]  # [S, readers, readers]
    place = _pick(together, turn)  # of the reader on the same host that receives it and hands it on
    receiver = np.take_along_axis(readers, place, axis=1)
    neighbour = np.take_along_axis(holders, _pick(near, turn), axis=1)
    first = ~close & (receiver == readers)
    chosen = np.take_along_axis(holders, turns[:, None] % holders.shape[1], axis=1)
    sender = np.broadcast_to(chosen, readers.shape)

    def made(hop: int, chosen: NDArray[np.bool_], source: Numbers, origin: Numbers) -> tuple[Numbers, ...]:
        own = segments.where(np.nonzero(chosen)[0])
        ways = (source[chosen], readers[chosen], origin[chosen])
        return (np.full(len(own.row), hop), *ways, own.row, own.start, own.stop)

    return [
        made(ACROSS, kept, readers, readers),
        made(ACROSS, close & ~kept, neighbour, neighbour),
        made(ACROSS, first, sender, sender),
        made(INSIDE, ~close & ~first, receiver, sender),
    ]


def _turns(segments: Segments) -> Numbers:
    """Rank of each segment among those with the same first holder, largest first, [S]."""
    first = segments.holders[:, 0]
    order = np.lexsort((-segments.tokens, first))
    ordered = first[order]
    begins = np.searchsorted(ordered, ordered)
    turns = np.empty(len(order), np.int64)
    turns[order] = np.arange(len(order)) - begins
    return turns


def _pick(offered: NDArray[np.bool_], turn: Numbers) -> Numbers:
    """The index of one True along the last axis [..., K], chosen by turn, [...]; 0 where there is none."""
    count = offered.cumsum(axis=-1, dtype=np.int32)
    wanted = 1 + turn % np.maximum(count[..., -1], 1)
    picked: Numbers = (count == wanted[..., None]).argmax(axis=-1)
    return picked


@dataclass(frozen=True, slots=True)
class Volume:
    """Bytes of one transfer over H hosts, each joined to the others by one link; arrays are [H]. `inside` stays between
    processes of one host. `least` is a lower bound into each host: what its processes need and none of them has, once;
    `owed` one out of it: what others need and it alone has, once."""

    sent: Numbers
    received: Numbers
    inside: Numbers
    least: Numbers
    owed: Numbers
    total: int  # all that consumers need, each byte once: what a controller gathers
    copies: int  # all that consumers need, one copy per process: what a controller scatters

    @property
    def across(self) -> int:
        return int(self.sent.sum())

    @property
    def busiest(self) -> int:
        return int(max(self.sent.max(initial=0), self.received.max(initial=0)))

    @property
    def bound(self) -> int:
        """Lower bound of the busiest link, under any plan."""
        return int(max(self.least.max(initial=0), self.owed.max(initial=0)))


def volume(plan: TransferPlan) -> Volume:
    pieces, count, size = plan.pieces, int(plan.hosts.max(initial=-1)) + 1, token_bytes(plan.columns)
    segments = _segments(plan.lengths, plan.source, plan.target)
    reading, holding = plan.hosts[segments.readers], plan.hosts[segments.holders]
    tokens = np.broadcast_to(segments.tokens[:, None], reading.shape)
    once = (reading[:, :, None] == reading[:, None, :]).argmax(axis=2) == np.arange(reading.shape[1])
    lacking = ~(reading[:, :, None] == holding[:, None, :]).any(axis=2) & once
    only = (holding == holding[:, :1]).all(axis=1) & (reading != holding[:, :1]).any(axis=1)
    source, destination = pieces.source, pieces.destination
    begin, end = plan.hosts[source], plan.hosts[destination]

    def per_host(hosts: Numbers, tokens: Numbers) -> Numbers:
        return size * np.bincount(hosts, weights=tokens, minlength=count).astype(np.int64)

    across, inside = begin != end, (source != destination) & (begin == end)
    return Volume(
        sent=per_host(begin[across], pieces.tokens[across]),
        received=per_host(end[across], pieces.tokens[across]),
        inside=per_host(begin[inside], pieces.tokens[inside]),
        least=per_host(reading[lacking], tokens[lacking]),
        owed=per_host(holding[only, 0], segments.tokens[only]),
        total=size * int(plan.lengths.sum()),
        copies=int(plan.bytes.sum()),
    )
