"""Time and cost of the recipe's batch on the whole cluster, stage by stage."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import numpy as np

from earl.dispatch.predicted_cost import RATES, CostLine, DispatchJob, entry, row_lengths
from earl.dispatch.rows import Numbers
from earl.dispatch.rows import columns as named
from earl.parallel.layout import Layout
from earl.parallel.memory import Estimate
from earl.parallel.throughput.rollout import Workload, rollout
from earl.parallel.throughput.step import weight_bytes
from earl.planner.cell import PlanCell
from earl.planner.question import Question


@dataclass(frozen=True, slots=True)
class StageTime:
    stage: str
    seconds: Estimate
    layout: Layout | None  # dp copies or parts, each over tp GPUs; None: between layouts


@dataclass(frozen=True, slots=True)
class PredictedStep:
    context: int
    episodes: int
    tokens: int  # of all episodes
    gpus: int
    parts: tuple[StageTime, ...]  # empty if a stage does not fit
    verdict: str  # what does not fit
    dispatch: CostLine | None

    @property
    def seconds(self) -> Estimate | None:
        """Sum over the stages; the interval assumes that their errors are fully correlated."""
        if not self.parts:
            return None
        spans = [part.seconds for part in self.parts]
        return Estimate(*(sum(getattr(span, end) for span in spans) for end in ("value", "low", "high")))

    @property
    def gpu_hours(self) -> Estimate | None:
        """GPU-hours of 1,000 episodes."""
        took = self.seconds
        return took.scaled(self.gpus / 3600 * 1000 / self.episodes) if took else None

    @property
    def as_object(self) -> dict[str, Any]:
        return {
            "context": self.context,
            "episodes": self.episodes,
            "tokens": self.tokens,
            "fits": bool(self.parts),
            "verdict": self.verdict,
            "seconds": _object(self.seconds),
            "stages": {
                part.stage: {
                    "seconds": _object(part.seconds),
                    "dp": part.layout.dp if part.layout else None,
                    "tp": part.layout.tp if part.layout else None,
                }
                for part in self.parts
            },
        }

    def cost(self, price: float | None) -> dict[str, Any]:
        """Cost of 1,000 episodes as JSON; `price` is per GPU-hour, None: unknown."""
        hours = self.gpu_hours
        return {
            "context": self.context,
            "gpu_hours_per_1000_episodes": _object(hours),
            "cost_per_1000_episodes": _object(hours.scaled(price)) if hours and price is not None else None,
        }


def _object(estimate: Estimate | None) -> dict[str, float] | None:
    return {name: float(f"{value:.5g}") for name, value in asdict(estimate).items()} if estimate else None


MOVED = ("tokens", "mask", "logprobs", "turns", "value_mask")
"""Columns that are dispatched; the learner makes the others."""


def step(asked: Question, context: int, cells: Iterable[PlanCell], sampling: int) -> PredictedStep:
    """A step whose longest episode has `context` tokens. Every stage uses its fastest layout for the recipe's number of
    episodes."""
    here = [cell for cell in cells if cell.context == context and cell.feasible]
    episodes, shared = asked.config.rollout.episodes, asked.config.placement.kind != "disaggregated"
    lengths = row_lengths(context, episodes)
    sampled = [
        _rollout(asked, context, tp, lengths, sampling)
        for tp in dict.fromkeys(cell.tp for cell in here if cell.stage == "rollout")
    ]
    own = asked.config.learner
    updated = [_learned(cell, lengths, own.minibatches, own.epochs) for cell in here if cell.stage == "update"]
    tokens = int(lengths.sum())
    missing = [name for name, found in (("rollout", sampled), ("update", updated)) if not found]
    if missing:
        verdict = f"{' and '.join(missing)}: no layout fits"
        return PredictedStep(context, episodes, tokens, asked.cluster.gpus, (), verdict, None)
    first, last = (min(found, key=lambda part: part.seconds.value) for found in (sampled, updated))
    assert first.layout and last.layout, "both have one"
    learned = Layout(last.layout.dp, last.layout.tp)
    planned = DispatchJob(asked.cluster, asked.shape, context, episodes, first.layout, learned, shared, True)
    moved = entry(planned, named(MOVED), (*RATES, asked.network_gbps))
    algorithm = asked.config.algorithm  # passes: of the reference, of values, of the learner for the correction
    passes = (algorithm.kl > 0) + (algorithm.name == "ppo") + (algorithm.correction != "none")
    forwards = [
        _learned(cell, lengths, 1, passes) for cell in here if cell.stage == "experience" and cell.tp == learned.tp
    ]
    parts = (
        first,
        StageTime("dispatch", _exactly(moved.times[-1].direct_s), None),
        *forwards,
        last,
        StageTime("weights", _exactly(_weights_seconds(asked, first.layout, learned, shared)), None),
    )
    return PredictedStep(context, episodes, tokens, asked.cluster.gpus, parts, "", moved)


def _rollout(asked: Question, context: int, tp: int, lengths: Numbers, gpus: int) -> StageTime:
    """As many copies as prompts and GPUs allow share the episodes; the one with the longest episode ends last."""
    copies = max(1, min(gpus // tp, asked.config.rollout.prompts))
    own = np.sort(lengths)[::-1][::copies]
    prompt, reply = asked.split(context)
    written, mean = reply / context, float(own.mean())
    work = Workload(mean * prompt / context, mean * written, len(own), float(own.max()) * written)
    fast = rollout(asked.engine(tp), work).tokens_per_gpu_s
    assert fast is not None, "the longest one fits"
    return _timed("rollout", float(own.sum()) * written, fast, Layout(copies, tp))


def _learned(cell: PlanCell, lengths: Numbers, batches: int, times: int) -> StageTime:
    """Each rank processes its share of a batch's tokens, but at least the longest row."""
    assert cell.throughput is not None, "it fits"
    own = batches * times * max(float(lengths.sum()) / batches / cell.dp, float(lengths.max()))
    return _timed(cell.stage, own, cell.throughput, Layout(cell.dp, cell.tp))


def _timed(stage: str, tokens: float, fast: Estimate, layout: Layout) -> StageTime:
    """Time of `tokens` on one copy; `fast` is per GPU and second."""
    took, least, most = (tokens / (speed * layout.tp) for speed in (fast.value, fast.high, fast.low))
    return StageTime(stage, Estimate(took, least, most), layout)


def _weights_seconds(asked: Question, sampler: Layout, learner: Layout, shared: bool) -> float:
    """Time of a weight sync: the model once into each sampling host, less what is there already, then to its GPUs."""
    size = weight_bytes(asked.shape, asked.precision)
    given, taken = (ceil(layout.size / asked.cluster.gpus_per_host) for layout in (learner, sampler))
    crossing = size * (given - 1) / given if shared else size * max(1.0, taken / given)
    return crossing / asked.network_bandwidth + size / sampler.tp / asked.device.link_bandwidth


def _exactly(seconds: float) -> Estimate:
    return Estimate(seconds, seconds, seconds)
