"""Which transport is fastest for a transfer, from its plan and from what links are like: pure."""

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from earl.dispatch.plan import TransferPlan
from earl.dispatch.routes import ACROSS, INSIDE
from earl.dispatch.transports.controller import CONTROLLER, ways
from earl.dispatch.volume import volume

OVERHEAD = 1.06
"""Bytes on a link over bytes of messages: headers, and what comes back."""
INSIDE_BYTES_PER_SECOND = 1e9
"""Between processes of one host."""
GATHERED = 0.2
"""What a message to or from a controller takes, over one of a round, which has to meet another one (at 16 hosts)."""


@dataclass(frozen=True, slots=True)
class Link:
    """What joins two hosts."""

    bytes_per_second: float
    """In each direction."""
    message_seconds: float
    """From sending the shortest message until it is there, with all that processes do for it; see `measured`."""


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
    return agreement_seconds / _agreement(processes)


def choose(plan: TransferPlan, link: Link) -> Choice:
    """The fastest transport. Every process comes to the same, as it does to the same plan."""
    direct, centralised = _direct(plan, link), _centralised(plan, link)
    if centralised < direct:
        return Choice("controller", centralised, direct)
    return Choice("shared" if len(np.unique(plan.hosts)) < len(plan.hosts) else "peers", direct, centralised)


def _direct(plan: TransferPlan, link: Link) -> float:
    moved = volume(plan)
    inside = float(moved.inside.max(initial=0)) / INSIDE_BYTES_PER_SECOND
    waits = sum(_agreement(len(plan.hosts)) + _most_messages(plan, hop) for hop in plan.hops)
    return moved.busiest * OVERHEAD / link.bytes_per_second + inside + waits * link.message_seconds


def _centralised(plan: TransferPlan, link: Link) -> float:
    seconds = 0.0
    for way in ways(plan):
        pieces = way.pieces
        met = np.where(pieces.source == CONTROLLER, pieces.destination, pieces.source)
        far = plan.hosts[met] != plan.hosts[CONTROLLER]
        messages = len(np.unique(met[met != CONTROLLER])) * GATHERED + _agreement(len(plan.hosts))
        seconds += float(way.bytes[far].sum()) * OVERHEAD / link.bytes_per_second + messages * link.message_seconds
        seconds += float(way.bytes[~far].sum()) / INSIDE_BYTES_PER_SECOND
    return seconds


def _agreement(processes: int) -> int:
    """Messages after one another in which all processes agree."""
    return max(1, ceil(log2(processes)))


def _most_messages(plan: TransferPlan, hop: int) -> int:
    """To or from one process."""
    assert hop in (ACROSS, INSIDE)
    pieces = plan.pieces.where((plan.pieces.hop == hop) & (plan.pieces.source != plan.pieces.destination))
    pairs = np.unique(pieces.source * len(plan.hosts) + pieces.destination)
    sent, received = pairs // len(plan.hosts), pairs % len(plan.hosts)
    return int(max(np.bincount(sent).max(initial=0), np.bincount(received).max(initial=0)))
