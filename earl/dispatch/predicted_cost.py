"""Predicts the time of a transfer from bytes and link rates; nothing is measured.

direct       the busiest link between hosts, then the hand-on inside the busiest host
centralised  one process gathers every row once, then sends each process its own copy, over its host's link
bound        no plan takes less: see `Volume.bound`

Latency, packing and protocol overhead are left out, so small transfers take longer than predicted. Also plans the
transfer of a recipe on a cluster that does not exist yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from earl.config import Config
from earl.dispatch.plan import TransferPlan, Volume, plan, volume
from earl.dispatch.rows import Columns, Numbers, balance, even_counts, spread, work_of
from earl.errors import EarlError
from earl.parallel.cost_model import GIGABIT, CostModel
from earl.parallel.hardware import ClusterSpec
from earl.parallel.layout import Layout, check_planned
from earl.parallel.memory import Load, ModelShape


def cost(moved: Volume, detour: tuple[int, int], across: float, inside: float) -> tuple[float, float, float]:
    """Seconds of a transfer through a controller (see `detour`), by its plan, of which `moved` is the volume, and at
    least. across, inside: bytes per second of a host's link in one direction, and between its processes together."""
    direct = moved.busiest / across + int(moved.inside.max(initial=0)) / inside
    return detour[0] / across + detour[1] / inside, direct, moved.bound / across


CONTROLLER = 0


@lru_cache(maxsize=4)
def by_controller(through: TransferPlan) -> tuple[TransferPlan, TransferPlan]:
    """The same transfer through one process, as in verl and ROLL: one copy of every data-parallel group is gathered
    there, then each rank is sent the rows of its group. Every rank gets its own copy, even on one host; ranks of a
    context-parallel group get whole rows and cut them. Every process counts as its own host, so that nothing is fanned
    out."""
    lengths, columns, apart = through.lengths, through.columns, np.arange(len(through.hosts))
    firsts = replace(through.source, processes=through.source.processes[:, :, :1])
    middle = spread(Layout(), [CONTROLLER], np.zeros(len(lengths), np.int64))
    dp = len(through.target.processes)
    wholes = replace(through.target, processes=through.target.processes.reshape(dp, 1, -1))
    return plan(lengths, columns, firsts, middle, apart), plan(lengths, columns, middle, wholes, apart)


def detour(plan: TransferPlan) -> tuple[int, int]:
    """Bytes of the same transfer through a controller: over the link of its host, in and out, and inside this host."""
    across = inside = 0
    for way in by_controller(plan):
        source, destination = way.pieces.source, way.pieces.destination
        over = plan.hosts[source] != plan.hosts[destination]
        across += int(way.bytes[over].sum())
        inside += int(way.bytes[~over & (source != destination)].sum())
    return across, inside


# The transfer from Experience preparation to Update on a hypothetical cluster. From recipe, model, cluster and context
# follow layouts that fit and rows of synthetic lengths; the plan is made as in a run.

SIGMA = 0.5
"""Standard deviation of the logarithm of lengths: one row in twelve is cut at the context."""

MOST_ROWS = 1 << 20
"""Limit for a hypothetical plan: a larger one takes minutes."""
ENOUGH_ROWS = 1 << 16
MIB = 1 << 20


def row_lengths(context: int, rows: int) -> Numbers:
    """Tokens of each row: log-normal around half of the context, cut at the context; deterministic."""
    drawn = np.random.default_rng(0).lognormal(np.log(context / 2), SIGMA, rows)
    return np.clip(drawn, 1, context).astype(np.int64)


def load_at(rows: int, context: int) -> Load:
    """A step whose longest row has `context` tokens. More than ENOUGH_ROWS have the mean of so many."""
    return Load(rows, float(row_lengths(context, min(rows, ENOUGH_ROWS)).mean()), context, context)


@dataclass(frozen=True, slots=True)
class DispatchJob:
    """Rows to dispatch, and the layouts between which they go."""

    cluster: ClusterSpec
    shape: ModelShape
    context: int  # tokens of the longest row
    rows: int
    prepared: Layout
    learned: Layout
    shared: bool
    """Whether the same processes serve both sides in turns; otherwise each side has its own."""
    fits: bool
    """Whether both layouts fit their GPUs' memory; if not, the widest layout that a host allows is used."""

    def transfer(self, columns: Columns) -> TransferPlan:
        """Plan the transfer: rows start evenly spread; they go where work is least, or stay if that costs nothing."""
        lengths = row_lengths(self.context, self.rows)
        begin = 0 if self.shared else self.learned.size
        learned = Layout(self.learned.dp, self.learned.size // self.learned.dp)  # tp and cp groups share rows
        even = even_counts(self.rows, self.prepared.dp)
        source = spread(self.prepared, range(begin, begin + self.prepared.size), even)
        process = source.processes[source.parts, 0, np.arange(self.rows) % self.prepared.tp]  # that holds it, in turn
        here = np.where(process < learned.size, process // learned.tp, -1)  # the learner's part there
        parts = balance(work_of(self.shape).of(lengths), learned.dp, here)
        hosts = np.arange(self.cluster.gpus) // self.cluster.gpus_per_host
        return plan(lengths, columns, source, spread(learned, range(learned.size), parts), hosts)


def job(config: Config, shape: ModelShape, cluster: ClusterSpec, context: int, rows: int) -> DispatchJob:
    """The job of a recipe on a cluster, in the layouts that the planner gives a step. Raises EarlError when a
    disaggregated placement has only one GPU, or the job exceeds the plan limits."""
    shared = config.placement.kind != "disaggregated"
    check_planned(cluster, shared)
    if rows > MOST_ROWS:
        raise EarlError(
            f"{rows:,} rows on {cluster.gpus:,} GPUs; earl plans for {MOST_ROWS:,} at most: lower rollout.episodes, or "
            "name more GPUs for the same episodes"
        )
    costs = CostModel(config.changed(rollout={"episodes": rows}), shape, cluster)
    load = load_at(rows, context)
    learning, sampling = costs.shares(load)
    first = costs.best(costs.rollout_choices(sampling), load)
    last = costs.best_update(costs.learner_layouts(learning), load)
    fits = not costs.obstacle(first, load) and not costs.obstacle(last, load)
    return DispatchJob(cluster, shape, context, rows, first.layout, last.layout, shared, fits)


# Predicted transfer times by context and by number of GPUs, in the shape of Table 1 of the EARL paper (arXiv
# 2510.05943).

CONTEXTS = (1024, 2048, 4096, 8192, 16_384, 32_768)
GPUS = (16, 32, 64, 128, 256, 512, 1024)
RATES = (25, 200, 400)  # Gbit/s of a host's link, in one direction


@dataclass(frozen=True, slots=True)
class Time:
    gbps: float
    centralised_s: float
    direct_s: float
    bound_s: float


@dataclass(frozen=True, slots=True)
class CostLine:
    context: int
    gpus: int
    hosts: int
    rows: int
    tokens: int
    bytes: int
    across_bytes: int
    bound_bytes: int
    prepared: Layout
    learned: Layout
    fits: bool
    times: tuple[Time, ...]


def entry(of: DispatchJob, columns: Columns, rates: Sequence[float] = RATES) -> CostLine:
    """Plan a job's transfer and predict its times. rates: Gbit/s of a host's link."""
    transfer = of.transfer(columns)
    moved, centralised = volume(transfer), detour(transfer)
    device = of.cluster.device
    assert device is not None, "the kinds of GPUs that can be named are listed"

    def time(gbps: float) -> Time:
        return Time(gbps, *cost(moved, centralised, gbps * GIGABIT, device.link_bandwidth))

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
    """The job of a recipe at every context the model supports, or at its longest."""
    lengths = [tokens for tokens in CONTEXTS if tokens <= shape.max_positions] or [shape.max_positions]
    return [job(config, shape, cluster, tokens, config.rollout.episodes) for tokens in lengths]


def sizes(config: Config, shape: ModelShape, cluster: ClusterSpec, context: int) -> list[DispatchJob]:
    """The job at one context on clusters of more and fewer such hosts; its rows grow with the GPUs."""
    each, rows = cluster.gpus_per_host, config.rollout.episodes / cluster.hosts
    hosts: Sequence[int] = sorted({cluster.hosts, *(gpus // each for gpus in GPUS if gpus % each == 0)})
    clusters = [replace(cluster, hosts=count, gpus=count * each) for count in hosts]
    return [job(config, shape, own, context, max(1, round(rows * own.hosts))) for own in clusters]
