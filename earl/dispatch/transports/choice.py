"""Which transport is fastest for a transfer, from its plan and from what links are like: pure."""

from dataclasses import dataclass

import numpy as np

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
    direct_seconds: float
    """In which all processes give each other the least there is, directly: longer where hosts share cores."""
    centralised_seconds: float
    """The same through a controller."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A transport and why; it is recorded with the transfer."""

    transport: str
    """peers, shared or controller."""
    seconds: float
    """What it is expected to take."""
    other_seconds: float
    """What the other way is expected to take: centralised where this is direct, direct where it is centralised."""

    @property
    def reason(self) -> str:
        """In one line."""
        way, other = ("centralised", "direct") if self.transport == "controller" else ("direct", "centralised")
        return f"{way}: {self.seconds:.3g} s expected, {other} {self.other_seconds:.3g} s"


def message_seconds(agreement_seconds: float, processes: int) -> float:
    """What one message takes, from what it takes all processes to agree (`Transport.most`)."""
    return agreement_seconds / agreement(processes)


def choose(plan: TransferPlan, link: Link) -> Choice:
    """The fastest transport. Every process comes to the same, as it does to the same plan."""
    direct, centralised = _direct(plan, link), _centralised(plan, link)
    if centralised < direct:
        return Choice("controller", centralised, direct)
    return Choice("shared" if len(np.unique(plan.hosts)) < len(plan.hosts) else "peers", direct, centralised)


def _direct(plan: TransferPlan, link: Link) -> float:
    moved = volume(plan)
    inside = float(moved.inside.max(initial=0)) / INSIDE_BYTES_PER_SECOND
    processes, seconds = len(plan.hosts), moved.busiest * OVERHEAD / link.bytes_per_second + inside
    for sizes in plan.sizes:
        stepped = apart(plan.hosts, sizes)
        at_once = int((sizes > stepped).sum()) / max(1, processes * (processes - 1))
        waits = (1 - at_once) * agreement(processes) + num_steps(plan.hosts, stepped)
        seconds += at_once * link.direct_seconds + waits * link.message_seconds
    return seconds


def _centralised(plan: TransferPlan, link: Link) -> float:
    seconds = 0.0
    for way in ways(plan):
        pieces = way.pieces
        met = np.where(pieces.source == CONTROLLER, pieces.destination, pieces.source)
        far = plan.hosts[met] != plan.hosts[CONTROLLER]
        seconds += float(way.bytes[far].sum()) * OVERHEAD / link.bytes_per_second
        seconds += float(way.bytes[~far].sum()) / INSIDE_BYTES_PER_SECOND
        share = len(np.unique(met[met != CONTROLLER])) / max(1, len(plan.hosts) - 1)
        waits = (1 - share) * agreement(len(plan.hosts))
        seconds += share * link.centralised_seconds / 2 + waits * link.message_seconds
    return seconds


def agreement(processes: int) -> int:
    """Messages after one another in which all processes agree: up a tree, and down again."""
    last, depth = processes - 1, 0
    while last > 0:
        last, depth = (last - 1) // BRANCHES, depth + 1
    return max(1, 2 * depth)
