"""Transfers between hosts with shaped links, through a controller and directly.

every case ─▶ controller and direct transfer, alternating ─▶ compared with the minimum for the busiest link

peers: as in a run
overlapped: a controller that scatters one part while it gathers the next
all_to_all: one `all_to_all_single` of gloo
"""

import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.benchmarks import processes
from earl.benchmarks.processes import Seat, seat_of
from earl.benchmarks.repeats import interval
from earl.dispatch.plan import Pieces, TransferPlan, plan, volume
from earl.dispatch.predicted_cost import MIB, by_controller
from earl.dispatch.rows import COLUMNS, Shard, Spread, balance, columns, empty_shard, ranges, spread, token_bytes
from earl.dispatch.transports.base import Bytes, Transport, copy_kept_rows, execute, pack, unpack
from earl.errors import EarlError
from earl.parallel.cost_model import GIGABIT
from earl.parallel.hardware import of_gpus
from earl.parallel.layout import Layout
from earl.parallel.memory import catalogue
from earl.parallel.throughput.step import VLLM, Precision
from earl.planner.plan import shares as planned_gpus
from earl.planner.plan import step
from earl.planner.question import Wish, question
from earl.recipe import build, load_toml
from earl.rehearsal import cluster as rehearsal
from earl.rehearsal.plan import RehearsedCluster, attach, bits_per_second, check_network

LOGPROBS = ("reference",)
EVERYTHING = tuple(name for name in COLUMNS if name != "values")  # read only where values are clipped
PATIENCE_SECONDS = 300.0
CENTRALISED = ("controller", "overlapped")
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


Timings = dict[str, list[TransferTiming]]
"""By transport, for each repeat."""
Way = Callable[[TransferPlan, int, Shard, Transport], Shard]


def work(seat: Seat, store: Path, cases: Sequence[TransferCase], **others: tuple[Way, Transport]) -> list[Timings]:
    """Carry out all cases in one process, in turn by the ways of `exchanges` and by others."""
    ways = {**exchanges(seat, store), **others}
    _carried_out(seat, replace(cases[0], repeats=1), ways)  # establishes and warms up connections
    return [_carried_out(seat, case, ways) for case in cases]


def exchanges(seat: Seat, store: Path) -> dict[str, tuple[Way, Transport]]:
    """All ways over persistent connections, which are joined through a file: two through a controller, and directly by
    all-to-all and by peers."""
    import torch
    from torch._C._distributed_c10d import FileStore

    from earl.dispatch.transports.peers import DeviceTransport, join

    torch.set_num_threads(1)
    hosts = np.array(seat.hosts)
    peers = join(FileStore(str(store), len(hosts)), seat.process, hosts, seat.address, PATIENCE_SECONDS)
    at_once = DeviceTransport(peers._group, seat.process, hosts, PATIENCE_SECONDS)
    return {
        "controller": (gather_and_scatter, peers),
        "overlapped": (overlapped, peers),
        "all_to_all": (execute, at_once),
        "peers": (execute, peers),
    }


def gather_and_scatter(
    plan: TransferPlan, process: int, held: Shard, transport: Transport, checksums: bool = False
) -> Shard:
    """The same result as `execute`, bit for bit, through the controller."""
    gathering, scattering = by_controller(plan)
    gathered = execute(gathering, process, held, transport, checksums)
    return cut(plan, process, execute(scattering, process, gathered, transport, checksums))


def cut(plan: TransferPlan, process: int, whole: Shard) -> Shard:
    """The part that a process needs of the whole rows that a controller sends."""
    target = empty_shard(plan.target, process, plan.lengths, plan.columns)
    at = ranges(whole.begins(target.rows, target.starts), np.diff(target.offsets))
    for name, column in target.columns.items():
        column[:] = whole.columns[name][at]
    return target


PARTS = 8
"""Parts of a transfer through an overlapped controller."""


def overlapped(through: TransferPlan, process: int, held: Shard, transport: Transport) -> Shard:
    """As `gather_and_scatter`, but the controller scatters a part of the rows while it gathers the next."""
    gathering, scattering = by_controller(through)
    gathered, whole = (empty_shard(way.target, process, way.lengths, way.columns) for way in (gathering, scattering))
    copy_kept_rows(gathering, process, held, gathered)
    none = np.zeros((len(through.hosts), len(through.hosts)), np.int64)
    for number in range(PARTS + 1):
        going, coming = _part(gathering, number), _part(scattering, number - 1)
        outgoing = {to: pack(own, going.columns, held) for to, own in _messages(going, process, sent=True)}
        outgoing |= {to: pack(own, coming.columns, gathered) for to, own in _messages(coming, process, sent=True)}
        sizes = sum((table for way in (going, coming) for table in way.sizes), start=none)
        came = transport.exchange(outgoing, sizes)
        for way, target in ((going, gathered), (coming, whole)):
            for source, own in _messages(way, process, sent=False):
                unpack(came[source], own, way.columns, target)
    copy_kept_rows(scattering, process, gathered, whole)
    return cut(through, process, whole)


def _part(way: TransferPlan, number: int) -> TransferPlan:
    return replace(way, pieces=way.pieces.where(way.pieces.row % PARTS == number))


def _messages(way: TransferPlan, process: int, *, sent: bool) -> Iterator[tuple[int, Pieces]]:
    """The pieces that a process sends to, or receives from, each other one."""
    pieces = way.pieces
    own, others = (pieces.source, pieces.destination) if sent else (pieces.destination, pieces.source)
    for other in np.unique(others[(own == process) & (others != process)]).tolist():
        yield other, pieces.where((own == process) & (others == other))


def _carried_out(seat: Seat, case: TransferCase, ways: Mapping[str, tuple[Way, Transport]]) -> Timings:
    made = case.plan(seat.hosts)
    held = filled(made, made.source, seat.process)
    timings: Timings = {name: [] for name in ways}
    for _ in range(case.repeats):
        for name, (way, transport) in ways.items():
            for _ in range(1 if name in CENTRALISED else DIRECT_REPEATS):
                timings[name].append(_timed(seat, way, transport, made, held))
    return timings


def _timed(seat: Seat, way: Way, transport: Transport, made: TransferPlan, held: Shard) -> TransferTiming:
    most = partial(_most, seat, transport)
    most(0)
    _, left = seat.carried
    begun = most(int((time.monotonic() + HEAD_START_SECONDS) * 1e9)) / 1e9  # on a shared clock
    time.sleep(max(0.0, begun - time.monotonic()))
    shard = way(made, seat.process, held, transport)
    ended = most(int(time.monotonic() * 1e9)) / 1e9
    _, now_left = seat.carried
    most(0)
    return TransferTiming(begun, ended, now_left - left, checksum(shard))


def _most(seat: Seat, transport: Transport, number: int) -> int:
    """The largest number of all processes, which all come to know; also a barrier."""
    count, message = len(seat.hosts), np.array([number], np.int64)
    sizes = message.nbytes * (1 - np.eye(count, dtype=np.int64))
    outgoing = {other: message.view(np.uint8) for other in range(count) if other != seat.process}
    came = transport.exchange(outgoing, sizes).values()
    return max(number, *(int(own.view(np.int64)[0]) for own in came))


def filled(plan: TransferPlan, where: Spread, process: int) -> Shard:
    """A process's random data."""
    shard = empty_shard(where, process, plan.lengths, plan.columns)
    random = np.random.default_rng(process)
    for column in shard.columns.values():
        column.view(np.uint8)[:] = random.integers(0, 2, column.nbytes, np.uint8)
    return shard


def checksum(shard: Shard) -> int:
    value = 0
    for column in shard.columns.values():
        value = zlib.crc32(column.view(np.uint8).data, value)
    return value


STORE_MIB = 1024


class ObjectTransport:
    """Moves messages as objects of Ray's store, each by a reference that its destination gets."""

    def __init__(self, process: int, actors: Sequence[Any], inbox: dict[tuple[int, int], SimpleQueue[Any]]) -> None:
        self._process, self._actors, self._inbox = process, actors, inbox
        self._number = 0
        """Of the exchange: a fast process may be one ahead of the others."""

    def exchange(self, outgoing: Mapping[int, Bytes], sizes: NDArray[np.int64]) -> Mapping[int, Bytes]:
        import ray

        self._number += 1
        for to, message in outgoing.items():
            self._actors[to].deliver.remote(self._number, self._process, [ray.put(message)])  # in a list: not fetched
        sources = np.flatnonzero(sizes[:, self._process]).tolist()
        came = [self._inbox.setdefault((self._number, source), SimpleQueue()).get() for source in sources]
        return dict(zip(sources, ray.get(came), strict=True))

    def close(self) -> None:
        """Do nothing: the driver ends the actors."""


class HostActor:
    """A process of Ray's that moves its rows over its own connections or by objects of Ray's store."""

    def __init__(self) -> None:
        self._inbox: dict[tuple[int, int], SimpleQueue[Any]] = {}

    def deliver(self, exchange: int, source: int, reference: Sequence[Any]) -> None:
        self._inbox.setdefault((exchange, source), SimpleQueue()).put(reference[0])

    def work(self, seat: Seat, actors: Sequence[Any], store: Path, cases: Sequence[TransferCase]) -> list[Timings]:
        objects = ObjectTransport(seat.process, actors, self._inbox)
        return work(seat, store, cases, objects=(execute, objects))


def through_ray(
    cluster: RehearsedCluster | None, hosts: Sequence[int], cases: Sequence[TransferCase]
) -> list[list[Timings]]:
    """As `work`, for each process, but in actors, and also by references to objects of Ray's store."""
    if cluster:
        os.environ.update(attach(cluster.address))
    import ray  # reads its token from the environment

    from earl.placement.ray.coordinator import connect_ray

    with connect_ray(cluster.address if cluster else None, 1), tempfile.TemporaryDirectory() as folder:
        made = ray.remote(HostActor).options
        places = [{f"host-{host + 1}": 0.01} if cluster else {} for host in hosts]
        actors = [made(num_cpus=0, resources=place, max_concurrency=2).remote() for place in places]
        begun = [
            actor.work.remote(seat_of(cluster, hosts, process), actors, Path(folder) / "store", cases)
            for process, actor in enumerate(actors)
        ]
        measured: list[list[Timings]] = ray.get(begun)
        for actor in actors:
            ray.kill(actor)
    return measured


SHARES = (
    ("connect4", "Qwen2.5-72B", "16x8xH100", None, False),
    ("connect4", "Qwen2.5-72B", "16x8xH100", 32_768, True),
    ("arithmetic", "Qwen2.5-7B", "2x8xA100", 4096, False),
)
"""Jobs: recipe, model, GPUs, the longest context (None: the recipe's own), and whether every GPU has the payload of the
EARL paper (`PAPER`) in place of the recipe's rows."""


def shares() -> list[dict[str, Any]]:
    """What part of a whole step dispatch takes by the plan of three jobs, directly and through a controller. Predicted
    with the link of the paper's testbed."""
    return [_share(*job) for job in SHARES]


def _share(env: str, model: str, gpus: str, context: int | None, paper: bool) -> dict[str, Any]:
    recipe = Path(str(files("earl") / "configs" / f"{env}.toml"))
    config, cluster = build(load_toml(recipe)), of_gpus(gpus)
    wish = Wish(contexts=None if context is None else str(context))
    asked = question(config, model, catalogue()[model].shape, cluster, Precision(), VLLM, wish)
    learning, sampling = planned_gpus(asked)
    planned = step(asked, context or config.context.first_limit, sampling, learning)
    assert planned.seconds and planned.dispatch, "all jobs fit"
    moved, bandwidth = planned.dispatch.times[-1], wish.network_gbps * GIGABIT
    others, direct, centralised = planned.seconds.value - moved.direct_s, moved.direct_s, moved.centralised_s
    if paper:  # all of it leaves its host; a controller receives and sends everything
        each = PAPER[planned.context] * MIB
        direct, centralised = each * cluster.gpus_per_host / bandwidth, 2 * each * cluster.gpus / bandwidth
    return {
        "env": env,
        "model": model,
        "gpus": gpus,
        "context": planned.context,
        "episodes": planned.episodes,
        "payload": "paper" if paper else "recipe",
        "other_stages_s": others,
        "direct_s": direct,
        "controller_s": centralised,
        "direct_share": direct / (others + direct),
        "controller_share": centralised / (others + centralised),
    }


PAPER = {8192: 46, 16384: 93, 32768: 187}
"""Tokens of a context -> MiB of each worker (arXiv 2510.05943)."""
PAPER_RATE = 1e9
"""Bits per second at which these payloads are full size; at other rates they are scaled to take the same time."""
SMALL_TOKENS = (1, 64, 1024, 4096)
SMALL_REPEATS = 31
PROCESSES_OF_REPLICAS = 16


def run(hosts: int, rate: str, ranks: int | None = None, repeats: int = 3, ray: bool = False) -> dict[str, Any]:
    """Measure all transfers. For the result see `earl bench dispatch --help`; `note`: why links could not be shaped.

    `ranks` of None: one process per host, and then several that are replicas of each other. With `ray` one actor per
    host, and the smallest of the paper's payloads only.
    """
    bits = bits_per_second(rate)
    if ray and ranks not in (None, 1):
        raise EarlError(f"--ranks-per-host {ranks} with --ray: there is one actor per host; leave one of them out")
    rows = []
    note = _unshaped()
    counts = (ranks or 1,) if ranks or ray else (1, max(2, PROCESSES_OF_REPLICAS // hosts))
    on_ray = partial(rehearsal.rehearsed, "objects", cpus=8, memory_mib=STORE_MIB)
    network = on_ray if ray else processes.shaped
    with nullcontext() if note else network(hosts, rate) as cluster:
        for count in counts:
            places = [host for host in range(hosts) for _ in range(count)]
            cases = _cases(len(places), count, bits, repeats)
            if ray:
                cases = [case for case in cases if case.tokens == min(PAPER)]  # a controller's store holds no more
                measured = through_ray(cluster, places, cases)
            else:
                with tempfile.TemporaryDirectory() as folder:
                    measured = processes.run(cluster, places, work, Path(folder) / "store", cases)
            rows += [
                row(case, seen, places, bits, not note)
                for case, seen in zip(cases, zip(*measured, strict=True), strict=True)
            ]
    return {"rows": rows, "shares": shares(), **({"note": note} if note else {})}


def _unshaped() -> str:
    """Why links cannot be shaped; empty if they can."""
    try:
        check_network()
    except EarlError as error:
        return f"on loopback, where no link is shaped: {error}"
    return ""


def _cases(processes: int, ranks: int, bits: int, repeats: int) -> list[TransferCase]:
    """With one process per host the paper's payloads and small ones, else replicas."""
    if ranks > 1:
        return [_case("replicas", processes, bits, 8192, LOGPROBS, repeats, tp=ranks)]
    return [
        *(_case("paper", processes, bits, tokens, LOGPROBS, repeats) for tokens in PAPER),
        _case("paper", processes, bits, 8192, EVERYTHING, repeats),
        _case("ragged", processes, bits, 8192, LOGPROBS, repeats, ragged=True),
        *(TransferCase("small", LOGPROBS, tokens, processes, SMALL_REPEATS) for tokens in SMALL_TOKENS),
    ]


def _case(
    kind: str, processes: int, bits: int, tokens: int, names: tuple[str, ...], repeats: int, **others: Any
) -> TransferCase:
    """A payload of the paper, in whole rows for every consumer."""
    groups = processes // others.get("tp", 1)
    size = token_bytes(columns(names)) * tokens
    payload = PAPER[tokens] * 2**20 * bits / PAPER_RATE / others.get("tp", 1)
    return TransferCase(kind, names, tokens, max(1, round(payload / size / groups)) * groups, repeats, **others)


def row(
    case: TransferCase, measured: Sequence[Timings], places: Sequence[int], bits: int, shaped: bool
) -> dict[str, Any]:
    """The result of one transfer, from the measurements of all processes. Seconds are medians; see `earl bench
    dispatch`.

    `arms` has all ways, with their ratio to `direct`, which is `peers`. `crossed_bytes` include headers and answers.
    `copies_bytes` would leave hosts if every process got its own copy.
    """
    made = case.plan(places)
    moved = volume(made)
    timings = {name: [own[name] for own in measured] for name in measured[0]}
    every = {name: _of(own, "ended").max(0) - _of(own, "begun").min(0) for name, own in timings.items()}
    seconds = {name: interval(own.tolist()) for name, own in every.items()}
    centralised, direct = seconds["controller"], seconds["peers"]
    firsts = [places.index(host) for host in sorted(set(places))]  # all processes of a host read the same counter
    copied = made.hosts[made.pieces.origin] != made.hosts[made.pieces.destination]
    ideal = moved.bound * 8 / bits if shaped else None
    return {
        "hosts": len(set(places)),
        "rate_mbit": bits / 1e6,
        "payload_bytes": case.payload_bytes,
        "centralised_s": centralised["median"],
        "direct_s": direct["median"],
        "ideal_direct_s": ideal,
        "ratio": centralised["median"] / direct["median"],
        "kind": case.kind,
        "columns": len(case.names),
        "processes": len(places),
        "shaped": shaped,
        "over_bound": direct["median"] / ideal if ideal else None,
        "centralised": centralised,
        "direct": direct,
        "arms": {name: {**took, "over_direct": took["median"] / direct["median"]} for name, took in seconds.items()},
        "planned_bytes": moved.across,
        "crossed_bytes": int(np.median(_of(timings["peers"], "left_bytes")[firsts].sum(0))),
        "copies_bytes": int(made.bytes[copied].sum()),
        "same": all(len({one.checksum for repeats in own.values() for one in repeats}) == 1 for own in measured),
    }


def _of(timings: Sequence[Sequence[TransferTiming]], field: str) -> NDArray[np.float64]:
    """[P, R], by process and repeat."""
    return np.array([[getattr(one, field) for one in repeats] for repeats in timings], np.float64)
