"""A plan's bytes explained: what it moves over which link, the lower bound, and what a controller would move."""

from dataclasses import dataclass

import numpy as np

from earl.dispatch.plan import TransferPlan, volume
from earl.dispatch.predicted_cost import detour

MIB = 1 << 20
BUSIEST = 3


@dataclass(frozen=True, slots=True)
class LinkLoad:
    host: int
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Bytes of a transfer; needed = kept (already in place) + inside (from the same host) + across (over a link)."""

    rows: int
    tokens: int
    total: int  # needed bytes, each counted once
    needed: int  # one copy per process
    kept: int
    inside: int
    across: int
    busiest: int
    bound: int
    """Lower bound of `busiest` under any plan."""
    controller: int  # bytes on the link of a central controller
    links: tuple[LinkLoad, ...]

    @property
    def lines(self) -> list[str]:
        shares = ", ".join(
            f"{part / max(1, self.needed):.1%} {words}"
            for part, words in (
                (self.kept, "lie there already"),
                (self.inside, "come from their own host"),
                (self.across, "cross a link"),
            )
        )
        links = "; ".join(
            f"host {link.host} sends {_size(link.sent)}, receives {_size(link.received)}" for link in self.links
        )
        return [
            f"{self.rows:,} rows, {self.tokens:,} tokens: {_size(self.total)}, or {_size(self.needed)} with a copy for "
            "each process that reads them",
            f"of these {shares}",
            f"busiest link {_size(self.busiest)}, under any plan at least {_size(self.bound)}; a controller's link "
            f"{_size(self.controller)}",
            f"busiest hosts: {links}" if links else "no link between hosts carries anything",
        ]


def explain(plan: TransferPlan) -> Explanation:
    moved = volume(plan)
    inside = int(moved.inside.sum())
    most = np.maximum(moved.sent, moved.received)
    hosts = [int(host) for host in np.argsort(-most, kind="stable")[:BUSIEST] if most[host]]
    return Explanation(
        rows=len(plan.lengths),
        tokens=int(plan.lengths.sum()),
        total=moved.total,
        needed=moved.copies,
        kept=moved.copies - inside - moved.across,
        inside=inside,
        across=moved.across,
        busiest=moved.busiest,
        bound=moved.bound,
        controller=detour(plan)[0],
        links=tuple(LinkLoad(host, int(moved.sent[host]), int(moved.received[host])) for host in hosts),
    )


def _size(count: int) -> str:
    return f"{count / MIB:,.1f} MiB"
