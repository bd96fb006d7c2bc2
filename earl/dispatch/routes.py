"""Who gives what to whom, whatever it is: once into every host that lacks it, and from there on to others on the host.

    first hop    from a process that has something to one that needs it: once into every host that has none of it
    second hop   from the one that received it to the others on its host, where links are faster

Rows (plan.py) and weights (weights.py) travel by the same routes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.spread import Numbers

ACROSS, INSIDE = 0, 1
"""Hops."""


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
    holders, readers = demand.holders, demand.readers
    turn = np.broadcast_to(_turns(demand)[:, None], readers.shape)
    first_time = _first(readers)
    kept = (readers[:, :, None] == holders[:, None, :]).any(axis=2)
    lacking = ~kept & first_time
    near = hosts[readers][:, :, None] == hosts[holders][:, None, :]  # [S, readers, holders]
    far = lacking & ~near.any(axis=2)
    together = (hosts[readers][:, :, None] == hosts[readers][:, None, :]) & far[:, None, :]  # [S, readers, readers]
    receiver = np.take_along_axis(readers, _pick(together, turn), axis=1)
    first = far & (receiver == readers)
    near_holder = np.take_along_axis(holders, _pick(near, turn), axis=1)
    parts = (
        _made(ACROSS, kept & first_time, readers, readers),
        _made(ACROSS, lacking & ~far, near_holder, readers),
        _made(ACROSS, first, _senders(demand, first, hosts, turn[:, 0]), readers),
        _made(INSIDE, far & ~first, receiver, readers),
    )
    return Routes(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def least(demand: Demand, hosts: Numbers, count: int) -> Numbers:
    """What has to come into each host at least, [count]: what its processes need and none of them has, once."""
    reading, holding = hosts[demand.readers], hosts[demand.holders]
    lacking = ~(reading[:, :, None] == holding[:, None, :]).any(axis=2)
    once = (reading[:, :, None] == reading[:, None, :]).argmax(axis=2) == np.arange(reading.shape[1])
    size = np.broadcast_to(demand.size[:, None], reading.shape)
    chosen = lacking & once
    return np.bincount(reading[chosen], weights=size[chosen], minlength=count).astype(np.int64)


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
    count = offered.cumsum(axis=-1)
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
