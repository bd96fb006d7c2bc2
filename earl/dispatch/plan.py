"""Plans row transfers: which process sends which tokens of which rows to which other one. Pure, from lengths alone.

A process keeps what it already has. The rest goes by `routes`, which `weights.py` uses too. Every process computes the
same plan from the same lengths, so plans are never sent. `volume` adds up what a plan moves, and lower bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.rows import Axis, Column, Numbers, Spread

# Routes: each thing enters a host that lacks it once (first hop, across hosts), then its receiver hands it on to the
# other readers on that host (second hop, faster links).

ACROSS, INSIDE = 0, 1
BLOCK = 1 << 22
"""The most process pairs compared at once; bounds the memory of pairwise arrays."""


@dataclass(frozen=True, slots=True)
class Demand:
    """S things that some processes hold whole and others need whole. A process may appear in a line more than once."""

    size: Numbers
    holders: Numbers  # [S, h], the processes that hold it
    readers: Numbers  # [S, r], the processes that need it


@dataclass(frozen=True, slots=True)
class Routes:
    """M routes. Where source and destination are the same, the thing is kept."""

    at: Numbers
    hop: Numbers
    source: Numbers
    destination: Numbers


def routes(demand: Demand, hosts: Numbers) -> Routes:
    """Route each thing once to every reader that does not hold it. hosts: [P], the host of each process. Holders on a
    reader's own host take turns; otherwise it comes from the host with the least to send so far."""
    turns = _turns(demand)
    step = max(1, BLOCK // (demand.readers.shape[1] * max(demand.readers.shape[1], demand.holders.shape[1], 1)))
    parts = [slice(begin, begin + step) for begin in range(0, max(1, len(turns)), step)]
    blocks = [_marks(demand.holders[own], demand.readers[own], hosts, turns[own]) for own in parts]
    marks = _Marks(*(np.concatenate([getattr(block, field.name) for block in blocks]) for field in fields(_Marks)))
    made = (
        _made(ACROSS, marks.kept, demand.readers, demand.readers),
        _made(ACROSS, marks.near, marks.neighbour, demand.readers),
        _made(ACROSS, marks.first, _senders(demand, marks.first, hosts, turns), demand.readers),
        _made(INSIDE, marks.later, marks.receiver, demand.readers),
    )
    return Routes(*(np.concatenate(columns) for columns in zip(*made, strict=True)))


@dataclass(frozen=True, slots=True)
class _Marks:
    """How every reader gets every thing, [S, r] each: it has it already (`kept`), a `neighbour` on its host gives it
    (`near`), another host does (`first`), or the `receiver` on its host hands it on (`later`)."""

    kept: NDArray[np.bool_]
    near: NDArray[np.bool_]
    first: NDArray[np.bool_]
    later: NDArray[np.bool_]
    neighbour: Numbers
    receiver: Numbers


def _marks(holders: Numbers, readers: Numbers, hosts: Numbers, turns: Numbers) -> _Marks:
    turn = np.broadcast_to(turns[:, None], readers.shape)
    first_time = _first(readers)
    kept = (readers[:, :, None] == holders[:, None, :]).any(axis=2)
    near = hosts[readers][:, :, None] == hosts[holders][:, None, :]  # [S, readers, holders]
    close, lacking = near.any(axis=2), ~kept & first_time
    far = lacking & ~close
    together = (hosts[readers][:, :, None] == hosts[readers][:, None, :]) & far[:, None, :]  # [S, readers, readers]
    receiver = np.take_along_axis(readers, _pick(together, turn), axis=1)
    first = far & (receiver == readers)
    neighbour = np.take_along_axis(holders, _pick(near, turn), axis=1)
    return _Marks(kept & first_time, lacking & close, first, far & ~first, neighbour, receiver)


def least(demand: Demand, hosts: Numbers, count: int) -> Numbers:
    """Lower bound of bytes into each host, [count]: what its processes need and none of them has, once."""
    reading, holding = hosts[demand.readers], hosts[demand.holders]
    lacking = ~(reading[:, :, None] == holding[:, None, :]).any(axis=2)
    size = np.broadcast_to(demand.size[:, None], reading.shape)
    chosen = lacking & _first(reading)
    return np.bincount(reading[chosen], weights=size[chosen], minlength=count).astype(np.int64)


def owed(demand: Demand, hosts: Numbers, count: int) -> Numbers:
    """Lower bound of bytes out of each host, [count]: what others need and it alone has, once."""
    reading, holding = hosts[demand.readers], hosts[demand.holders]
    only = (holding == holding[:, :1]).all(axis=1) & (reading != holding[:, :1]).any(axis=1)
    return np.bincount(holding[only, 0], weights=demand.size[only], minlength=count).astype(np.int64)


def _made(hop: int, chosen: NDArray[np.bool_], source: Numbers, destination: Numbers) -> tuple[Numbers, ...]:
    at = np.nonzero(chosen)[0]
    return at, np.full(len(at), hop), source[chosen], destination[chosen]


def _turns(demand: Demand) -> Numbers:
    """Rank of each thing among those with the same first holder, largest first, [S]."""
    first = demand.holders[:, 0]
    order = np.lexsort((-demand.size, first))
    ordered = first[order]
    begins = np.searchsorted(ordered, ordered)
    turns = np.empty(len(order), np.int64)
    turns[order] = np.arange(len(order)) - begins
    return turns


def _first(readers: Numbers) -> NDArray[np.bool_]:
    """False where a process appears again in its line: it may be several ranks, and needs a thing once."""
    alike = readers[:, :, None] == readers[:, None, :]
    first: NDArray[np.bool_] = alike.argmax(axis=2) == np.arange(readers.shape[1])
    return first


def _pick(offered: NDArray[np.bool_], turn: Numbers) -> Numbers:
    """The index of one True along the last axis [..., K], chosen by turn, [...]; 0 where there is none."""
    count = offered.cumsum(axis=-1, dtype=np.int32)
    wanted = 1 + turn % np.maximum(count[..., -1], 1)
    picked: Numbers = (count == wanted[..., None]).argmax(axis=-1)
    return picked


def _senders(demand: Demand, chosen: NDArray[np.bool_], hosts: Numbers, turns: Numbers) -> Numbers:
    """The sender for each chosen reader, [S, readers]: of the possible hosts, the one with the least to send so far."""
    holders = demand.holders
    senders = np.zeros(chosen.shape, np.int64)
    at, of = np.nonzero(chosen)
    host = hosts[holders]
    if (host == host[:, :1]).all():  # the usual case: a tp group lies on one host
        senders[at, of] = holders[at, turns[at] % holders.shape[1]]
        return senders
    load = np.zeros(int(hosts.max()) + 1)
    size = demand.size[at]
    for index in np.argsort(-size, kind="stable").tolist():
        row, reader = at[index], of[index]
        rank = int(load[host[row]].argmin())
        load[host[row, rank]] += size[index]
        senders[row, reader] = holders[row, rank]
    return senders


@dataclass(frozen=True, slots=True)
class Leg:
    """Columns with the same axis and the same spread."""

    columns: tuple[Column, ...]
    source: Spread

    @property
    def axis(self) -> Axis:
        return self.columns[0].axis

    @property
    def size_bytes(self) -> int:
        return sum(column.size_bytes for column in self.columns)

    def __post_init__(self) -> None:
        assert len({column.axis for column in self.columns}) == 1, "the columns of a leg have one axis"


def segments_of(lengths: Numbers, leg: Leg, target: Spread) -> tuple[Numbers, Numbers, Numbers, Demand]:
    """Row, first token and end of S ranges, cut where a range of either side ends. Each is held whole by one rank of
    the producers and needed whole by one of the consumers."""
    source = leg.source
    if leg.axis == "row":
        lengths, source, target = np.ones_like(lengths), source.flat(), target.flat()
    given, wanted = source.bounds(lengths), target.bounds(lengths)
    start = np.maximum(given[:, :-1, None], wanted[:, None, :-1])  # [N, cp of the producers, cp of the consumers]
    stop = np.minimum(given[:, 1:, None], wanted[:, None, 1:])
    row, from_rank, to_rank = np.nonzero(start < stop)
    begin, end = start[row, from_rank, to_rank], stop[row, from_rank, to_rank]
    holders = source.processes[source.parts[row], from_rank]
    return row, begin, end, Demand(end - begin, holders, target.processes[target.parts[row], to_rank])


@dataclass(frozen=True, slots=True)
class Pieces:
    """M ranges of tokens to move. Where source and destination are the same, the range is kept."""

    leg: Numbers
    hop: Numbers
    source: Numbers
    destination: Numbers
    row: Numbers
    start: Numbers
    stop: Numbers

    def __len__(self) -> int:
        return len(self.row)

    @property
    def tokens(self) -> Numbers:
        return self.stop - self.start

    def where(self, chosen: NDArray[np.bool_]) -> Self:
        return type(self)(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True, eq=False)
class TransferPlan:
    """All moves after which every process of `target` has its rows with the columns of all legs."""

    lengths: Numbers  # tokens of each row, [N]
    legs: tuple[Leg, ...]
    target: Spread
    hosts: Numbers  # [P], the host of each process
    pieces: Pieces  # by leg, then by row and first token

    @cached_property
    def bytes(self) -> Numbers:
        sizes = np.array([leg.size_bytes for leg in self.legs], np.int64)
        return self.pieces.tokens * sizes[self.pieces.leg]

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


def plan(lengths: Numbers, legs: Sequence[Leg], target: Spread, hosts: Numbers) -> TransferPlan:
    """Plan the transfer of rows to `target`. lengths: [N], in tokens; hosts: [P]."""
    made = [_pieces(number, lengths, leg, target, hosts) for number, leg in enumerate(legs)]
    joined = (np.concatenate([getattr(pieces, field.name) for pieces in made]) for field in fields(Pieces))
    return TransferPlan(lengths, tuple(legs), target, hosts, Pieces(*joined))


def _pieces(number: int, lengths: Numbers, leg: Leg, target: Spread, hosts: Numbers) -> Pieces:
    *cuts, demand = segments_of(lengths, leg, target)
    ways = routes(demand, hosts)
    columns = (cut[ways.at] for cut in cuts)
    joined = Pieces(np.full(len(ways.at), number), ways.hop, ways.source, ways.destination, *columns)
    order = np.lexsort((joined.start, joined.row))
    return Pieces(*(getattr(joined, field.name)[order] for field in fields(Pieces)))


@dataclass(frozen=True, slots=True)
class Volume:
    """Bytes of one transfer over H hosts, each joined to the others by one link; arrays are [H]. `inside` stays between
    processes of one host. `least` and `owed` are lower bounds into and out of each host."""

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
        evenly = -(-int(self.least.sum()) // max(1, len(self.least)))
        return int(max(self.least.max(initial=0), self.owed.max(initial=0), evenly))


def volume(plan: TransferPlan) -> Volume:
    pieces, count = plan.pieces, int(plan.hosts.max(initial=-1)) + 1
    counts = {"token": int(plan.lengths.sum()), "row": len(plan.lengths)}
    total = sum(leg.size_bytes * counts[leg.axis] for leg in plan.legs)
    into, out = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for leg in plan.legs:
        *_, demand = segments_of(plan.lengths, leg, plan.target)
        into += leg.size_bytes * least(demand, plan.hosts, count)
        out += leg.size_bytes * owed(demand, plan.hosts, count)
    source, destination, size = pieces.source, pieces.destination, plan.bytes
    begin, end = plan.hosts[source], plan.hosts[destination]

    def per_host(of: Numbers, chosen: NDArray[np.bool_]) -> Numbers:
        return np.bincount(of[chosen], weights=size[chosen], minlength=count).astype(np.int64)

    return Volume(
        sent=per_host(begin, begin != end),
        received=per_host(end, begin != end),
        inside=per_host(begin, (source != destination) & (begin == end)),
        least=into,
        owed=out,
        total=total,
        copies=int(size.sum()),
    )
