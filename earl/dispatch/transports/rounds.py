"""In which order messages go, so that no link carries two at once in one direction: pure.

    round r: host i sends to host i + r, and receives from host i - r (modulo the hosts)

All hosts send and receive in every round, each to and from one other host. Where n processes share a host, n rounds
take the place of one: each process sends to one process of the other host at a time. Round 0 stays inside.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from earl.dispatch.spread import Numbers


@dataclass(frozen=True, slots=True)
class Round:
    """What one process does in a round: more than one of each only where hosts have unequally many processes."""

    inside: bool
    """Whether it stays on the host."""
    to: tuple[int, ...]
    """Processes that get something."""
    sources: tuple[int, ...]
    """Processes that something comes from."""


def rounds(hosts: Numbers, process: int, to: Collection[int], sources: Collection[int]) -> list[Round]:
    """The rounds in which a process has anything to do, in order; with round numbers that all processes agree on.

    Args:
        hosts: the host of each process, [P].
    """
    place, own = np.unique(hosts, return_inverse=True)
    order = np.argsort(own, kind="stable")
    first = np.searchsorted(own[order], np.arange(len(place)))
    within = np.empty(len(hosts), np.int64)  # the number of each process on its host
    within[order] = np.arange(len(hosts)) - first[own[order]]
    most = int(within.max()) + 1

    def number(source: int, destination: int) -> int:
        shift = (own[destination] - own[source]) % len(place)
        return int(shift * most + (within[destination] - within[source]) % most)

    sending = [(number(process, other), other) for other in to]
    coming = [(number(other, process), other) for other in sources]
    return [
        Round(
            current < most,
            tuple(other for own_number, other in sorted(sending) if own_number == current),
            tuple(other for own_number, other in sorted(coming) if own_number == current),
        )
        for current in sorted({own_number for own_number, _ in sending + coming})
    ]
