"""A plan's bytes explained: what it moves over which link, the lower bound, and what a controller would move."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from earl.dispatch.plan import TransferPlan, volume
from earl.dispatch.predicted_cost import detour

MIB = 1 << 20
BUSIEST = 3


def explain(plan: TransferPlan) -> dict[str, Any]:
    """Bytes of a transfer as JSON. total: needed bytes, each once; needed: one copy per process = kept (already in
    place) + inside (from the same host) + across (over a link); bound: of the busiest link under any plan; controller:
    on the link of a central one."""
    moved = volume(plan)
    inside = int(moved.inside.sum())
    most = np.maximum(moved.sent, moved.received)
    hosts = [int(host) for host in np.argsort(-most, kind="stable")[:BUSIEST] if most[host]]
    return {
        "rows": len(plan.lengths),
        "tokens": int(plan.lengths.sum()),
        "total": moved.total,
        "needed": moved.copies,
        "kept": moved.copies - inside - moved.across,
        "inside": inside,
        "across": moved.across,
        "busiest": moved.busiest,
        "bound": moved.bound,
        "controller": detour(plan)[0],
        "links": [
            {"host": host, "sent": int(moved.sent[host]), "received": int(moved.received[host])} for host in hosts
        ],
    }


def lines(told: Mapping[str, Any]) -> list[str]:
    """An explanation in words."""
    size = {name: f"{count / MIB:,.1f} MiB" for name, count in told.items() if name != "links"}
    parts = {"kept": "lie there already", "inside": "come from their own host", "across": "cross a link"}
    shares = ", ".join(f"{told[part] / max(1, told['needed']):.1%} {words}" for part, words in parts.items())
    links = "; ".join(
        f"host {link['host']} sends {link['sent'] / MIB:,.1f} MiB, receives {link['received'] / MIB:,.1f} MiB"
        for link in told["links"]
    )
    return [
        f"{told['rows']:,} rows, {told['tokens']:,} tokens: {size['total']}, or {size['needed']} with a copy for each "
        "process that reads them",
        f"of these {shares}",
        f"busiest link {size['busiest']}, under any plan at least {size['bound']}; a controller's link "
        f"{size['controller']}",
        f"busiest hosts: {links}" if links else "no link between hosts carries anything",
    ]
