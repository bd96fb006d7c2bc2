"""The Data Dispatcher of a cluster, on the driver: it sees counts and references, never a token.

Workers count their rows; the driver balances them and makes a manifest. Rows then go through Ray's object store
(workers offer, ranks take) or by peers: workers and ranks exchange directly in one group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from earl.config import PlacementConfig
from earl.dispatch.rows import Work
from earl.dispatch.transports.base import Corrupted
from earl.dispatch.transports.objects import references_for
from earl.errors import EarlError
from earl.parallel.layout import Layout
from earl.placement.episode_store import Counts
from earl.placement.peers import WorkerLost
from earl.placement.ray.actor_group import ActorGroup, ActorOwner, Call, Member, ask_all, method
from earl.placement.ray.exchange_member import CallResult, EpisodeTable, Manifest, shares
from earl.placement.ray.rollout_workers import RolloutWorkers

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

    def _sent(self, manifest: Manifest, attempt: int) -> Mapping[str, float]:
        """By peers unless the recipe says otherwise; `auto` falls back to objects."""
        kind = self.settings.transport
        by_peers = kind == "peers" or (kind == "auto" and not attempt)
        if by_peers:
            self._join(manifest.hosts)
        known = ray.put(manifest)
        costs = self._by_peers(known) if by_peers else self._by_objects(manifest, known)
        return {**costs, "dispatch/peers": float(by_peers)}

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
