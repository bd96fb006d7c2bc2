"""The Data Dispatcher of a cluster, from where the driver is: it sees counts and references, never a token.

workers: counts by row ─▶ balance, manifest ─▶ by objects: workers offer ─▶ references ─▶ ranks take
                                            └▶ by peers: workers and ranks exchange, in one group
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import ray

from earl.config import PlacementConfig
from earl.dispatch.balance import Work
from earl.dispatch.transports.base import Corrupted
from earl.dispatch.transports.objects import references_for
from earl.dispatch.transports.pace import Pace
from earl.parallel.layout import Layout
from earl.placement.cluster.circle import Circle, Torn
from earl.placement.cluster.crew import Crew
from earl.placement.cluster.described import Described
from earl.placement.cluster.given import given
from earl.placement.cluster.keeper import Keeper
from earl.placement.cluster.manifest import Manifest, Moved, Table, shares
from earl.placement.cluster.players import Workers
from earl.placement.cluster.traffic import Traffic
from earl.placement.peers import Lost

Take = Callable[[Any, Sequence[Mapping[int, Any]], bool], Moved]
TRIES = 3
"""How often the rows of a step are sent, at most, while nobody of the learner is lost."""
MESSAGE_HEARTBEATS = 6
"""Heartbeats that a message between peers may take: who is dead is noticed within one."""


class Dispatcher:
    """Rows from the workers who played them to the ranks who learn from them.

    Args:
        work: what a row costs a rank.
        settings: which way rows go, and whether they are checked.

    Attributes:
        layout: of the ranks, as it is now, as far as rows go: see `rows_of`.
    """

    def __init__(
        self, workers: Workers, ranks: Crew, layout: Layout, work: Work, settings: PlacementConfig, keeper: Keeper
    ) -> None:
        self._workers, self._ranks = workers, ranks
        self.layout, self._work = layout, work
        self._settings, self._keeper = settings, keeper
        self._circle = Circle(workers, ranks, MESSAGE_HEARTBEATS * settings.heartbeat_seconds)
        self._pace = Pace()
        self._settled: str | None = None

    def send(self, table: Table, seed: int, minibatches: int, take: Take) -> Mapping[str, float]:
        """Send all rows of a step; what that cost, as it is recorded.

        Args:
            seed: of the update, as is the number of minibatches.
            take: has every rank take what its references stand for: a manifest, references by rank, and whether they
                are checked. The ranks plan, and say what was moved.

        Raises:
            Lost: when a rank is gone, or the rows do not arrive however often they are sent.
        """
        part = shares(table, self._work, self.layout.dp, seed, minibatches)
        for attempt in range(TRIES):
            try:
                return self._sent(Manifest(table, part, self.layout, self._circle.hosts()), take, attempt)
            except (Torn, Corrupted) as error:
                self._keeper.note("dispatch", f"{error}: sent again")
                fault = error
        raise Lost(f"{fault}; this was tried {TRIES} times")

    @property
    def readers(self) -> int:
        """How many processes load weights."""
        return self._workers.readers

    @property
    def checksums(self) -> bool:
        """Whether what arrives is checked."""
        return self._settings.checksums

    def given(self, described: Described) -> Mapping[str, float]:
        """What it takes to give weights to all samplers; see `given`."""
        nodes = [member.node for member in (*self._ranks.members, *self._workers.loading)]
        hosts = np.unique(nodes, return_inverse=True)[1].tolist()
        return given(described, tuple(hosts[: len(self._ranks)]), tuple(hosts[len(self._ranks) :]))

    def _sent(self, manifest: Manifest, take: Take, attempt: int) -> Mapping[str, float]:
        way, expected = self._way(manifest, attempt)
        known = ray.put(manifest)
        began = time.perf_counter()
        moved = self._by_peers(known) if way == "peers" else self._by_objects(manifest, known, take)
        if expected:
            self._pace.took(way, expected[way], time.perf_counter() - began)
            self._say(expected)
        return {**moved.metrics, "dispatch/peers": float(way == "peers")}

    def _way(self, manifest: Manifest, attempt: int) -> tuple[str, Mapping[str, float]]:
        """How rows go, and what either way is expected to take where there is a choice."""
        if self._settings.transport == "objects" or (self._settings.transport == "auto" and attempt):
            return "objects", {}
        self._circle.join()
        if self._settings.transport == "peers":
            return "peers", {}
        expected = Traffic.of(manifest).expected(self._circle.link, len(manifest.hosts))
        return self._pace.pick(expected), expected

    def _say(self, expected: Mapping[str, float]) -> None:
        """Note which way is taken from now on, when that changes."""
        settled = self._pace.settled(expected)
        if settled and settled != self._settled:
            self._settled = settled
            seconds = self._pace.seconds(expected)
            told = ", ".join(f"by {way} {seconds[way] * 1e3:.1f} ms" for way in sorted(seconds))
            self._keeper.note("dispatch", f"rows go by {settled}: {told} expected, after what both took")

    def _by_peers(self, known: Any) -> Moved:
        return self._circle.exchange(known, self._settings.checksums)

    def _by_objects(self, manifest: Manifest, known: Any, take: Take) -> Moved:
        offered = self._workers.offer(known, self._settings.checksums)
        first = self.layout.size
        by_source = {first + worker: references for worker, references in enumerate(offered)}
        references = [references_for(manifest.hosts, rank, by_source) for rank in range(first)]
        return take(known, references, self._settings.checksums)
