"""What a transfer should take by each transport, from its plan and from what links are like: pure.

It is where `Pace` (pace.py) begins from, which then goes by what transfers took.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.plan import TransferPlan
from earl.dispatch.transports.controller import CONTROLLER, ways
from earl.dispatch.transports.steps import apart, num_steps
from earl.dispatch.volume import volume

OVERHEAD = 1.06
"""Bytes on a link over bytes of messages: headers, and what comes back."""
BRANCHES = 8
"""Of the tree in which processes agree; see `Peers.most`."""
INSIDE_BYTES_PER_SECOND = 1e9
"""Between processes of one host."""


@dataclass(frozen=True, slots=True)
class Link:
    """What joins two hosts."""

    bytes_per_second: float
    """In each direction."""
    message_seconds: float
    """From sending the shortest message until it is there, with all that processes do for it; see `message_seconds`."""


def message_seconds(agreement_seconds: float, processes: int) -> float:
    """What one message takes, from what it takes all processes to agree (`Transport.most`)."""
    return agreement_seconds / agreement(processes)


def expected_seconds(plan: TransferPlan, link: Link) -> dict[str, float]:
    """By transport: `controller`, and `peers` or, where a host has several processes, `shared`.

    Every process comes to the same, as it does to the same plan.
    """
    shared = len(np.unique(plan.hosts)) < len(plan.hosts)
    return {"controller": _centralised(plan, link), "shared" if shared else "peers": _direct(plan, link)}


def _direct(plan: TransferPlan, link: Link) -> float:
    moved = volume(plan)
    inside = float(moved.inside.max(initial=0)) / INSIDE_BYTES_PER_SECOND
    seconds = moved.busiest * OVERHEAD / link.bytes_per_second + inside
    for sizes in plan.sizes:
        stepped = apart(plan.hosts, sizes)
        waits = agreement(len(plan.hosts)) + num_steps(plan.hosts, stepped) + _messages(sizes > stepped)
        seconds += waits * link.message_seconds
    return seconds


def _centralised(plan: TransferPlan, link: Link) -> float:
    seconds = 0.0
    for way in ways(plan):
        pieces = way.pieces
        met = np.where(pieces.source == CONTROLLER, pieces.destination, pieces.source)
        far = plan.hosts[met] != plan.hosts[CONTROLLER]
        seconds += float(way.bytes[far].sum()) * OVERHEAD / link.bytes_per_second
        seconds += float(way.bytes[~far].sum()) / INSIDE_BYTES_PER_SECOND
        waits = agreement(len(plan.hosts)) + len(np.unique(met[met != CONTROLLER]))
        seconds += waits * link.message_seconds
    return seconds


def _messages(sent: NDArray[np.bool_]) -> int:
    """Of the process that gives, or gets, the most. sent: [P, P], whether there is a message."""
    return int(max(sent.sum(axis=1).max(initial=0), sent.sum(axis=0).max(initial=0)))


def agreement(processes: int) -> int:
    """Messages after one another in which all processes agree: up a tree, and down again."""
    last, depth = processes - 1, 0
    while last > 0:
        last, depth = (last - 1) // BRANCHES, depth + 1
    return max(1, 2 * depth)
