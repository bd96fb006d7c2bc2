"""Which process sends which tokens of which rows to which other one: pure, from the rows' lengths alone.

What a process has itself it keeps; the rest goes as routes.py says. Every process makes the same plan from the same
lengths, so that plans are not sent.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import blake2b
from typing import Self

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.rows import Axis, Column, Numbers, Spread

# Who gives what to whom, whatever it is: once into every host that lacks it, and from there on to others on the host.
#
# first hop    from a process that has something to one that needs it: once into every host that has none of it
# second hop   from the one that received it to the others on its host, where links are faster
#
# Rows (plan.py) and weights (weights.py) travel by the same routes.

ACROSS, INSIDE = 0, 1
"""Hops."""
BLOCK = 1 << 22
"""Pairs of processes that are compared at once: what is as large as their number is made for so many things alone."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Things that some processes have whole and others need whole, S of them. A process may stand in a line twice."""

    size: Numbers
    """[S], of each."""
    holders: Numbers
    """[S, h], the processes that have it."""
    readers: Numbers
    """[S, r], those that need it."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The ways that things take, M of them. Where source and destination are the same, a thing is kept."""

    at: Numbers
    """Which of the things."""
    hop: Numbers
    source: Numbers
    """The process that gives it."""
    destination: Numbers


def routes(demand: Demand, hosts: Numbers) -> Routes:
    """Every reader gets each thing once, and none that it has itself.

    Among processes on a reader's host that have a thing it is taken from one in turn; from other hosts it comes
    from the one that has the least to send so far.

    Args:
        hosts: the host of each process, [P].
    """
    turns = _turns(demand)
    step = max(1, BLOCK // (demand.readers.shape[1] * max(demand.readers.shape[1], demand.holders.shape[1], 1)))
    blocks = [
        _marks(
            demand.holders[begin : begin + step],
            demand.readers[begin : begin + step],
            hosts,
            turns[begin : begin + step],
        )
        for begin in range(0, max(1, len(turns)), step)
    ]
    marks = _Marks(*(np.concatenate([getattr(block, field.name) for block in blocks]) for field in fields(_Marks)))
    parts = (
        _made(ACROSS, marks.kept, demand.readers, demand.readers),
        _made(ACROSS, marks.near, marks.neighbour, demand.readers),
        _made(ACROSS, marks.first, _senders(demand, marks.first, hosts, turns), demand.readers),
        _made(INSIDE, marks.later, marks.receiver, demand.readers),
    )
    return Routes(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@dataclass(frozen=True, slots=True)
class _Marks:
    """What every reader does about every thing, [S, r] each."""

    kept: NDArray[np.bool_]
    """It has it."""
    near: NDArray[np.bool_]
    """It takes it from its neighbour."""
    first: NDArray[np.bool_]
    """It takes it from another host."""
    later: NDArray[np.bool_]
    """It takes it from the receiver on its host."""
    neighbour: Numbers
    receiver: Numbers


def _marks(holders: Numbers, readers: Numbers, hosts: Numbers, turns: Numbers) -> _Marks:
    """Of some things."""
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
    """What has to come into each host at least, [count]: what its processes need and none of them has, once."""
    reading, holding = hosts[demand.readers], hosts[demand.holders]
    lacking = ~(reading[:, :, None] == holding[:, None, :]).any(axis=2)
    once = (reading[:, :, None] == reading[:, None, :]).argmax(axis=2) == np.arange(reading.shape[1])
    size = np.broadcast_to(demand.size[:, None], reading.shape)
    chosen = lacking & once
    return np.bincount(reading[chosen], weights=size[chosen], minlength=count).astype(np.int64)


def owed(demand: Demand, hosts: Numbers, count: int) -> Numbers:
    """What has to go out of each host at least, [count]: what others need and it alone has, once."""
    reading, holding = hosts[demand.readers], hosts[demand.holders]
    only = (holding == holding[:, :1]).all(axis=1) & (reading != holding[:, :1]).any(axis=1)
    return np.bincount(holding[only, 0], weights=demand.size[only], minlength=count).astype(np.int64)


def _made(hop: int, chosen: NDArray[np.bool_], source: Numbers, destination: Numbers) -> tuple[Numbers, ...]:
    at = np.nonzero(chosen)[0]
    return at, np.full(len(at), hop), source[chosen], destination[chosen]


def _turns(demand: Demand) -> Numbers:
    """The place of each among those with the same first holder, the largest first, [S]."""
    first = demand.holders[:, 0]
    order = np.lexsort((-demand.size, first))
    ordered = first[order]
    begins = np.searchsorted(ordered, ordered)
    turns = np.empty(len(order), np.int64)
    turns[order] = np.arange(len(order)) - begins
    return turns


def _first(readers: Numbers) -> NDArray[np.bool_]:
    """False where a process has stood before in its line: it may be several ranks, and needs a thing once."""
    alike = readers[:, :, None] == readers[:, None, :]
    first: NDArray[np.bool_] = alike.argmax(axis=2) == np.arange(readers.shape[1])
    return first


def _pick(offered: NDArray[np.bool_], turn: Numbers) -> Numbers:
    """Of the True along the last axis [..., K] one in turn, [...]; 0 where there is none."""
    count = offered.cumsum(axis=-1, dtype=np.int32)
    wanted = 1 + turn % np.maximum(count[..., -1], 1)
    picked: Numbers = (count == wanted[..., None]).argmax(axis=-1)
    return picked


def _senders(demand: Demand, chosen: NDArray[np.bool_], hosts: Numbers, turns: Numbers) -> Numbers:
    """Who sends to the chosen readers, [S, readers]: of the hosts that could, the one with the least to send so far."""
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


# What one side has and the other one needs, range by range.


@dataclass(frozen=True, slots=True)
class Leg:
    """Columns that lie spread alike."""

    columns: tuple[Column, ...]
    source: Spread

    @property
    def axis(self) -> Axis:
        """Of all of its columns."""
        return self.columns[0].axis

    @property
    def size_bytes(self) -> int:
        """Of a token, or of a row."""
        return sum(column.size_bytes for column in self.columns)

    def __post_init__(self) -> None:
        assert len({column.axis for column in self.columns}) == 1, "the columns of a leg have one axis"


@dataclass(frozen=True, slots=True)
class Segments:
    """Ranges that lie whole on one rank of the producers and are needed whole by one of the consumers, S of them."""

    row: Numbers
    start: Numbers
    stop: Numbers
    holders: Numbers
    """[S, tp of the producers], the processes that have each."""
    readers: Numbers
    """[S, tp of the consumers], those that need it."""

    @property
    def demand(self) -> Demand:
        """Who has and who needs how many tokens."""
        return Demand(self.stop - self.start, self.holders, self.readers)


def segments_of(lengths: Numbers, leg: Leg, target: Spread) -> Segments:
    """Cut every row of a leg where a range of either side ends."""
    source = leg.source
    if leg.axis == "row":
        lengths, source, target = np.ones_like(lengths), source.flat(), target.flat()
    given, wanted = source.bounds(lengths), target.bounds(lengths)
    start = np.maximum(given[:, :-1, None], wanted[:, None, :-1])  # [N, cp of the producers, cp of the consumers]
    stop = np.minimum(given[:, 1:, None], wanted[:, None, 1:])
    row, from_rank, to_rank = np.nonzero(start < stop)
    cuts = (start[row, from_rank, to_rank], stop[row, from_rank, to_rank])
    holders = source.processes[source.parts[row], from_rank]
    return Segments(row, *cuts, holders, target.processes[target.parts[row], to_rank])


# What makes two transfers the same: their lengths, layouts, columns and hosts. Plans are kept by it.


def signature(lengths: Numbers, legs: Sequence[Leg], target: Spread, hosts: Numbers) -> bytes:
    """The same for two transfers only if one plan serves both: 16 bytes."""
    digest = blake2b(repr([leg.columns for leg in legs]).encode(), digest_size=16)
    spreads = [target, *(leg.source for leg in legs)]
    for array in (lengths, hosts, *(own for spread in spreads for own in (spread.processes, spread.parts))):
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class Pieces:
    """Ranges of tokens on their way, M of them. Where source and destination are the same, the range is kept."""

    leg: Numbers
    hop: Numbers
    source: Numbers
    """The process that sends."""
    destination: Numbers
    row: Numbers
    start: Numbers
    """The first token, counted in the row."""
    stop: Numbers
    """Behind the last one."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def tokens(self) -> Numbers:
        """Of each piece, [M]."""
        return self.stop - self.start

    def where(self, chosen: NDArray[np.bool_]) -> Self:
        """Some of them, in the same order."""
        return type(self)(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True)
class TransferPlan:
    """What is moved so that every process of `target` has its rows with the columns of all legs."""

    lengths: Numbers
    """Tokens of each row, [N]."""
    legs: tuple[Leg, ...]
    target: Spread
    hosts: Numbers
    """[P], the host of each process."""
    pieces: Pieces
    """By leg, then by row and first token."""

    @cached_property
    def bytes(self) -> Numbers:
        """Of each piece, [M]."""
        sizes = np.array([leg.size_bytes for leg in self.legs], np.int64)
        return self.pieces.tokens * sizes[self.pieces.leg]

    def of(self, process: int, hop: int) -> Pieces:
        """What one process sends, receives and keeps in a hop."""
        pieces = self.pieces
        return pieces.where((pieces.hop == hop) & ((pieces.source == process) | (pieces.destination == process)))

    @cached_property
    def sizes(self) -> list[Numbers]:
        """Of the messages of each hop, [P, P]: bytes from each process to each other one."""
        pieces, count = self.pieces, len(self.hosts)
        moved = pieces.source != pieces.destination
        return [
            tabled(pieces.source[chosen], pieces.destination[chosen], self.bytes[chosen], count)
            for chosen in (moved & (pieces.hop == hop) for hop in self.hops)
        ]

    @property
    def hops(self) -> range:
        """All that have anything to move, and those before them."""
        return range(int(self.pieces.hop.max(initial=-1)) + 1)


def tabled(source: Numbers, destination: Numbers, size: Numbers, count: int) -> Numbers:
    """Sizes of ways added up by who sends and who receives, [count, count]."""
    table = np.bincount(source * count + destination, weights=size, minlength=count * count)
    return table.reshape(count, count).astype(np.int64)


KEPT_PLANS = 4
_kept: OrderedDict[bytes, TransferPlan] = OrderedDict()


def plan(lengths: Numbers, legs: Sequence[Leg], target: Spread, hosts: Numbers) -> TransferPlan:
    """Plan the way of rows to `target`. The last plans are kept: the same transfer is not planned twice.

    Args:
        lengths: tokens of each row, [N].
        legs: the columns that are wanted, and where they lie.
        hosts: the host of each process, [P].
    """
    asked = signature(lengths, legs, target, hosts)
    found = _kept.pop(asked, None) or _planned(lengths, legs, target, hosts)
    _kept[asked] = found
    if len(_kept) > KEPT_PLANS:
        _kept.popitem(last=False)
    return found


def _planned(lengths: Numbers, legs: Sequence[Leg], target: Spread, hosts: Numbers) -> TransferPlan:
    made = [_pieces(number, lengths, leg, target, hosts) for number, leg in enumerate(legs)]
    joined = (np.concatenate([getattr(pieces, field.name) for pieces in made]) for field in fields(Pieces))
    return TransferPlan(lengths, tuple(legs), target, hosts, Pieces(*joined))


def _pieces(number: int, lengths: Numbers, leg: Leg, target: Spread, hosts: Numbers) -> Pieces:
    """The pieces of one leg."""
    segments = segments_of(lengths, leg, target)
    ways = routes(segments.demand, hosts)
    columns = (segments.row[ways.at], segments.start[ways.at], segments.stop[ways.at])
    joined = Pieces(np.full(len(ways.at), number), ways.hop, ways.source, ways.destination, *columns)
    order = np.lexsort((joined.start, joined.row))
    return Pieces(*(getattr(joined, field.name)[order] for field in fields(Pieces)))


# What a plan moves over which link, and what it has to move at least.


@dataclass(frozen=True, slots=True)
class Volume:
    """Bytes of one transfer. H hosts, each joined to the others by one link."""

    sent: Numbers
    """[H], out of each host."""
    received: Numbers
    """[H], into each host."""
    inside: Numbers
    """[H], between processes of one host."""
    least: Numbers
    """[H], into each host: what its processes need and none of them had, once."""
    owed: Numbers
    """[H], out of each host: what others need and its processes alone have, once."""
    total: int
    """All that consumers need, every byte once: what a controller gathers."""
    copies: int
    """All that consumers need, each its own copy: what a controller scatters."""

    @property
    def across(self) -> int:
        """Over links."""
        return int(self.sent.sum())

    @property
    def busiest(self) -> int:
        """The most that one link carries in one direction: it sets the time."""
        return int(max(self.sent.max(initial=0), self.received.max(initial=0)))

    @property
    def bound(self) -> int:
        """No plan has a link that carries less in both directions."""
        evenly = -(-int(self.least.sum()) // max(1, len(self.least)))
        return int(max(self.least.max(initial=0), self.owed.max(initial=0), evenly))


def volume(plan: TransferPlan) -> Volume:
    """What a plan moves."""
    pieces, count = plan.pieces, int(plan.hosts.max(initial=-1)) + 1
    total = int((plan.lengths.sum() * _token_bytes(plan)) + len(plan.lengths) * _row_bytes(plan))
    into, out = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for leg in plan.legs:
        demand = segments_of(plan.lengths, leg, plan.target).demand
        into += leg.size_bytes * least(demand, plan.hosts, count)
        out += leg.size_bytes * owed(demand, plan.hosts, count)
    return tallied(pieces.source, pieces.destination, plan.bytes, plan.hosts, into, out, total)


def tallied(
    source: Numbers, destination: Numbers, size: Numbers, hosts: Numbers, into: Numbers, out: Numbers, total: int
) -> Volume:
    """What ways between processes add up to, host by host.

    Args:
        source: the process that each way [M] begins at; where it ends there too, nothing moves.
        size: bytes of each, [M].
        into: `least` of the volume, as `out` is `owed`.
    """
    begin, end = hosts[source], hosts[destination]

    def per_host(of: Numbers, chosen: NDArray[np.bool_]) -> Numbers:
        return np.bincount(of[chosen], weights=size[chosen], minlength=len(into)).astype(np.int64)

    return Volume(
        sent=per_host(begin, begin != end),
        received=per_host(end, begin != end),
        inside=per_host(begin, (source != destination) & (begin == end)),
        least=into,
        owed=out,
        total=total,
        copies=int(size.sum()),
    )


def _token_bytes(plan: TransferPlan) -> int:
    return sum(leg.size_bytes for leg in plan.legs if leg.axis == "token")


def _row_bytes(plan: TransferPlan) -> int:
    return sum(leg.size_bytes for leg in plan.legs if leg.axis == "row")
