"""What one process does in the rounds of all hosts (rounds.py): pure.

Where n processes share a host, a round is n steps: in each, every process of a host sends to another process of the
host that its host sends to. A piece is the same part of each of their messages.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from earl.dispatch.spread import Numbers
from earl.dispatch.transports.rounds import rounds

AT_ONCE_BYTES = 256 * 1024
"""To or from a host, so few that switches have room for them: what is dropped costs time, not what waits."""


@dataclass(frozen=True, slots=True)
class Part:
    """Of a message to or from another process."""

    other: int
    begin: int
    """Its first byte."""
    end: int
    """Behind its last one."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one process does at a time: it sends a part of a message, and gets one, or either alone."""

    to: Part | None
    source: Part | None


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


def steps(hosts: Numbers, process: int, sizes: Numbers) -> Iterator[Step]:
    """All that crosses links, in order; all processes come to the same rounds.

    Args:
        hosts: the host of each process, [P].
        sizes: [P, P], bytes from each process to each other one.
    """
    seats, host_of = _seats(hosts)
    load = _load(sizes, host_of, len(seats))
    here, most = int(host_of[process]), seats.shape[1]
    seat = int(np.flatnonzero(seats[here] == process)[0])

    def part(host: int, shift: int, whole: int, begin: int, end: int, messages: Numbers) -> Part | None:
        other = int(seats[host, (seat + shift) % most])
        size = int(messages[other]) if other >= 0 else 0
        cut = Part(other, size * begin // max(whole, 1), size * end // max(whole, 1))
        return cut if cut.end > cut.begin else None

    for turn in rounds(load):
        to, source = int(turn.to[here]), int(np.flatnonzero(turn.to == here)[0])
        going = int(load[here, to]), int(turn.begin[here]), int(turn.end[here])
        coming = int(load[source, here]), int(turn.begin[source]), int(turn.end[source])
        for shift in range(most):
            step = Step(part(to, shift, *going, sizes[process]), part(source, -shift, *coming, sizes[:, process]))
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
