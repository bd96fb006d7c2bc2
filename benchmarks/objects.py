"""The transfers of `earl bench dispatch` through Ray: an actor on each host of a rehearsed cluster, or on this machine.

objects: all offer ─▶ all take     centralised: all offer ─▶ the controller takes, offers ─▶ all take
peers, shared: all exchange, over persistent connections
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from earl.benchmarks.transfers import (
    PATIENCE_SECONDS,
    Seat,
    Timings,
    TransferCase,
    TransferTiming,
    checksum,
    filled,
)
from earl.dispatch.execute import execute
from earl.dispatch.plan import TransferPlan
from earl.dispatch.rows import Axis, Shard
from earl.dispatch.transports.controller import CONTROLLER, cut, ways
from earl.dispatch.transports.objects import Reference, offer, references_for, take
from earl.dispatch.transports.rendezvous import Rendezvous, Sealed, fresh, opened, reached
from earl.rehearsal.cluster import rehearsed as owned
from earl.rehearsal.plan import RehearsedCluster, attach

NAME = "objects"
STORE_MIB = 1024


class HostActor:
    def __init__(self, seat: Seat, case: TransferCase) -> None:
        self._seat, self._process = seat, seat.process
        direct = case.plan(seat.hosts)
        gathering, scattering = ways(direct)
        self._plans = {"direct": direct, "gather": gathering, "scatter": scattering}
        own = [filled(leg, self._process, direct.lengths) for leg in direct.legs]
        nothing = [filled(leg, self._process, direct.lengths) for leg in scattering.legs]
        self._held = {"direct": own, "gather": own, "scatter": nothing}
        self._result: Mapping[Axis, Shard] = {}
        self._store: Sealed | None = None

    def open(self) -> Rendezvous:
        self._store = opened(fresh(self._seat.address))
        return self._store.place

    def meet(self, place: Rendezvous) -> None:
        from earl.dispatch.transports.peers import join
        from earl.dispatch.transports.shared import Shared

        hosts = np.array(self._seat.hosts)
        self._store = self._store or reached(place)
        peers = join(self._store, self._process, hosts, self._seat.address, PATIENCE_SECONDS)
        self._transport = Shared(peers, self._process, hosts) if len(np.unique(hosts)) < len(hosts) else peers

    def exchange(self) -> None:
        self._result = execute(self._plans["direct"], self._process, self._held["direct"], self._transport)

    def offer(self, way: str) -> dict[int, Reference]:
        return offer(self._plans[way], self._process, self._held[way])

    def take(self, way: str, references: Mapping[int, Reference]) -> None:
        """See `take`. What the controller gathers is what it then scatters."""
        self._result = take(self._plans[way], self._process, references, self._held[way])
        if way == "gather":
            self._held["scatter"] = [self._result[leg.axis] for leg in self._plans[way].legs]
        if way == "scatter":
            self._result = cut(self._plans["direct"], self._process, self._result)

    def seen(self) -> tuple[int, int, int]:
        """Bytes over the host's link, and the checksum of the result."""
        return (*self._seat.carried, checksum(self._result))


def run(cluster: RehearsedCluster | None, hosts: Sequence[int], cases: Sequence[TransferCase]) -> list[list[Timings]]:
    """As `work`, for each process, but timed by the driver; so times are the same for all processes."""
    with _joined(cluster) as ray:
        by_case = [_measured(ray, cluster, hosts, case) for case in cases]
    return [list(own) for own in zip(*by_case, strict=True)]


def rehearsed(hosts: int, rate: str) -> AbstractContextManager[RehearsedCluster]:
    return owned(NAME, hosts, rate, cpus=8, memory_mib=STORE_MIB)


@contextmanager
def _joined(cluster: RehearsedCluster | None) -> Iterator[Any]:
    if cluster is not None:
        os.environ.update(attach(cluster.address))
    import ray  # reads its token from the environment
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = cluster is not None  # on loopback, see placement/ray/inventory.py
    where = {"address": cluster.address} if cluster else {"num_cpus": 1, "object_store_memory": STORE_MIB << 20}
    ray.init(**where, log_to_driver=False, logging_level="error", include_dashboard=None if cluster else False)
    try:
        yield ray
    finally:
        ray.shutdown()


def _measured(ray: Any, cluster: RehearsedCluster | None, hosts: Sequence[int], case: TransferCase) -> list[Timings]:
    made = case.plan(hosts)
    actors = [_actor(ray, cluster, hosts, process, case) for process in range(len(hosts))]
    place = ray.get(actors[0].open.remote())
    ray.get([actor.meet.remote(place) for actor in actors])
    direct = "shared" if len(set(hosts)) < len(hosts) else "peers"
    named = {"controller": _centralised, "objects": _by_objects, direct: _exchanged}
    results: list[Timings] = [{name: [] for name in named} for _ in hosts]
    for _ in range(case.repeats + 1):  # the first repeat connects all hosts
        for name, way in named.items():
            before, driver = ray.get([actor.seen.remote() for actor in actors]), _carried(cluster)
            begun = time.monotonic()
            way(ray, actors, made)
            ended, through = time.monotonic(), _carried(cluster) - driver
            after = ray.get([actor.seen.remote() for actor in actors])
            for result, old, new in zip(results, before, after, strict=True):
                result[name].append(TransferTiming(begun, ended, new[0] - old[0], new[1] - old[1], new[2], through))
    for actor in actors:
        ray.kill(actor)
    return [{name: timings[1:] for name, timings in result.items()} for result in results]


def _actor(ray: Any, cluster: RehearsedCluster | None, hosts: Sequence[int], process: int, case: TransferCase) -> Any:
    host = hosts[process]
    address, interface = (cluster.ip(host + 1), cluster.interface) if cluster else ("127.0.0.1", "lo")
    seat = Seat(process, address, interface, tuple(hosts))
    options: dict[str, Any] = {"num_cpus": 0, **({"resources": {f"host-{host + 1}": 0.01}} if cluster else {})}
    return ray.remote(HostActor).options(**options).remote(seat, case)


def _carried(cluster: RehearsedCluster | None) -> int:
    return sum(Seat(0, "", cluster.interface, ()).carried) if cluster else 0


def _exchanged(ray: Any, actors: Sequence[Any], _: TransferPlan) -> None:
    ray.get([actor.exchange.remote() for actor in actors])


def _by_objects(ray: Any, actors: Sequence[Any], made: TransferPlan) -> None:
    _take(ray, actors, "direct", made, ray.get([actor.offer.remote("direct") for actor in actors]))


def _centralised(ray: Any, actors: Sequence[Any], made: TransferPlan) -> None:
    gathering, scattering = ways(made)
    first = actors[CONTROLLER : CONTROLLER + 1]
    _take(ray, first, "gather", gathering, ray.get([actor.offer.remote("gather") for actor in actors]))
    _take(ray, actors, "scatter", scattering, ray.get([first[0].offer.remote("scatter")]))


def _take(ray: Any, actors: Sequence[Any], way: str, plan: TransferPlan, offered: Sequence[Any]) -> None:
    """Let actors, the first of all, take what the first sources offered."""
    by_source = dict(enumerate(offered))
    ray.get(
        [actor.take.remote(way, references_for(plan.hosts, process, by_source)) for process, actor in enumerate(actors)]
    )
