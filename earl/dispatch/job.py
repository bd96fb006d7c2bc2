"""A job on paper: the transfer from Experience preparation to Update that a cluster would carry out in a step.

recipe + model + cluster + context ─▶ layouts that fit ─▶ rows of made-up lengths ─▶ the same plan as a run makes
"""

from dataclasses import dataclass

import numpy as np

from earl.config import Config
from earl.dispatch.balance import balance, even_counts, work_of
from earl.dispatch.columns import Column
from earl.dispatch.plan import TransferPlan, plan
from earl.dispatch.segments import Leg
from earl.dispatch.spread import Numbers, Spread, spread
from earl.errors import EarlError
from earl.parallel.arrangement import shares, smallest, splits
from earl.parallel.fits import fits
from earl.parallel.footprint import Training, learner_bytes, sampler_bytes
from earl.parallel.hardware import Cluster
from earl.parallel.layout import Layout
from earl.parallel.memory import ModelShape

FLOAT_BYTES = 2
"""Of bfloat16, in which large models are computed."""
SIGMA = 0.5
"""Of the logarithm of lengths: one row in twelve is cut at the context."""

MOST_GPUS, MOST_ROWS = 16_384, 1 << 20
"""That a plan on paper is made for: more takes minutes."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is dispatched, and between which layouts.

    Example:
        128 GPUs, prepared under dp 32 x tp 4 and learned under dp 16 x tp 8 by the same processes, in turns
    """

    cluster: Cluster
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


def job(config: Config, shape: ModelShape, cluster: Cluster, context: int, rows: int) -> Job:
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
    return Job(cluster, shape, context, rows, *layouts, shared, prepares(given) and learns(wanted))


def _check_size(cluster: Cluster, rows: int) -> None:
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
