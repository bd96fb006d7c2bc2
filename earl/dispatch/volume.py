"""What a plan moves over which link, and what it has to move at least."""

from dataclasses import dataclass

import numpy as np

from earl.dispatch.plan import TransferPlan
from earl.dispatch.segments import segments_of
from earl.dispatch.spread import Numbers


@dataclass(frozen=True, slots=True)
class Volume:
    """Bytes of one transfer. H hosts, each joined to the others by one link."""

    sent: Numbers
    """[H], out of each host."""
    received: Numbers
    """[H], into each host."""
    inside: Numbers
    """[H], between processes of one host."""
    least: Numbers
    """[H], into each host: what its processes need and none of them had, once."""
    total: int
    """All that consumers need, every byte once: what a controller gathers."""
    copies: int
    """All that consumers need, each its own copy: what a controller scatters."""

    @property
    def across(self) -> int:
        """Over links."""
        return int(self.sent.sum())

    @property
    def busiest(self) -> int:
        """The most that one link carries in one direction: it sets the time."""
        return int(max(self.sent.max(initial=0), self.received.max(initial=0)))

    @property
    def bound(self) -> int:
        """No plan has a link that carries less in both directions."""
        return int(max(self.least.max(initial=0), -(-int(self.least.sum()) // max(1, len(self.least)))))


def volume(plan: TransferPlan) -> Volume:
    """What a plan moves."""
    pieces, hosts = plan.pieces, plan.hosts
    source, destination = hosts[pieces.source], hosts[pieces.destination]
    moved = pieces.source != pieces.destination
    over = source != destination
    count = int(hosts.max(initial=-1)) + 1

    def per_host(of: Numbers, chosen: Numbers) -> Numbers:
        return np.bincount(of[chosen], weights=plan.bytes[chosen], minlength=count).astype(np.int64)

    return Volume(
        sent=per_host(source, over),
        received=per_host(destination, over),
        inside=per_host(source, moved & ~over),
        least=_least(plan, count),
        total=int((plan.lengths.sum() * _token_bytes(plan)) + len(plan.lengths) * _row_bytes(plan)),
        copies=int(plan.bytes.sum()),
    )


def _token_bytes(plan: TransferPlan) -> int:
    return sum(leg.size_bytes for leg in plan.legs if leg.axis == "token")


def _row_bytes(plan: TransferPlan) -> int:
    return sum(leg.size_bytes for leg in plan.legs if leg.axis == "row")


def _least(plan: TransferPlan, count: int) -> Numbers:
    """Into each host: every range that its processes need and none of them has, once."""
    least = np.zeros(count, np.int64)
    for leg in plan.legs:
        segments = segments_of(plan.lengths, leg, plan.target)
        reading, holding = plan.hosts[segments.readers], plan.hosts[segments.holders]
        lacking = ~(reading[:, :, None] == holding[:, None, :]).any(axis=2)
        once = (reading[:, :, None] == reading[:, None, :]).argmax(axis=2) == np.arange(reading.shape[1])
        size = np.broadcast_to((segments.stop - segments.start)[:, None] * leg.size_bytes, reading.shape)
        chosen = lacking & once
        least += np.bincount(reading[chosen], weights=size[chosen], minlength=count).astype(np.int64)
    return least
