"""What dispatch would take on a cluster that is not here: by context and by number of GPUs. Predicted, not measured.

The shape is that of Table 1 of the EARL paper (arXiv 2510.05943): contexts against the bytes of the intermediate batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from earl.config import Config
from earl.dispatch.columns import Column
from earl.dispatch.cost import GIGABIT, Links, cost, detour, volume_model
from earl.dispatch.job import Job, job
from earl.dispatch.volume import volume
from earl.parallel.hardware import Cluster
from earl.parallel.layout import Layout
from earl.parallel.memory import ModelShape

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
class Entry:
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


def entry(of: Job, columns: tuple[Column, ...], rates: Sequence[float] = RATES) -> Entry:
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

    return Entry(
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


def contexts(config: Config, shape: ModelShape, cluster: Cluster) -> list[Job]:
    """The job of a recipe at every context that the model was made for, or at its longest."""
    lengths = [tokens for tokens in CONTEXTS if tokens <= shape.max_positions] or [shape.max_positions]
    return [job(config, shape, cluster, tokens, config.rollout.episodes) for tokens in lengths]


def sizes(config: Config, shape: ModelShape, cluster: Cluster, context: int) -> list[Job]:
    """The job at one context on clusters of more and of fewer such hosts; its rows grow with the GPUs."""
    each = cluster.gpus_per_host
    hosts: Sequence[int] = sorted({cluster.hosts, *(gpus // each for gpus in GPUS if gpus % each == 0)})
    return [
        job(config, shape, replace(cluster, hosts=count, gpus=count * each), context, _rows(config, cluster, count))
        for count in hosts
    ]


def _rows(config: Config, cluster: Cluster, hosts: int) -> int:
    return max(1, round(config.rollout.episodes * hosts / cluster.hosts))
