"""The transfers of `earl bench dispatch`, and how one process carries them out."""

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from earl.benchmarks.hosts import Seat
from earl.dispatch.execute import execute
from earl.dispatch.plan import Leg, TransferPlan, plan
from earl.dispatch.rows import COLUMNS, Axis, Numbers, Shard, balance, columns, empty, spread
from earl.dispatch.transports.base import Transport
from earl.dispatch.transports.controller import gather_and_scatter
from earl.parallel.layout import Layout

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
    left_bytes: int
    """Over its host's link, as the kernel counts them."""
    checksum: int
    driver_bytes: int | None = None
    """Over the driver's link, both directions; None without a driver."""


Timings = dict[str, list[TransferTiming]]
"""By transport, for each repeat."""
Way = Callable[[TransferPlan, int, Sequence[Shard], Transport], Mapping[Axis, Shard]]


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
    held = [filled(leg, seat.process, made.lengths) for leg in made.legs]
    timings: Timings = {name: [] for name in ways}
    for _ in range(case.repeats):
        for name, (way, transport) in ways.items():
            for _ in range(1 if name == "controller" else DIRECT_REPEATS):
                timings[name].append(_timed(seat, way, transport, made, held))
    return timings


def _timed(seat: Seat, way: Way, transport: Transport, made: TransferPlan, held: Sequence[Shard]) -> TransferTiming:
    transport.most(0)
    _, left = seat.carried
    begun = transport.most(int((time.monotonic() + HEAD_START_SECONDS) * 1e9)) / 1e9  # on a shared clock
    time.sleep(max(0.0, begun - time.monotonic()))
    shards = way(made, seat.process, held, transport)
    ended = transport.most(int(time.monotonic() * 1e9)) / 1e9
    _, now_left = seat.carried
    transport.most(0)
    return TransferTiming(begun, ended, now_left - left, checksum(shards))


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
