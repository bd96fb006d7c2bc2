"""What a transfer would take on given links: predicted from bytes alone, nothing measured.

    direct       the busiest link between hosts, then what is handed on inside the busiest host
    centralised  one process gathers every row once, then sends each process its own copy: all over its host's link
    bound        no plan takes less: see `Volume.bound`

Latency, packing and what protocols add are left out on all sides, so that where little is moved real times lie above.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from earl.config import Config
from earl.dispatch.plan import Leg, TransferPlan, Volume, plan, volume
from earl.dispatch.rows import Column, Numbers, Spread, balance, even_counts, spread, work_of
from earl.dispatch.transports.controller import ways
from earl.errors import EarlError
from earl.parallel.arrangement import fits, shares, smallest, splits
from earl.parallel.footprint import Training, learner_bytes, sampler_bytes
from earl.parallel.hardware import ClusterSpec
from earl.parallel.layout import Layout
from earl.parallel.memory import ModelShape

GIGABIT = 1e9 / 8
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Links:
    """Bytes per second, in one direction.

    Example:
        Links(across=200 * GIGABIT, inside=450e9)   # 200 Gbit/s between hosts, NVLink inside
    """

    across: float
    """Of the link that joins a host to all others."""
    inside: float
    """Between the processes of one host, all together."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds."""

    centralised: float
    direct: float
    bound: float

    @property
    def ratio(self) -> float | None:
        """How many times as long the controller takes; None where nothing has to be moved."""
        return self.centralised / self.direct if self.direct else None


@dataclass(frozen=True, slots=True)
class Detour:
    """What goes through a process that gathers every row once and then sends each process its own copy, in bytes."""

    across: int
    """Over its link, in and then out."""
    inside: int
    """From and to the other processes of its host."""


def cost(moved: Volume, centralised: Detour, links: Links) -> Cost:
    """What a transfer takes.

    Args:
        moved: by its plan.
        centralised: by a controller instead.
    """
    return Cost(
        centralised=centralised.across / links.across + centralised.inside / links.inside,
        direct=moved.busiest / links.across + int(moved.inside.max(initial=0)) / links.inside,
        bound=moved.bound / links.across,
    )


def detour(plan: TransferPlan) -> Detour:
    """The same transfer as the baseline makes it; see `earl.dispatch.transports.controller`. First all comes, then all
    goes; what is inside the controller's host does not cross its link."""
    across = inside = 0
    for way in ways(plan):
        source, destination = way.pieces.source, way.pieces.destination
        over = plan.hosts[source] != plan.hosts[destination]
        across += int(way.bytes[over].sum())
        inside += int(way.bytes[~over & (source != destination)].sum())
    return Detour(across, inside)


def volume_model(size_bytes: float, replicas: float, hosts: int, rate: float) -> tuple[float, float]:
    """The least seconds of a centralised and of an all-to-all transfer, by the paper's formulas (arXiv 2510.05943).

    They suppose that every row leaves its host, and that each replica is sent a copy of its own.

    Args:
        size_bytes: S, of the whole batch.
        replicas: r, how many processes need each byte.
        rate: B, bytes per second of a host's link.
    """
    share = size_bytes / hosts
    return size_bytes * (1 + replicas) / rate, max(share, share * replicas) / rate


# A job on paper: the transfer from Experience preparation to Update that a cluster would carry out in a step.
#
# recipe + model + cluster + context ─▶ layouts that fit ─▶ rows of made-up lengths ─▶ the same plan as a run makes

FLOAT_BYTES = 2
"""Of bfloat16, in which large models are computed."""
SIGMA = 0.5
"""Of the logarithm of lengths: one row in twelve is cut at the context."""

MOST_GPUS, MOST_ROWS = 16_384, 1 << 20
"""That a plan on paper is made for: more takes minutes."""


@dataclass(frozen=True, slots=True)
class DispatchJob:
    """What is dispatched, and between which layouts.

    Example:
        128 GPUs, prepared under dp 32 x tp 4 and learned under dp 16 x tp 8 by the same processes, in turns
    """

    cluster: ClusterSpec
    shape: ModelShape
    context: int
    """Tokens of the longest row."""
    rows: int
    prepared: Layout
    learned: Layout
    shared: bool
    """Whether both sides are the same processes, in turns; else each has its own."""
    fits: bool
    """Whether either layout finds room in its GPUs' memory; else it is the widest that a host allows."""

    @property
    def lengths(self) -> Numbers:
        """Of the rows, in tokens: log-normal around half of the context, cut at the context; always the same."""
        drawn = np.random.default_rng(0).lognormal(np.log(self.context / 2), SIGMA, self.rows)
        return np.clip(drawn, 1, self.context).astype(np.int64)

    def transfer(self, columns: tuple[Column, ...]) -> TransferPlan:
        """The plan of its rows: they lie in equal numbers, and go where work is least or stay if that costs nothing."""
        lengths = self.lengths
        begin = 0 if self.shared else self.learned.size
        given = spread(
            self.prepared, range(begin, begin + self.prepared.size), even_counts(self.rows, self.prepared.dp)
        )
        learning = np.arange(self.learned.size).reshape(self.learned.dp, self.learned.cp, self.learned.tp)
        parts = balance(work_of(self.shape).of(lengths), self.learned.dp, self._here(given))
        legs = [
            Leg(alike, given) for axis in ("token", "row") if (alike := tuple(c for c in columns if c.axis == axis))
        ]
        hosts = np.arange(self.cluster.gpus) // self.cluster.gpus_per_host
        return plan(lengths, legs, Spread(learning, parts), hosts)

    def _here(self, given: Spread) -> Numbers:
        """The learner's part on one of the processes that have each row, in turn; -1 where there is none."""
        rows = np.arange(self.rows)
        process = given.processes[given.parts, 0, rows % self.prepared.tp]
        width = self.learned.tp * self.learned.cp
        return np.where(process < self.learned.size, process // width, -1)


def job(config: Config, shape: ModelShape, cluster: ClusterSpec, context: int, rows: int) -> DispatchJob:
    """The job of a recipe on a cluster, under the smallest split of the model that fits on either side.

    Args:
        context: tokens of the longest row.
        rows: of a step.

    Raises:
        EarlError: when learner and samplers are to have devices of their own, and there is only one; when there is more
            than can be planned for.
    """
    _check_size(cluster, rows)
    shared = config.placement.kind != "disaggregated"
    learning, sampling = shares(cluster, shared)
    if not sampling:
        raise EarlError(
            f"placement.kind = 'disaggregated' needs GPUs for the learner and others for samplers, {cluster.where} has "
            f"{cluster.gpus}; name more of them, or set placement.kind to colocated"
        )
    host, device = cluster.gpus_per_host, cluster.device
    room = device.memory_bytes if device else 0

    def prepares(tp: int) -> bool:
        return sampler_bytes(shape, tp, FLOAT_BYTES, context, 1).least <= config.sampler.memory_share * room

    def learns(tp: int) -> bool:
        return fits(learner_bytes(shape, _training(config, learning // tp, tp, context)).peak, room).ok

    given = smallest([tp for tp in splits(shape, min(host, sampling), True) if host % tp == 0], prepares)
    wanted = smallest([tp for tp in splits(shape, min(host, learning)) if host % tp == 0], learns)
    layouts = Layout(sampling // given, given), Layout(learning // wanted, wanted)
    return DispatchJob(cluster, shape, context, rows, *layouts, shared, prepares(given) and learns(wanted))


def _check_size(cluster: ClusterSpec, rows: int) -> None:
    if cluster.gpus > MOST_GPUS:
        raise EarlError(f"{cluster.where}: {cluster.gpus:,} GPUs; earl plans for {MOST_GPUS:,} at most, name fewer")
    if rows > MOST_ROWS:
        raise EarlError(
            f"{rows:,} rows on {cluster.gpus:,} GPUs; earl plans for {MOST_ROWS:,} at most: lower rollout.episodes, or "
            "name more GPUs for the same episodes"
        )


def _training(config: Config, dp: int, tp: int, context: int) -> Training:
    """A micro-batch holds the longest row; activations are recomputed, as training at such lengths does."""
    return Training(
        dp=dp,
        tp=tp,
        tokens=max(context, config.learner.micro_batch_tokens),
        float_bytes=FLOAT_BYTES,
        recompute=True,
        offload=config.learner.offload,
        lora_rank=config.learner.lora_rank,
        reference=config.algorithm.kl > 0,
    )


# What dispatch would take on a cluster that is not here: by context and by number of GPUs. Predicted, not measured.
#
# The shape is that of Table 1 of the EARL paper (arXiv 2510.05943): contexts against the bytes of the intermediate
# batch.

CONTEXTS = (1024, 2048, 4096, 8192, 16_384, 32_768)
GPUS = (16, 32, 64, 128, 256, 512, 1024)
RATES = (25, 200, 400)
"""Gbit/s of the link of a host, in one direction."""


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds at one rate."""

    gbps: float
    centralised_s: float
    direct_s: float
    bound_s: float
    paper_centralised_s: float
    """By the paper's formula: a lower bound if every row leaves its host."""
    paper_all_to_all_s: float


@dataclass(frozen=True, slots=True)
class CostLine:
    """A line of a table."""

    context: int
    gpus: int
    hosts: int
    rows: int
    tokens: int
    bytes: int
    """Of the intermediate batch, every byte once."""
    across_bytes: int
    """That the plan sends between hosts: rows that lie where they are needed are not moved."""
    bound_bytes: int
    """What the busiest link carries at least, whatever the plan."""
    prepared: Layout
    learned: Layout
    fits: bool
    """Whether the model has room under these layouts, by the arithmetic of memory."""
    times: tuple[Time, ...]


def entry(of: DispatchJob, columns: tuple[Column, ...], rates: Sequence[float] = RATES) -> CostLine:
    """Plan a job's transfer and say what it would take.

    Args:
        rates: Gbit/s of the link of a host.
    """
    transfer = of.transfer(columns)
    moved, centralised = volume(transfer), detour(transfer)
    device = of.cluster.device
    assert device is not None, "the kinds of GPUs that can be named are listed"

    def time(gbps: float) -> Time:
        links = Links(gbps * GIGABIT, device.link_bandwidth)
        took = cost(moved, centralised, links)
        paper = volume_model(moved.total, of.learned.tp, of.cluster.hosts, links.across)
        return Time(gbps, took.centralised, took.direct, took.bound, *paper)

    return CostLine(
        context=of.context,
        gpus=of.cluster.gpus,
        hosts=of.cluster.hosts,
        rows=of.rows,
        tokens=int(transfer.lengths.sum()),
        bytes=moved.total,
        across_bytes=moved.across,
        bound_bytes=moved.bound,
        prepared=of.prepared,
        learned=of.learned,
        fits=of.fits,
        times=tuple(time(gbps) for gbps in rates),
    )


def contexts(config: Config, shape: ModelShape, cluster: ClusterSpec) -> list[DispatchJob]:
    """The job of a recipe at every context that the model was made for, or at its longest."""
    lengths = [tokens for tokens in CONTEXTS if tokens <= shape.max_positions] or [shape.max_positions]
    return [job(config, shape, cluster, tokens, config.rollout.episodes) for tokens in lengths]


def sizes(config: Config, shape: ModelShape, cluster: ClusterSpec, context: int) -> list[DispatchJob]:
    """The job at one context on clusters of more and of fewer such hosts; its rows grow with the GPUs."""
    each = cluster.gpus_per_host
    hosts: Sequence[int] = sorted({cluster.hosts, *(gpus // each for gpus in GPUS if gpus % each == 0)})
    return [
        job(config, shape, replace(cluster, hosts=count, gpus=count * each), context, _rows(config, cluster, count))
        for count in hosts
    ]


def _rows(config: Config, cluster: ClusterSpec, hosts: int) -> int:
    return max(1, round(config.rollout.episodes * hosts / cluster.hosts))
