"""In which order messages go, so that no link carries two at once in one direction: pure.

    bytes from host to host ─▶ permutations ─▶ rounds: in each a host sends one piece and gets one, all about as long

Messages are cut so that every host is busy both ways in every round, whatever they have for each other; all rounds
together take hardly longer than the busiest link needs. What stays inside a host is no part of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from earl.dispatch.spread import Numbers
from earl.dispatch.transports.permutations import Permutation, permutations

MOST_HOSTS = 128
"""Messages of more hosts are not cut: each host sends to the next one, then to the one after that, and so on."""


@dataclass(frozen=True, slots=True)
class Round:
    """One piece from each host, [H] each. No two hosts send to the same one."""

    to: Numbers
    """The host that it goes to."""
    begin: Numbers
    """Its first byte, counted from the first that its host has for that one."""
    end: Numbers
    """Behind its last one; where the piece begins: there is none."""


def rounds(load: Numbers) -> tuple[Round, ...]:
    """All pieces. The same load is not cut twice.

    Args:
        load: [H, H], bytes from each host to each other one.
    """
    between = np.array(load, np.int64)
    np.fill_diagonal(between, 0)
    return _rounds(between.tobytes(), len(between))


@lru_cache(maxsize=16)
def _rounds(load: bytes, hosts: int) -> tuple[Round, ...]:
    left = np.frombuffer(load, np.int64).reshape(hosts, hosts).copy()
    to, count = _taken(left, permutations(left.copy()) if hosts <= MOST_HOSTS else [])
    _append(left, to, count)
    _dissolve(to, count)
    here = np.arange(hosts)
    shifts = _taken(left, (((here + shift) % hosts, int(left.max())) for shift in range(1, hosts)))
    return _pieces([*to, *shifts[0]], [*count, *shifts[1]])


def _taken(left: Numbers, turns: Iterable[Permutation]) -> tuple[Numbers, Numbers]:
    """Whom each host sends to, and how much, [R, H] each; it is taken from what is left."""
    here, taken = np.arange(len(left)), []
    for to, size in turns:
        count = np.minimum(left[here, to], int(np.ceil(size)))
        left[here, to] -= count
        if count.any():
            taken.append((to, count))
    table = np.array(taken, np.int64).reshape(len(taken), 2, len(left))
    return table[:, 0], table[:, 1]


def _append(left: Numbers, to: Numbers, count: Numbers) -> None:
    """Let what is left of a message go with one of its pieces, if it has any."""
    for host, other in np.argwhere(left).tolist():
        at = _roomiest(to, count, host, other)
        if at is not None:
            count[at, host] += left[host, other]
            left[host, other] = 0


def _dissolve(to: Numbers, count: Numbers) -> None:
    """Let the pieces of a round go with others of their messages, where all together do not take longer by it."""
    for number in np.argsort(count.max(axis=1, initial=0), kind="stable").tolist():
        kept, own = count.copy(), count[number].copy()
        count[number] = 0
        for host in np.flatnonzero(own).tolist():
            at = _roomiest(to, count, host, int(to[number, host]))
            if at is None:
                break
            count[at, host] += own[host]
        if at is None or count.max(axis=1).sum() > kept.max(axis=1).sum():
            count[:] = kept


def _roomiest(to: Numbers, count: Numbers, host: int, other: int) -> int | None:
    """The round in which a piece from one host to another one may grow most without being the longest."""
    having = np.flatnonzero((to[:, host] == other) & (count[:, host] > 0))
    room = count[having].max(axis=1, initial=0) - count[having, host]
    return int(having[room.argmax()]) if len(having) else None


def _pieces(to: Sequence[Numbers], count: Sequence[Numbers]) -> tuple[Round, ...]:
    """Rounds that carry anything, with the place of each piece in what its host has for the other one."""
    hosts = len(to[0]) if to else 0
    sent, here, made = np.zeros((hosts, hosts), np.int64), np.arange(hosts), []
    for own, size in zip(to, count, strict=True):
        begin = sent[here, own]
        sent[here, own] += size
        if size.any():
            made.append(Round(own, begin, begin + size))
    return tuple(made)
