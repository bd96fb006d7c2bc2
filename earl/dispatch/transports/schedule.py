"""Orders messages so that no link carries two at once in one direction: pure.

The load between hosts is padded with dummy bytes until every host sends and receives as much as the busiest one; it is
then a sum of permutations (Birkhoff 1946), which together take as long as the busiest link. Permutations become rounds,
in which each host sends one piece and receives one; rounds become steps of single processes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.rows import Numbers

SHORTEST = 1 / 12
"""Relative to the busiest host's mean load per other host: shorter permutations are not worth a message."""
STEP = 0.95
"""Factor on the required length each time that no permutation of longer pieces is left."""

Permutation = tuple[Numbers, float]
"""The receiver of each host, and the least bytes of any of these pairs, dummy bytes included."""


def permutations(load: Numbers) -> Iterator[Permutation]:
    """Permutations of a load [H, H] of bytes between hosts, long ones first, until what is left is short."""
    busiest = int(max(load.sum(axis=0).max(initial=0), load.sum(axis=1).max(initial=0)))
    sends, gets = busiest - load.sum(axis=1), busiest - load.sum(axis=0)
    dummies = np.outer(sends, gets) / max(int(sends.sum()), 1)  # with these all rows and columns have the same sum
    full = load + dummies
    longest = float(full.max(initial=0))
    while longest > busiest / len(load) * SHORTEST:
        to = _permutation(full, longest)
        if to is None:
            longest *= STEP
            continue
        chosen = np.arange(len(load)), to
        size = float(full[chosen].min())
        full[chosen] -= size
        yield to, size


def _permutation(full: NDArray[np.float64], least: float) -> Numbers | None:
    """A permutation whose pairs all have at least `least` bytes; None where there is none."""
    hosts = len(full)
    longest_first = np.argsort(-full, axis=1, kind="stable")
    counts = (full >= least).sum(axis=1)
    offered = [longest_first[host, : counts[host]].tolist() for host in range(hosts)]
    sender = [-1] * hosts
    if not all(_placed(host, offered, sender, set()) for host in range(hosts)):
        return None
    return np.argsort(sender)


def _placed(host: int, offered: list[list[int]], sender: list[int], seen: set[int]) -> bool:
    """Find a receiver for a host; hosts in its way are given another one (augmenting path)."""
    for other in offered[host]:
        if other in seen:
            continue
        seen.add(other)
        if sender[other] < 0 or _placed(sender[other], offered, sender, seen):
            sender[other] = host
            return True
    return False


# Rounds: messages are cut so that every host is busy both ways in every round. All rounds together take hardly longer
# than the busiest link needs. Traffic inside a host is not part of it.

MOST_HOSTS = 128
"""With more hosts messages are not cut: each host sends to the next one, then to the one after that, and so on."""


@dataclass(frozen=True, slots=True)
class ExchangeRound:
    """One piece from each host, [H] each, no two of them to the same host."""

    to: Numbers
    begin: Numbers  # first byte, counted within the bytes that its host has for the receiver
    end: Numbers  # one past the last byte; equal to `begin` where there is no piece


def rounds(load: Numbers) -> tuple[ExchangeRound, ...]:
    """All rounds for a load [H, H] of bytes between hosts; cached."""
    between = np.array(load, np.int64)
    np.fill_diagonal(between, 0)
    return _rounds(between.tobytes(), len(between))


@lru_cache(maxsize=16)
def _rounds(load: bytes, hosts: int) -> tuple[ExchangeRound, ...]:
    left = np.frombuffer(load, np.int64).reshape(hosts, hosts).copy()
    to, count = _take_rounds(left, permutations(left.copy()) if hosts <= MOST_HOSTS else [])
    _append(left, to, count)
    _dissolve(to, count)
    here = np.arange(hosts)
    shifts = _take_rounds(left, (((here + shift) % hosts, int(left.max())) for shift in range(1, hosts)))
    return _pieces([*to, *shifts[0]], [*count, *shifts[1]])


def _take_rounds(left: Numbers, turns: Iterable[Permutation]) -> tuple[Numbers, Numbers]:
    """Receiver and bytes by round and host, [R, H] each; subtracted from `left`."""
    here, taken = np.arange(len(left)), []
    for to, size in turns:
        count = np.minimum(left[here, to], int(np.ceil(size)))
        left[here, to] -= count
        if count.any():
            taken.append((to, count))
    table = np.array(taken, np.int64).reshape(len(taken), 2, len(left))
    return table[:, 0], table[:, 1]


def _append(left: Numbers, to: Numbers, count: Numbers) -> None:
    """Add what is left to pieces with the same receiver, each to the one that is shortest for its round."""
    for host, other in np.argwhere(left).tolist():
        having = np.flatnonzero((to[:, host] == other) & (count[:, host] > 0))
        if len(having):
            room = count[having].max(axis=1) - count[having, host]
            count[having[room.argmax()], host] += left[host, other]
            left[host, other] = 0


def _dissolve(to: Numbers, count: Numbers) -> None:
    """Distribute the pieces of a round over other rounds where the total time does not grow."""
    here = np.arange(to.shape[1])
    for number in np.argsort(count.max(axis=1, initial=0), kind="stable").tolist():
        left, fewer = np.zeros((len(here), len(here)), np.int64), count.copy()
        left[here, to[number]] = count[number]
        fewer[number] = 0
        _append(left, to, fewer)
        if not left.any() and fewer.max(axis=1).sum() <= count.max(axis=1).sum():
            count[:] = fewer


def _pieces(to: Sequence[Numbers], count: Sequence[Numbers]) -> tuple[ExchangeRound, ...]:
    """Non-empty rounds, with the offset of each piece in its message."""
    hosts = len(to[0]) if to else 0
    sent, here, made = np.zeros((hosts, hosts), np.int64), np.arange(hosts), []
    for own, size in zip(to, count, strict=True):
        begin = sent[here, own]
        sent[here, own] += size
        if size.any():
            made.append(ExchangeRound(own, begin, begin + size))
    return tuple(made)


# Steps: where n processes share a host, a round is n steps; in each, every process of a host sends to another process
# of the receiving host. A piece is the same fraction of each of their messages.

AT_ONCE_BYTES = 256 * 1024
"""Bytes to or from a host that switches can buffer: below this, sending at once loses no packets."""


@dataclass(frozen=True, slots=True)
class MessagePart:
    other: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TransferStep:
    """What one process sends and receives at a time; either may be missing."""

    to: MessagePart | None
    source: MessagePart | None


def stepped_sizes(hosts: Numbers, sizes: Numbers) -> Numbers:
    """The messages that go step by step, [P, P]; 0 for those that may all go at once. hosts: [P], the host of each
    process; sizes: [P, P], bytes between processes. Messages go at once where they cross no link, or where the load of
    every host is small."""
    across: Numbers = np.where(hosts[:, None] == hosts[None, :], 0, sizes)
    seats, host_of = _seats(hosts)
    load = _load(across, host_of, len(seats))
    crowded = max(load.sum(axis=0).max(initial=0), load.sum(axis=1).max(initial=0)) > AT_ONCE_BYTES
    return across if crowded else np.zeros_like(across)


def steps(hosts: Numbers, process: int, sizes: Numbers) -> Iterator[TransferStep]:
    """The steps of one process, in order; all processes compute the same rounds."""
    seats, host_of = _seats(hosts)
    load, sent, received = _load(sizes, host_of, len(seats)), sizes[process], sizes[:, process]
    here, most = int(host_of[process]), seats.shape[1]
    seat = int(np.flatnonzero(seats[here] == process)[0])

    def part(host: int, shift: int, whole: int, begin: int, end: int, messages: Numbers) -> MessagePart | None:
        other = int(seats[host, (seat + shift) % most])
        size = int(messages[other]) if other >= 0 else 0
        cut = MessagePart(other, size * begin // max(whole, 1), size * end // max(whole, 1))
        return cut if cut.end > cut.begin else None

    for turn in rounds(load):
        to, source = int(turn.to[here]), int(np.flatnonzero(turn.to == here)[0])
        going = int(load[here, to]), int(turn.begin[here]), int(turn.end[here])
        coming = int(load[source, here]), int(turn.begin[source]), int(turn.end[source])
        for shift in range(most):
            step = TransferStep(part(to, shift, *going, sent), part(source, -shift, *coming, received))
            if step.to or step.source:
                yield step


def _seats(hosts: Numbers) -> tuple[Numbers, Numbers]:
    """The processes of each host, [H, n], padded with -1; and the index of each process's host, [P]."""
    places, host_of = np.unique(hosts, return_inverse=True)
    members = [np.flatnonzero(host_of == number) for number in range(len(places))]
    seats = np.full((len(places), max(map(len, members))), -1)
    for host, own in enumerate(members):
        seats[host, : len(own)] = own
    return seats, host_of


def _load(sizes: Numbers, host_of: Numbers, hosts: int) -> Numbers:
    if np.array_equal(host_of, np.arange(hosts)):
        return sizes
    pairs = host_of[:, None] * hosts + host_of[None, :]
    table = np.bincount(pairs.ravel(), weights=sizes.ravel(), minlength=hosts * hosts)
    return table.astype(np.int64).reshape(hosts, hosts)
