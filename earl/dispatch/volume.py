"""What a plan moves over which link, and what it has to move at least."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.plan import TransferPlan
from earl.dispatch.routes import least, owed
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
    owed: Numbers
    """[H], out of each host: what others need and its processes alone have, once."""
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
        evenly = -(-int(self.least.sum()) // max(1, len(self.least)))
        return int(max(self.least.max(initial=0), self.owed.max(initial=0), evenly))


def volume(plan: TransferPlan) -> Volume:
    """What a plan moves."""
    pieces, count = plan.pieces, int(plan.hosts.max(initial=-1)) + 1
    total = int((plan.lengths.sum() * _token_bytes(plan)) + len(plan.lengths) * _row_bytes(plan))
    into, out = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for leg in plan.legs:
        demand = segments_of(plan.lengths, leg, plan.target).demand
        into += leg.size_bytes * least(demand, plan.hosts, count)
        out += leg.size_bytes * owed(demand, plan.hosts, count)
    return tallied(pieces.source, pieces.destination, plan.bytes, plan.hosts, into, out, total)


def tallied(
    source: Numbers, destination: Numbers, size: Numbers, hosts: Numbers, into: Numbers, out: Numbers, total: int
) -> Volume:
    """What ways between processes add up to, host by host.

    Args:
        source: the process that each way [M] begins at; where it ends there too, nothing moves.
        size: bytes of each, [M].
        into: `least` of the volume, as `out` is `owed`.
    """
    begin, end = hosts[source], hosts[destination]

    def per_host(of: Numbers, chosen: NDArray[np.bool_]) -> Numbers:
        return np.bincount(of[chosen], weights=size[chosen], minlength=len(into)).astype(np.int64)

    return Volume(
        sent=per_host(begin, begin != end),
        received=per_host(end, begin != end),
        inside=per_host(begin, (source != destination) & (begin == end)),
        least=into,
        owed=out,
        total=total,
        copies=int(size.sum()),
    )


def _token_bytes(plan: TransferPlan) -> int:
    return sum(leg.size_bytes for leg in plan.legs if leg.axis == "token")


def _row_bytes(plan: TransferPlan) -> int:
    return sum(leg.size_bytes for leg in plan.legs if leg.axis == "row")
