"""The transfers of `earl bench dispatch` through Ray: an actor on each host of a rehearsed cluster, or on this machine.

objects: all offer ─▶ all take     centralised: all offer ─▶ the controller takes, offers ─▶ all take
peers, shared: all exchange, over persistent connections
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from earl.benchmarks.hosts import Seat, seat_of
from earl.benchmarks.repeats import in_turns
from earl.benchmarks.transfers import Timings, TransferCase, TransferTiming, checksum, direct, filled
from earl.dispatch.execute import execute
from earl.dispatch.plan import TransferPlan
from earl.dispatch.rows import Axis, Shard
from earl.dispatch.transports.controller import CONTROLLER, cut, ways
from earl.dispatch.transports.objects import Reference, offer, references_for, take
from earl.rehearsal.cluster import rehearsed as owned
from earl.rehearsal.plan import RehearsedCluster
from earl.rehearsal.state import attach

NAME = "objects"
STORE_MIB = 1024


class HostActor:
    def __init__(self, seat: Seat, store: Path, case: TransferCase) -> None:
        self._seat, self._process = seat, seat.process
        through = case.plan(seat.hosts)
        gathering, scattering = ways(through)
        self._plans = {"direct": through, "gather": gathering, "scatter": scattering}
        own = [filled(leg, self._process, through.lengths) for leg in through.legs]
        nothing = [filled(leg, self._process, through.lengths) for leg in scattering.legs]
        self._held = {"direct": own, "gather": own, "scatter": nothing}
        self._result: Mapping[Axis, Shard] = {}
        *_, self._transport = direct(seat, store).values()

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

    def seen(self) -> tuple[int, int]:
        """Bytes sent over the host's link, and the checksum of the result."""
        return self._seat.carried[1], checksum(self._result)


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
    made, processes = case.plan(hosts), range(len(hosts))

    def timed(way: Callable[[Any, Sequence[Any], TransferPlan], None], _: int) -> list[TransferTiming]:
        before, driver = ray.get([actor.seen.remote() for actor in actors]), _carried(cluster)
        begun = time.monotonic()
        way(ray, actors, made)
        ended, through = time.monotonic(), _carried(cluster) - driver
        after = ray.get([actor.seen.remote() for actor in actors])
        return [
            TransferTiming(begun, ended, now - left, result, through)
            for (left, _), (now, result) in zip(before, after, strict=True)
        ]

    with tempfile.TemporaryDirectory() as folder:
        actors = [_actor(ray, cluster, hosts, process, Path(folder) / "store", case) for process in processes]
        exchange = "shared" if len(set(hosts)) < len(hosts) else "peers"
        named = {"controller": _centralised, "objects": _by_objects, exchange: _exchanged}
        # The first repeat connects all hosts.
        timings = in_turns({name: partial(timed, way) for name, way in named.items()}, case.repeats, warm=1)
    for actor in actors:
        ray.kill(actor)
    return [{name: [own[process] for own in repeats] for name, repeats in timings.items()} for process in processes]


def _actor(ray: Any, cluster: RehearsedCluster | None, hosts: Sequence[int], process: int, *arguments: Any) -> Any:
    options: dict[str, Any] = {"num_cpus": 0}
    if cluster:
        options["resources"] = {f"host-{hosts[process] + 1}": 0.01}
    return ray.remote(HostActor).options(**options).remote(seat_of(cluster, hosts, process), *arguments)


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
