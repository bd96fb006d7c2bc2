"""Permutations of hosts that together carry a load: pure.

Filled up by made-up bytes, every host sends and gets as much as the busiest one; whatever is left then is a sum of
permutations (Birkhoff 1946), so that there is always one more, and all together take as long as the busiest link.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.rows import Numbers

SHORTEST = 1 / 12
"""Of what the busiest host has for each of the others on average: what is shorter is not worth a message of its own."""
STEP = 0.95
"""How much shorter the shortest piece of a permutation may be each time that none of longer ones is left."""

Permutation = tuple[Numbers, float]
"""Whom each host sends to, and how many bytes at least each of them has for the other, made-up ones included."""


def permutations(load: Numbers) -> Iterator[Permutation]:
    """Long ones first, until what is left is short.

    Args:
        load: [H, H], bytes from each host to each other one.
    """
    busiest = int(max(load.sum(axis=0).max(initial=0), load.sum(axis=1).max(initial=0)))
    full = _filled_up(load, busiest)
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


def _filled_up(load: Numbers, busiest: int) -> NDArray[np.float64]:
    """With made-up bytes, so that all rows and columns have the same sum."""
    sends, gets = busiest - load.sum(axis=1), busiest - load.sum(axis=0)
    missing = int(sends.sum())
    return load + np.outer(sends, gets) / missing if missing else load.astype(np.float64)


def _permutation(full: NDArray[np.float64], least: float) -> Numbers | None:
    """Whom each host may send at least so much to, all to different ones; None where there is no such permutation."""
    hosts = len(full)
    longest_first = np.argsort(-full, axis=1, kind="stable")
    counts = (full >= least).sum(axis=1)
    offered = [longest_first[host, : counts[host]].tolist() for host in range(hosts)]
    sender = [-1] * hosts
    if not all(_placed(host, offered, sender, set()) for host in range(hosts)):
        return None
    return np.argsort(sender)


def _placed(host: int, offered: list[list[int]], sender: list[int], seen: set[int]) -> bool:
    """Find somebody for a host, and somebody else for whoever is in its way."""
    for other in offered[host]:
        if other in seen:
            continue
        seen.add(other)
        if sender[other] < 0 or _placed(sender[other], offered, sender, seen):
            sender[other] = host
            return True
    return False


# In which order messages go, so that no link carries two at once in one direction: pure.
#
# bytes from host to host ─▶ permutations ─▶ rounds: in each a host sends one piece and gets one, all about as long
#
# Messages are cut so that every host is busy both ways in every round, whatever they have for each other; all rounds
# together take hardly longer than the busiest link needs. What stays inside a host is no part of it.

MOST_HOSTS = 128
"""Messages of more hosts are not cut: each host sends to the next one, then to the one after that, and so on."""


@dataclass(frozen=True, slots=True)
class ExchangeRound:
    """One piece from each host, [H] each. No two hosts send to the same one."""

    to: Numbers
    """The host that it goes to."""
    begin: Numbers
    """Its first byte, counted from the first that its host has for that one."""
    end: Numbers
    """Behind its last one; where the piece begins: there is none."""


def rounds(load: Numbers) -> tuple[ExchangeRound, ...]:
    """All pieces. The same load is not cut twice.

    Args:
        load: [H, H], bytes from each host to each other one.
    """
    between = np.array(load, np.int64)
    np.fill_diagonal(between, 0)
    return _rounds(between.tobytes(), len(between))


@lru_cache(maxsize=16)
def _rounds(load: bytes, hosts: int) -> tuple[ExchangeRound, ...]:
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


def _pieces(to: Sequence[Numbers], count: Sequence[Numbers]) -> tuple[ExchangeRound, ...]:
    """Rounds that carry anything, with the place of each piece in what its host has for the other one."""
    hosts = len(to[0]) if to else 0
    sent, here, made = np.zeros((hosts, hosts), np.int64), np.arange(hosts), []
    for own, size in zip(to, count, strict=True):
        begin = sent[here, own]
        sent[here, own] += size
        if size.any():
            made.append(ExchangeRound(own, begin, begin + size))
    return tuple(made)


# What one process does in the rounds of all hosts (rounds.py): pure.
#
# Where n processes share a host, a round is n steps: in each, every process of a host sends to another process of the
# host that its host sends to. A piece is the same part of each of their messages.

AT_ONCE_BYTES = 256 * 1024
"""To or from a host, so few that switches have room for them: what is dropped costs time, not what waits."""


@dataclass(frozen=True, slots=True)
class MessagePart:
    """Of a message to or from another process."""

    other: int
    begin: int
    """Its first byte."""
    end: int
    """Behind its last one."""


@dataclass(frozen=True, slots=True)
class TransferStep:
    """What one process does at a time: it sends a part of a message, and gets one, or either alone."""

    to: MessagePart | None
    source: MessagePart | None


def apart(hosts: Numbers, sizes: Numbers) -> Numbers:
    """The messages that go step by step, [P, P]; 0 for those that may all go at once: they meet no link, or do not fill
    it.

    Args:
        hosts: the host of each process, [P].
        sizes: [P, P], bytes from each process to each other one.
    """
    across: Numbers = np.where(hosts[:, None] == hosts[None, :], 0, sizes)
    seats, host_of = _seats(hosts)
    load = _load(across, host_of, len(seats))
    crowded = max(load.sum(axis=0).max(initial=0), load.sum(axis=1).max(initial=0)) > AT_ONCE_BYTES
    return across if crowded else np.zeros_like(across)


def num_steps(hosts: Numbers, sizes: Numbers) -> int:
    """Of all rounds."""
    seats, host_of = _seats(hosts)
    return len(rounds(_load(sizes, host_of, len(seats)))) * int(seats.shape[1])


def steps(hosts: Numbers, process: int, sizes: Numbers) -> Iterator[TransferStep]:
    """All that crosses links, in order; all processes come to the same rounds.

    Args:
        hosts: the host of each process, [P].
        sizes: [P, P], bytes from each process to each other one.
    """
    seats, host_of = _seats(hosts)
    load = _load(sizes, host_of, len(seats))
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
            step = TransferStep(
                part(to, shift, *going, sizes[process]), part(source, -shift, *coming, sizes[:, process])
            )
            if step.to or step.source:
                yield step


def _seats(hosts: Numbers) -> tuple[Numbers, Numbers]:
    """The processes of each host, [H, n], -1 where it has fewer than others; and the number of each's host, [P]."""
    places, host_of = np.unique(hosts, return_inverse=True)
    members = [np.flatnonzero(host_of == number) for number in range(len(places))]
    seats = np.full((len(places), max(map(len, members))), -1)
    for host, own in enumerate(members):
        seats[host, : len(own)] = own
    return seats, host_of


def _load(sizes: Numbers, host_of: Numbers, hosts: int) -> Numbers:
    """Bytes from host to host."""
    if np.array_equal(host_of, np.arange(hosts)):
        return sizes
    pairs = host_of[:, None] * hosts + host_of[None, :]
    table = np.bincount(pairs.ravel(), weights=sizes.ravel(), minlength=hosts * hosts)
    return table.astype(np.int64).reshape(hosts, hosts)
