"""What a transfer would take on given links: predicted from bytes alone, nothing measured.

    direct       the busiest link between hosts, then what is handed on inside the busiest host
    centralised  one process gathers every row once, then sends each process its own copy: all over its host's link
    bound        no plan takes less: see `Volume.bound`

Latency, packing and what protocols add are left out on all sides, so that where little is moved real times lie above.
"""

from dataclasses import dataclass

from earl.dispatch.plan import TransferPlan
from earl.dispatch.transports.controller import ways
from earl.dispatch.volume import Volume

GIGABIT = 1e9 / 8
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Links:
    """Bytes per second, in one direction.

    Example:
        Links(across=200 * GIGABIT, inside=450e9)   # 200 Gbit/s between hosts, NVLink inside
    """

    across: float
    """Of the link that joins a host to all others."""
    inside: float
    """Between the processes of one host, all together."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds."""

    centralised: float
    direct: float
    bound: float

    @property
    def ratio(self) -> float | None:
        """How many times as long the controller takes; None where nothing has to be moved."""
        return self.centralised / self.direct if self.direct else None


@dataclass(frozen=True, slots=True)
class Detour:
    """What goes through a process that gathers every row once and then sends each process its own copy, in bytes."""

    across: int
    """Over its link, in and then out."""
    inside: int
    """From and to the other processes of its host."""


def cost(moved: Volume, centralised: Detour, links: Links) -> Cost:
    """What a transfer takes.

    Args:
        moved: by its plan.
        centralised: by a controller instead.
    """
    return Cost(
        centralised=centralised.across / links.across + centralised.inside / links.inside,
        direct=moved.busiest / links.across + int(moved.inside.max(initial=0)) / links.inside,
        bound=moved.bound / links.across,
    )


def detour(plan: TransferPlan) -> Detour:
    """The same transfer as the baseline makes it; see `earl.dispatch.transports.controller`. First all comes, then all
    goes; what is inside the controller's host does not cross its link."""
    across = inside = 0
    for way in ways(plan):
        source, destination = way.pieces.source, way.pieces.destination
        over = plan.hosts[source] != plan.hosts[destination]
        across += int(way.bytes[over].sum())
        inside += int(way.bytes[~over & (source != destination)].sum())
    return Detour(across, inside)


def volume_model(size_bytes: float, replicas: float, hosts: int, rate: float) -> tuple[float, float]:
    """The least seconds of a centralised and of an all-to-all transfer, by the paper's formulas (arXiv 2510.05943).

    They suppose that every row leaves its host, and that each replica is sent a copy of its own.

    Args:
        size_bytes: S, of the whole batch.
        replicas: r, how many processes need each byte.
        rate: B, bytes per second of a host's link.
    """
    share = size_bytes / hosts
    return size_bytes * (1 + replicas) / rate, max(share, share * replicas) / rate
