"""The Data Dispatcher of a cluster, on the driver: it sees counts and references, never a token.

Workers count their rows; the driver balances them and makes a manifest. Rows then go through Ray's object store
(workers offer, ranks take) or by peers: workers and ranks exchange directly in one group.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from earl.placement.ray.actor_group import ActorGroup, ActorOwner, CallResults
from earl.placement.ray.exchange_member import CallResult, EpisodeTable, Manifest, Moved, shares
from earl.placement.ray.rollout_workers import RolloutWorkers
from earl.placement.ray.weight_sync import WeightManifest, given

# The row exchange: all row holders and learner ranks form one torch.distributed group, kept from step to step and
# remade when a member was replaced. The driver calls `enter`, then `exchange` with the manifest, on all members at
# once. A lost member is named and ended, so that the others need not wait; a failed exchange leaves no rows behind.

STAGE = "dispatch"


class ExchangeFailed(EarlError):
    """An exchange failed, and all processes are alive again."""


class ExchangeGroup:
    """Learner ranks, then workers: the processes of a manifest, joined. seconds: limit of one message."""

    def __init__(self, workers: RolloutWorkers, ranks: ActorGroup, seconds: float) -> None:
        self._workers, self._ranks, self._seconds = workers, ranks, seconds
        self._met: tuple[tuple[str, int], ...] = ()

    def hosts(self) -> Counts:
        """[P], the host of each process."""
        nodes = [member.node for member in (*self._ranks.members, *self._workers.members)]
        return np.unique(nodes, return_inverse=True)[1].astype(np.int32)

    def join(self) -> None:
        """Make the group, unless it exists. Raises as `exchange` does."""
        members = (*self._ranks.members, *self._workers.members)
        present = tuple((member.node, member.process) for member in members)
        if self._met == present:
            return
        where = self._ask(self._ranks, lambda actor, _: actor.invite.remote(), 0, [0])
        if where.lost:
            raise WorkerLost(f"{'; '.join(where.lost.values())} during {STAGE}")
        hosts, seconds = self.hosts(), self._seconds
        self._together(lambda actor, process: actor.enter.remote(where.results[0], process, hosts, seconds))
        self._met = present

    def exchange(self, manifest: Any, checksums: bool) -> Moved:
        """Let every rank take its rows from the workers that hold them. Raises WorkerLost when a rank is gone,
        ExchangeFailed otherwise; lost workers have then been replaced, and have their rows again."""
        results = self._together(lambda actor, process: actor.exchange.remote(manifest, process, checksums))
        moved: Moved = results[0]
        return moved

    def _together(self, call: Callable[[Any, int], Any]) -> list[Any]:
        """Every process's result, by number; all are called at once, since they wait for each other."""
        first, met, self._met = len(self._ranks), self._met, ()
        with ThreadPoolExecutor(2) as pool:
            asked = [
                pool.submit(self._ask, crew, call, begin, numbers)
                for crew, begin, numbers in (
                    (self._ranks, 0, range(first)),
                    (self._workers.crew, first, self._workers.numbers),
                )
            ]
            ranks, workers = (one.result() for one in asked)
        if ranks.lost:
            raise WorkerLost(f"{'; '.join(ranks.lost.values())} during {STAGE}")
        if workers.lost:
            self._workers.replace(STAGE, workers.lost)
            raise ExchangeFailed(f"{'; '.join(workers.lost.values())} during {STAGE}")
        said: list[CallResult] = [crew.results[number] for crew in (ranks, workers) for number in sorted(crew.results)]
        if faults := sorted({own.fault for own in said if own.fault}):
            raise ExchangeFailed(f"{faults[0]} (during {STAGE})")
        self._met = met  # after any failure, some may have left the group
        return [own.result for own in said]

    def _ask(
        self, crew: ActorGroup, call: Callable[[Any, int], Any], begin: int, numbers: Sequence[int]
    ) -> CallResults:
        process = {number: begin + place for place, number in enumerate(numbers)}
        answers = crew.ask(STAGE, lambda actor, number: call(actor, process[number]), numbers, bound=True)
        for number in answers.lost:  # closed connections release processes that wait for it
            crew.end(crew.members[number])
        return answers


Take = Callable[[Any, Sequence[Mapping[int, Any]], bool], Moved]
TRIES = 3
"""How often a step's rows are sent at most, unless a learner rank is lost."""
MESSAGE_HEARTBEATS = 6
"""Heartbeats that a message between peers may take; a dead process is noticed within one."""


class RowDispatcher:
    """Sends rows from the workers that played them to the learner ranks. work: cost model of a row. settings: transport
    and checksums. `layout`: current layout of the ranks for rows; see `rows_of`."""

    def __init__(
        self,
        workers: RolloutWorkers,
        ranks: ActorGroup,
        layout: Layout,
        work: Work,
        settings: PlacementConfig,
        keeper: ActorOwner,
    ) -> None:
        self._workers, self._ranks = workers, ranks
        self.layout, self._work = layout, work
        self._settings, self._keeper = settings, keeper
        self._circle = ExchangeGroup(workers, ranks, MESSAGE_HEARTBEATS * settings.heartbeat_seconds)
        self._pace = Pace("objects", "peers")

    def send(self, table: EpisodeTable, seed: int, minibatches: int, take: Take) -> Mapping[str, float]:
        """Send all rows of a step; returns the costs by metric name.

        Args:
            seed, minibatches: of the update.
            take: calls all ranks with a manifest, references by rank, and whether to verify; the ranks plan, and return
                what was moved.

        Raises:
            WorkerLost: when a rank is gone, or the rows do not arrive in `TRIES` attempts.
        """
        part = shares(table, self._work, self.layout.dp, seed, minibatches)
        for attempt in range(TRIES):
            try:
                return self._sent(Manifest(table, part, self.layout, self._circle.hosts()), take, attempt)
            except (ExchangeFailed, Corrupted) as error:
                self._keeper.note("dispatch", f"{error}: sent again")
                fault = error
        raise WorkerLost(f"{fault}; this was tried {TRIES} times")

    @property
    def readers(self) -> int:
        """The number of processes that load weights."""
        return len(self._workers.loading.crew)

    @property
    def checksums(self) -> bool:
        return self._settings.checksums

    def given(self, described: WeightManifest) -> Mapping[str, float]:
        """Costs of the weight sync to all samplers; see `weight_sync.given`."""
        nodes = [member.node for member in (*self._ranks.members, *self._workers.loading.members)]
        hosts = np.unique(nodes, return_inverse=True)[1].tolist()
        return given(described, tuple(hosts[: len(self._ranks)]), tuple(hosts[len(self._ranks) :]))

    def _sent(self, manifest: Manifest, take: Take, attempt: int) -> Mapping[str, float]:
        way = self._way(attempt)
        known = ray.put(manifest)
        began = time.perf_counter()
        moved = self._by_peers(known) if way == "peers" else self._by_objects(manifest, known, take)
        if self._settings.transport == "auto" and not attempt:
            self._took(way, time.perf_counter() - began)
        return {**moved.metrics, "dispatch/peers": float(way == "peers")}

    def _way(self, attempt: int) -> str:
        way: str = self._settings.transport
        if way == "auto":
            way = "objects" if attempt else self._pace.pick()
        if way == "peers":
            self._circle.join()
        return way

    def _took(self, way: str, seconds: float) -> None:
        before = self._pace.chosen
        self._pace.took(way, seconds)
        if self._pace.chosen != before:
            told = ", ".join(f"by {way} {took * 1e3:.1f} ms" for way, took in self._pace.medians.items())
            self._keeper.note("dispatch", f"rows go by {self._pace.chosen}: {told} in the median")

    def _by_peers(self, known: Any) -> Moved:
        return self._circle.exchange(known, self._settings.checksums)

    def _by_objects(self, manifest: Manifest, known: Any, take: Take) -> Moved:
        offered = self._workers.offer(known, self._settings.checksums)
        first = self.layout.size
        by_source = {first + worker: references for worker, references in enumerate(offered)}
        references = [references_for(manifest.hosts, rank, by_source) for rank in range(first)]
        return take(known, references, self._settings.checksums)
