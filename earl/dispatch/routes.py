"""Who gives what to whom, whatever it is: once into every host that lacks it, and from there on to others on the host.

    first hop    from a process that has something to one that needs it: once into every host that has none of it
    second hop   from the one that received it to the others on its host, where links are faster

Rows (plan.py) and weights (weights.py) travel by the same routes.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.spread import Numbers

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
