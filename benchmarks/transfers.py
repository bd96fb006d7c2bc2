"""The transfers of `earl bench dispatch`, and how one process carries them out."""

import ctypes
import multiprocessing
import os
import select
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from earl.dispatch.execute import execute
from earl.dispatch.plan import Leg, TransferPlan, plan
from earl.dispatch.rows import COLUMNS, Axis, Numbers, Shard, balance, columns, empty, spread
from earl.dispatch.transports.base import Transport
from earl.dispatch.transports.controller import gather_and_scatter
from earl.errors import EarlError
from earl.parallel.layout import Layout
from earl.rehearsal.cluster import laid
from earl.rehearsal.plan import RehearsedCluster

NAME = "dispatch"
_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of `setns(2)`, which Python has from 3.12 on."""
_PRELOADED = ["earl.dispatch.transports.peers", "earl.engine.model"]
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
        seat = Seat(number, "127.0.0.1", "lo", tuple(hosts))
        if cluster:
            seat = Seat(number, cluster.ip(host + 1), cluster.interface, tuple(hosts))
        namespace = str(_namespace(cluster, host + 1)) if cluster else None
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
        results = []
        for process, pipe in enumerate(pipes):
            try:
                results.append(pipe.recv())
            except EOFError as error:
                raise EarlError(f"process {process} ended without a result; its own message stands above") from error
        return results


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


def _namespace(cluster: RehearsedCluster, host: int) -> Path:
    return Path("/run/netns") / cluster.namespace(host)


LOGPROBS = ("reference",)
EVERYTHING = tuple(name for name, column in COLUMNS.items() if column.axis == "token")
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
        return self.rows * self.tokens * sum(column.size_bytes for column in columns(self.names))

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
        leg = Leg(columns(self.names), spread(Layout(count), range(count), here))
        return plan(lengths, [leg], spread(Layout(groups, self.tp), range(count), parts), np.array(hosts))


@dataclass(frozen=True, slots=True)
class TransferTiming:
    begun: float
    """On the clock that all processes of a machine share."""
    ended: float
    came_bytes: int
    """Over its host's link, as the kernel counts them."""
    left_bytes: int
    checksum: int
    driver_bytes: int | None = None
    """Over the driver's link, both directions; None without a driver."""


Timings = dict[str, list[TransferTiming]]
"""By transport, for each repeat."""
Way = Callable[[TransferPlan, int, Sequence[Shard], Transport], Mapping[Axis, Shard]]


def work(seat: Seat, store: Path, cases: Sequence[TransferCase]) -> list[Timings]:
    """Carry out all cases in one process, with all transports in turn."""
    import torch
    from torch._C._distributed_c10d import FileStore

    from earl.dispatch.transports.peers import join
    from earl.dispatch.transports.shared import Shared

    torch.set_num_threads(1)
    hosts = np.array(seat.hosts)
    peers = join(FileStore(str(store), len(hosts)), seat.process, hosts, seat.address, PATIENCE_SECONDS)
    ways: dict[str, tuple[Way, Transport]] = {"controller": (gather_and_scatter, peers), "peers": (execute, peers)}
    if len(set(seat.hosts)) < len(seat.hosts):
        ways["shared"] = execute, Shared(peers, seat.process, hosts)
    _carried_out(seat, replace(cases[0], repeats=1), ways)  # establishes and warms up connections
    return [_carried_out(seat, case, ways) for case in cases]


def _carried_out(seat: Seat, case: TransferCase, ways: Mapping[str, tuple[Way, Transport]]) -> Timings:
    made = case.plan(seat.hosts)
    held = [filled(leg, seat.process, made.lengths) for leg in made.legs]
    timings: Timings = {name: [] for name in ways}
    for _ in range(case.repeats):
        for name, (way, transport) in ways.items():
            for _ in range(1 if name == "controller" else DIRECT_REPEATS):
                timings[name].append(_timed(seat, way, transport, made, held))
    return timings


def _timed(seat: Seat, way: Way, transport: Transport, made: TransferPlan, held: Sequence[Shard]) -> TransferTiming:
    transport.most(0)
    came, left = seat.carried
    begun = transport.most(int((time.monotonic() + HEAD_START_SECONDS) * 1e9)) / 1e9  # on a shared clock
    time.sleep(max(0.0, begun - time.monotonic()))
    shards = way(made, seat.process, held, transport)
    ended = transport.most(int(time.monotonic() * 1e9)) / 1e9
    now_came, now_left = seat.carried
    transport.most(0)
    return TransferTiming(begun, ended, now_came - came, now_left - left, checksum(shards))


def filled(leg: Leg, process: int, lengths: Numbers) -> Shard:
    """A process's random data of a leg."""
    shard = empty(leg.source, process, lengths, leg.axis, leg.columns)
    random = np.random.default_rng(process)
    for column in shard.columns.values():
        column.reshape(-1).view(np.uint8)[:] = random.integers(0, 2, column.nbytes, np.uint8)
    return shard


def checksum(shards: Mapping[Axis, Shard]) -> int:
    value = 0
    for shard in shards.values():
        for column in shard.columns.values():
            value = zlib.crc32(column.reshape(-1).view(np.uint8).data, value)
    return value
