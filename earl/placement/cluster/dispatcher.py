"""The Data Dispatcher of a cluster, from where the driver is: it sees counts and references, never a token.

workers: counts by row ─▶ balance, manifest ─▶ workers: offer ─▶ references ─▶ ranks: take
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import ray

from earl.dispatch.balance import Work
from earl.dispatch.transports.objects import references_for
from earl.parallel.layout import Layout
from earl.placement.cluster.crew import Crew
from earl.placement.cluster.manifest import Manifest, Moved, Table, shares
from earl.placement.cluster.players import Workers
from earl.placement.holdings import Counts

Take = Callable[[Any, Sequence[Mapping[int, Any]]], Moved]


class Dispatcher:
    """Rows from the workers who played them to the ranks who learn from them.

    Args:
        work: what a row costs a rank.
    """

    def __init__(self, workers: Workers, ranks: Crew, layout: Layout, work: Work) -> None:
        self._workers, self._ranks, self._layout, self._work = workers, ranks, layout, work

    def send(self, table: Table, seed: int, minibatches: int, take: Take) -> Moved:
        """Send all rows of a step.

        Args:
            seed: of the update, as is the number of minibatches.
            take: has every rank take what its references stand for: a manifest, and references by rank. The ranks
                plan, and say what was moved.
        """
        part = shares(table, self._work, self._layout.dp, seed, minibatches)
        manifest = Manifest(table, part, self._layout, self._hosts())
        known = ray.put(manifest)
        offered = self._workers.offer(known)
        first = self._layout.size
        by_source = {first + worker: references for worker, references in enumerate(offered)}
        return take(known, [references_for(manifest.hosts, rank, by_source) for rank in range(first)])

    def _hosts(self) -> Counts:
        nodes = [member.node for member in (*self._ranks.members, *self._workers.members)]
        return np.unique(nodes, return_inverse=True)[1].astype(np.int32)
