"""The transfers of `earl bench dispatch`, and how processes carry them out, or Ray's actors.

With Ray, an actor is on each host of a rehearsed cluster, or all are on this machine:

objects: all offer ─▶ all take     centralised: all offer ─▶ the controller takes, offers ─▶ all take
peers, shared: all exchange, over persistent connections
"""

import ctypes
import multiprocessing
import os
import select
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from earl.benchmarks.repeats import in_turns
from earl.dispatch.plan import TransferPlan, plan
from earl.dispatch.rows import COLUMNS, Shard, Spread, balance, columns, empty, spread, token_bytes
from earl.dispatch.transports.base import Transport, execute
from earl.dispatch.transports.controller import CONTROLLER, cut, gather_and_scatter, ways
from earl.dispatch.transports.objects import Reference, offer, references_for, take
from earl.errors import EarlError
from earl.parallel.layout import Layout
from earl.rehearsal.cluster import laid
from earl.rehearsal.cluster import rehearsed as owned
from earl.rehearsal.plan import RehearsedCluster, attach

NAME = "dispatch"
_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of `setns(2)`, which Python has from 3.12 on."""
_PRELOADED = ["earl.benchmarks.layouts", "earl.dispatch.transports.peers"]
_LAST_WORDS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Seat:
    process: int
    address: str
    interface: str
    hosts: tuple[int, ...]

    @property
    def carried(self) -> tuple[int, int]:
        """Bytes received and sent over this host's link, as the kernel counts them."""
        lines = Path("/proc/self/net/dev").read_text().splitlines()
        [counters] = [line.split(":")[1].split() for line in lines if line.split(":")[0].strip() == self.interface]
        return int(counters[0]), int(counters[8])


def seat_of(cluster: RehearsedCluster | None, hosts: Sequence[int], process: int) -> Seat:
    address, interface = (cluster.ip(hosts[process] + 1), cluster.interface) if cluster else ("127.0.0.1", "lo")
    return Seat(process, address, interface, tuple(hosts))


def shaped(hosts: int, rate: str) -> AbstractContextManager[RehearsedCluster]:
    """A network of hosts, until the context ends. Raises EarlError if not permitted, or if one is in use."""
    return laid(NAME, hosts, rate)


@contextmanager
def started(
    cluster: RehearsedCluster | None, hosts: Sequence[int], work: Callable[..., Any], *arguments: Any
) -> Iterator[list[Connection]]:
    """Processes that call `work(seat, *arguments)` and send its result; they end with this context.

    `hosts` [P] is the host of each process, from 0 on. Without a cluster all are on loopback.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    begun, pipes = [], []
    for number, host in enumerate(hosts):
        ours, theirs = context.Pipe(duplex=False)
        seat = seat_of(cluster, hosts, number)
        namespace = f"/run/netns/{cluster.namespace(host + 1)}" if cluster else None
        process = context.Process(target=_inside, args=(namespace, theirs, seat, work, arguments), daemon=True)
        process.start()
        theirs.close()
        begun.append(process)
        pipes.append(ours)
    try:
        yield pipes
    finally:
        for process in begun:
            process.join(_LAST_WORDS_SECONDS)
            process.kill()
            process.join()


def run(cluster: RehearsedCluster | None, hosts: Sequence[int], work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The result of each process. Raises EarlError if one ends without a result."""
    with started(cluster, hosts, work, *arguments) as pipes:
        results: dict[Any, Any] = {}
        while len(results) < len(pipes):
            ready: list[Any] = wait([pipe for pipe in pipes if pipe not in results])
            for pipe in ready:
                try:
                    results[pipe] = pipe.recv()
                except EOFError as error:
                    process = pipes.index(pipe)
                    raise EarlError(f"process {process} ended without a result; its message stands above") from error
        return [results[pipe] for pipe in pipes]


def _inside(
    namespace: str | None, pipe: Connection, seat: Seat, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    threading.Thread(target=_end_with, args=(pipe.fileno(),), daemon=True).start()
    if namespace:
        _enter(namespace)
    pipe.send(work(seat, *arguments))


def _end_with(pipe: int) -> None:
    """End this process once its pipe has no reader: then its parent was killed."""
    broken = select.poll()
    broken.register(pipe, 0)
    broken.poll()
    os._exit(1)


def _enter(namespace: str) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        if library.setns(descriptor, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(descriptor)


LOGPROBS = ("reference",)
EVERYTHING = tuple(COLUMNS)
PATIENCE_SECONDS = 300.0
DIRECT_REPEATS = 3
"""Direct transfers for each centralised one, which takes many times as long and varies less."""
HEAD_START_SECONDS = 0.03
"""From the agreement on a transfer's start to the start."""


@dataclass(frozen=True, slots=True)
class TransferCase:
    """One transfer: from one data-parallel group per process to a layout of the same processes."""

    kind: str
    names: tuple[str, ...]
    tokens: int
    """Mean tokens of a row."""
    rows: int
    """Rows of each process."""
    repeats: int
    tp: int = 1
    """TP of the consumers."""
    ragged: bool = False
    """Rows of various lengths, dealt to the consumers by work, instead of equal rows in turn."""

    @property
    def payload_bytes(self) -> int:
        return self.rows * self.tokens * token_bytes(columns(self.names))

    def plan(self, hosts: Sequence[int]) -> TransferPlan:
        """The plan, the same on every process. hosts: [P], the host of each process."""
        count = len(hosts)
        here = np.repeat(np.arange(count), self.rows)
        lengths = np.full(len(here), self.tokens)
        groups = count // self.tp
        parts = (here // self.tp + np.tile(np.arange(self.rows), count)) % groups
        if self.ragged:
            random = np.random.default_rng(0)
            lengths = random.integers(self.tokens // 4, self.tokens * 7 // 4, len(here))
            parts = balance(lengths.astype(np.float64), groups)
        source, target = spread(Layout(count), range(count), here), spread(Layout(groups, self.tp), range(count), parts)
        return plan(lengths, columns(self.names), source, target, np.array(hosts))


@dataclass(frozen=True, slots=True)
class TransferTiming:
    begun: float
    """On the clock that all processes of a machine share."""
    ended: float
    left_bytes: int
    """Over its host's link, as the kernel counts them."""
    checksum: int
    driver_bytes: int | None = None
    """Over the driver's link, both directions; None without a driver."""


Timings = dict[str, list[TransferTiming]]
"""By transport, for each repeat."""
Way = Callable[[TransferPlan, int, Shard, Transport], Shard]


def work(seat: Seat, store: Path, cases: Sequence[TransferCase]) -> list[Timings]:
    """Carry out all cases in one process, with all transports in turn."""
    transports = direct(seat, store)
    ways: dict[str, tuple[Way, Transport]] = {name: (execute, transport) for name, transport in transports.items()}
    ways = {"controller": (gather_and_scatter, transports["peers"]), **ways}
    _carried_out(seat, replace(cases[0], repeats=1), ways)  # establishes and warms up connections
    return [_carried_out(seat, case, ways) for case in cases]


def direct(seat: Seat, store: Path) -> dict[str, Transport]:
    """The direct transports, joined through a file: peers, and with several processes on a host shared memory."""
    import torch
    from torch._C._distributed_c10d import FileStore

    from earl.dispatch.transports.peers import join
    from earl.dispatch.transports.shared import Shared

    torch.set_num_threads(1)
    hosts = np.array(seat.hosts)
    peers = join(FileStore(str(store), len(hosts)), seat.process, hosts, seat.address, PATIENCE_SECONDS)
    one_each = len(set(seat.hosts)) == len(hosts)
    return {"peers": peers} if one_each else {"peers": peers, "shared": Shared(peers, seat.process, hosts)}


def _carried_out(seat: Seat, case: TransferCase, ways: Mapping[str, tuple[Way, Transport]]) -> Timings:
    made = case.plan(seat.hosts)
    held = filled(made, made.source, seat.process)
    timings: Timings = {name: [] for name in ways}
    for _ in range(case.repeats):
        for name, (way, transport) in ways.items():
            for _ in range(1 if name == "controller" else DIRECT_REPEATS):
                timings[name].append(_timed(seat, way, transport, made, held))
    return timings


def _timed(seat: Seat, way: Way, transport: Transport, made: TransferPlan, held: Shard) -> TransferTiming:
    transport.most(0)
    _, left = seat.carried
    begun = transport.most(int((time.monotonic() + HEAD_START_SECONDS) * 1e9)) / 1e9  # on a shared clock
    time.sleep(max(0.0, begun - time.monotonic()))
    shard = way(made, seat.process, held, transport)
    ended = transport.most(int(time.monotonic() * 1e9)) / 1e9
    _, now_left = seat.carried
    transport.most(0)
    return TransferTiming(begun, ended, now_left - left, checksum(shard))


def filled(plan: TransferPlan, where: Spread, process: int) -> Shard:
    """A process's random data."""
    shard = empty(where, process, plan.lengths, plan.columns)
    random = np.random.default_rng(process)
    for column in shard.columns.values():
        column.view(np.uint8)[:] = random.integers(0, 2, column.nbytes, np.uint8)
    return shard


def checksum(shard: Shard) -> int:
    value = 0
    for column in shard.columns.values():
        value = zlib.crc32(column.view(np.uint8).data, value)
    return value


RAY_NAME = "objects"
STORE_MIB = 1024


class HostActor:
    def __init__(self, seat: Seat, store: Path, case: TransferCase) -> None:
        self._seat, self._process = seat, seat.process
        through = case.plan(seat.hosts)
        gathering, scattering = ways(through)
        self._plans = {"direct": through, "gather": gathering, "scatter": scattering}
        own, nothing = (filled(way, way.source, self._process) for way in (through, scattering))
        self._held = {"direct": own, "gather": own, "scatter": nothing}
        self._result = nothing
        *_, self._transport = direct(seat, store).values()

    def exchange(self) -> None:
        self._result = execute(self._plans["direct"], self._process, self._held["direct"], self._transport)

    def offer(self, way: str) -> dict[int, Reference]:
        return offer(self._plans[way], self._process, self._held[way])

    def take(self, way: str, references: Mapping[int, Reference]) -> None:
        """See `take`. What the controller gathers is what it then scatters."""
        self._result = take(self._plans[way], self._process, references, self._held[way])
        if way == "gather":
            self._held["scatter"] = self._result
        if way == "scatter":
            self._result = cut(self._plans["direct"], self._process, self._result)

    def seen(self) -> tuple[int, int]:
        """Bytes sent over the host's link, and the checksum of the result."""
        return self._seat.carried[1], checksum(self._result)


def through_ray(
    cluster: RehearsedCluster | None, hosts: Sequence[int], cases: Sequence[TransferCase]
) -> list[list[Timings]]:
    """As `work`, for each process, but timed by the driver; so times are the same for all processes."""
    with _joined(cluster) as ray:
        by_case = [_by_actors(ray, cluster, hosts, case) for case in cases]
    return [list(own) for own in zip(*by_case, strict=True)]


def rehearsed(hosts: int, rate: str) -> AbstractContextManager[RehearsedCluster]:
    return owned(RAY_NAME, hosts, rate, cpus=8, memory_mib=STORE_MIB)


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


def _by_actors(ray: Any, cluster: RehearsedCluster | None, hosts: Sequence[int], case: TransferCase) -> list[Timings]:
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
