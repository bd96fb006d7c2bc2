"""The Data Dispatcher of a cluster, on the driver: it sees counts and references, never a token.

Workers count their rows; the driver balances them and makes a manifest. Rows then go through Ray's object store
(workers offer, ranks take) or by peers: workers and ranks exchange directly in one group.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray

from earl.config import PlacementConfig
from earl.dispatch.rows import Work
from earl.dispatch.transports.base import Corrupted, Pace
from earl.dispatch.transports.objects import references_for
from earl.errors import EarlError
from earl.parallel.layout import Layout
from earl.placement.episode_store import Counts
from earl.placement.peers import WorkerLost
from earl.placement.ray.actor_group import ActorGroup, ActorOwner, Call, Member, ask_all, method
from earl.placement.ray.exchange_member import CallResult, EpisodeTable, Manifest, shares
from earl.placement.ray.rollout_workers import RolloutWorkers
from earl.placement.ray.weight_sync import WeightManifest, given

STAGE = "dispatch"
TRIES = 3
"""How often a step's rows are sent at most, unless a learner rank is lost."""
MESSAGE_HEARTBEATS = 6
"""Heartbeats that a message between peers may take; a dead process is noticed within one."""


class ExchangeFailed(EarlError):
    """An exchange failed, and all processes are alive again."""


@dataclass(slots=True)
class RowDispatcher:
    """Sends rows from the workers that played them to the learner ranks.

    By peers, all row holders and learner ranks form one torch.distributed group, kept from step to step and remade when
    a member was replaced. The driver calls `enter`, then `exchange` with the manifest, on all members at once. A lost
    member is named and ended, so that the others need not wait; a failed exchange leaves no rows behind.
    """

    workers: RolloutWorkers
    ranks: ActorGroup
    layout: Layout  # current one of the ranks for rows; see `rows_of`
    work: Work  # cost model of a row
    settings: PlacementConfig
    keeper: ActorOwner
    _met: Sequence[tuple[str, int]] = ()  # nodes and processes of the group
    _pace: Pace = field(default_factory=lambda: Pace("objects", "peers"))

    def send(self, table: EpisodeTable, seed: int, minibatches: int) -> Mapping[str, float]:
        """Send all rows of a step; returns the costs by metric name. seed, minibatches: of the update. Raises
        WorkerLost when a rank is gone, or the rows do not arrive in `TRIES` attempts."""
        part = shares(table, self.work, self.layout.dp, seed, minibatches)
        for attempt in range(TRIES):
            try:
                hosts = hosts_of([*self.ranks.members, *self.workers.members])
                return self._sent(Manifest(table, part, self.layout, hosts), attempt)
            except (ExchangeFailed, Corrupted) as error:
                self.keeper.note("dispatch", f"{error}: sent again")
                fault = error
        raise WorkerLost(f"{fault}; this was tried {TRIES} times")

    def given(self, described: WeightManifest) -> Mapping[str, float]:
        """Costs of the weight sync to all samplers; see `weight_sync.given`."""
        hosts = hosts_of([*self.ranks.members, *self.workers.loading.members]).tolist()
        return given(described, tuple(hosts[: len(self.ranks)]), tuple(hosts[len(self.ranks) :]))

    def _sent(self, manifest: Manifest, attempt: int) -> Mapping[str, float]:
        way: str = self.settings.transport
        if auto := way == "auto":
            way = "objects" if attempt else self._pace.pick()
        if way == "peers":
            self._join(manifest.hosts)
        known = ray.put(manifest)
        began = time.perf_counter()
        costs = self._by_peers(known) if way == "peers" else self._by_objects(manifest, known)
        if auto and not attempt:
            self._took(way, time.perf_counter() - began)
        return {**costs, "dispatch/peers": float(way == "peers")}

    def _took(self, way: str, seconds: float) -> None:
        before = self._pace.chosen
        self._pace.took(way, seconds)
        if self._pace.chosen != before:
            told = ", ".join(f"by {way} {took * 1e3:.1f} ms" for way, took in self._pace.medians.items())
            self.keeper.note("dispatch", f"rows go by {self._pace.chosen}: {told} in the median")

    def _by_objects(self, manifest: Manifest, known: Any) -> Mapping[str, float]:
        checksums, first = self.settings.checksums, self.layout.size
        offered = self.workers.offer(known, checksums)
        by_source = {first + worker: references for worker, references in enumerate(offered)}
        own = [references_for(manifest.hosts, rank, by_source) for rank in range(first)]
        self.keeper.turn(self.ranks)
        costs: Mapping[str, float] = ask_all(
            self.ranks, STAGE, lambda actor, rank: actor.take.remote(known, rank, own[rank], checksums)
        )[0]
        return costs

    def _by_peers(self, known: Any) -> Mapping[str, float]:
        """Let every rank take its rows from the workers that hold them."""
        checksums = self.settings.checksums
        costs: Mapping[str, float] = self._together(
            lambda actor, process: actor.exchange.remote(known, process, checksums)
        )
        return costs

    def _join(self, hosts: Counts) -> None:
        """Make the group, unless it exists. hosts: [P], of each process."""
        present = [(member.node, member.process) for member in (*self.ranks.members, *self.workers.members)]
        if self._met == present:
            return
        [where] = ask_all(self.ranks, STAGE, method("invite"), [0])
        seconds = MESSAGE_HEARTBEATS * self.settings.heartbeat_seconds
        self._together(lambda actor, process: actor.enter.remote(where, process, hosts, seconds))
        self._met = present

    def _together(self, call: Call) -> Any:
        """Call all processes, learner ranks and then workers, at once, since they wait for each other; returns the
        first one's result. Raises WorkerLost when a rank is gone, ExchangeFailed otherwise; lost workers have then been
        replaced, and have their rows again."""
        first, met, self._met = len(self.ranks), self._met, ()
        group = self.ranks.joined(self.workers.members)
        answers = group.ask(STAGE, call, range(len(group)))
        if lost := answers.lost:
            for number in lost:  # closed connections release processes that wait for it
                group.end(group.members[number])
            said = f"{'; '.join(lost.values())} during {STAGE}"
            if min(lost) < first:
                raise WorkerLost(said)
            self.workers.replace(STAGE, {(number - first) * self.workers.tp: why for number, why in lost.items()})
            raise ExchangeFailed(said)
        results: list[CallResult] = [answers.results[number] for number in range(len(group))]
        if faults := sorted({own.fault for own in results if own.fault}):
            raise ExchangeFailed(f"{faults[0]} (during {STAGE})")
        self._met = met  # after any failure, some may have left the group
        return results[0].result


def hosts_of(members: Sequence[Member]) -> Counts:
    """[P], the host of each process."""
    return np.unique([member.node for member in members], return_inverse=True)[1].astype(np.int32)
