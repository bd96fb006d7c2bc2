"""What a step's rows weigh on links, and what that should take by each way: from numbers by row, without a plan.

The driver has no plan: that would be more than it may hold of a row.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.columns import columns
from earl.dispatch.spread import spread
from earl.dispatch.transports.estimate import INSIDE_BYTES_PER_SECOND, OVERHEAD, Link, agreement
from earl.placement.cluster.manifest import Manifest

CALL_SECONDS = 1.5e-3
"""Of the driver, to call a crew of actors on one machine and have all their answers: see docs/benchmarks.md."""
OBJECT_SECONDS = 1e-3
"""To put an object into Ray's store and to get it."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes and messages of one dispatch."""

    busiest_bytes: float
    """That the busiest link between two hosts carries in one direction."""
    inside_bytes: float
    """That change hands within the host where most do."""
    messages: int
    """Of the process that sends, or gets, the most."""

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Of a manifest."""
        table, layout, hosts = manifest.table, manifest.layout, manifest.hosts
        workers, count = len(hosts) - layout.size, int(hosts.max()) + 1
        pair = table.worker.astype(np.int64) * layout.dp + manifest.part
        size = sum(column.size_bytes for column in columns(table.columns))
        tokens = np.bincount(pair, weights=table.lengths, minlength=workers * layout.dp)
        sent = tokens.reshape(workers, layout.dp) * size  # [workers, parts], bytes
        once, copies = _reach(manifest, count)
        at, into = hosts[layout.size :], sent @ once  # [workers, hosts]: what of a worker's rows each host needs
        away = into * (at[:, None] != np.arange(count))
        busiest = max(np.bincount(at, away.sum(axis=1), count).max(), away.sum(axis=0).max())
        inside = sent.sum(axis=0) @ copies - away.sum(axis=0)
        some = sent > 0
        return cls(float(busiest), float(inside.max()), int(max(some.sum(axis=1).max(), some.sum(axis=0).max())))

    def expected(self, link: Link, processes: int) -> dict[str, float]:
        """Seconds by each way."""
        moving = self.busiest_bytes * OVERHEAD / link.bytes_per_second + self.inside_bytes / INSIDE_BYTES_PER_SECOND
        agreements = 2 * agreement(processes)
        return {
            "objects": 2 * CALL_SECONDS + self.messages * OBJECT_SECONDS + moving,
            "peers": CALL_SECONDS + float(self.messages + agreements) * link.message_seconds + moving,
        }


def _reach(manifest: Manifest, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How much of each part's rows each host needs, and how many copies its ranks have of them together: [dp, H]."""
    layout = manifest.layout
    on = manifest.hosts[spread(layout, range(layout.size), np.zeros(0, np.int64)).processes]  # [dp, cp, tp]
    there = on[..., None] == np.arange(count)  # [dp, cp, tp, H]
    cp = there.shape[1]
    return there.any(axis=2).sum(axis=1) / cp, there.sum(axis=(1, 2)) / cp
