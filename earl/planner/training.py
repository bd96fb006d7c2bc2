"""Cells of the learner: passes that prepare experience, and updates, by context and split."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil

from earl.parallel.arrangement import splits
from earl.parallel.choice import Stage
from earl.parallel.estimate import Estimate
from earl.parallel.fits import Verdict, fits
from earl.parallel.footprint import Training, forward_bytes, learner_bytes
from earl.parallel.layout import Layout
from earl.parallel.throughput.room import CONTEXT_BYTES
from earl.planner import passes
from earl.planner.cell import Cell
from earl.planner.question import Question

FLOAT_BYTES = 2
"""Of bfloat16, in which a learner on GPUs computes."""
MOST_TOKENS = 1 << 16
"""Of a micro-batch that holds more than one row."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a layout is used, as far as a recipe leaves it open."""

    micro_batch_tokens: int
    recompute: bool
    offload: bool


def training_cells(asked: Question, gpus: int) -> list[Cell]:
    """Both stages at every context under every split that the heads allow.

    Args:
        gpus: that learn.
    """
    host = asked.cluster.gpus_per_host
    possible = [tp for tp in splits(asked.shape, min(host, gpus)) if host % tp == 0]
    tps = [tp for tp in asked.tps if tp in possible] or possible
    stages: tuple[Stage, ...] = ("experience", "update")
    return [
        _cell(asked, stage, context, Layout(gpus // tp, tp))
        for stage in stages
        for context in asked.contexts
        for tp in tps
    ]


def _cell(asked: Question, stage: Stage, context: int, layout: Layout) -> Cell:
    """Under the fastest way that fits, offloading where nothing else does; else under the one that needs least."""
    verdicts = {way: _fits(asked, stage, way, layout) for way in _ways(asked, stage, context, layout.dp)}
    fitting = [way for way, verdict in verdicts.items() if verdict.ok]
    resting = [way for way in fitting if not way.offload] or fitting
    speeds = {way: _speed(asked, stage, way, context, layout) for way in resting}
    if speeds:
        way = max(speeds, key=lambda way: speeds[way].value)
    else:
        way = min(verdicts, key=lambda way: verdicts[way].needed_bytes)
    return Cell(
        stage=stage,
        context=context,
        responses=None,
        dp=layout.dp,
        tp=layout.tp,
        micro_batch_tokens=way.micro_batch_tokens,
        recompute=way.recompute,
        offload=way.offload,
        feasible=way in speeds,
        verdict=f"{'' if way in speeds else 'out of memory: '}{verdicts[way].words}",
        memory_bytes=verdicts[way].needed_bytes,
        room_bytes=verdicts[way].usable_bytes,
        kv_tokens_capacity=None,
        waves=None,
        throughput=speeds.get(way),
    )


def _ways(asked: Question, stage: Stage, context: int, dp: int) -> Iterator[Way]:
    """What a recipe names stays. A micro-batch holds the longest row at least, a rank's share at most."""
    learner = asked.config.learner
    named = learner.model_fields_set
    least = max(context, learner.micro_batch_tokens)
    most = least
    if "micro_batch_tokens" not in named:
        most = max(least, min(MOST_TOKENS, _minibatch_tokens(asked, context) // dp))
    tokens = [least << by for by in range(most.bit_length()) if least << by <= most]
    recompute = [learner.recompute] if "recompute" in named or stage == "experience" else [False, True]
    offload = [learner.offload] if "offload" in named else [False, True]
    return (Way(count, again, away) for away, again, count in product(offload, recompute, tokens))


def _fits(asked: Question, stage: Stage, way: Way, layout: Layout) -> Verdict:
    """On one GPU, with what a driver and libraries keep of it."""
    device, learner = asked.cluster.device, asked.config.learner
    assert device is not None, "the kinds of GPUs that can be named are listed"
    training = Training(
        dp=layout.dp,
        tp=layout.tp,
        tokens=way.micro_batch_tokens,
        float_bytes=FLOAT_BYTES,
        recompute=way.recompute,
        offload=way.offload,
        lora_rank=learner.lora_rank,
        reference=asked.config.algorithm.kl > 0,
    )
    needs = learner_bytes(asked.shape, training) if stage == "update" else forward_bytes(asked.shape, training)
    return fits(needs.peak + CONTEXT_BYTES, device.memory_bytes)


def _speed(asked: Question, stage: Stage, way: Way, context: int, layout: Layout) -> Estimate:
    device = asked.cluster.device
    assert device is not None, "the kinds of GPUs that can be named are listed"
    passing = passes.Passing(
        shape=asked.shape,
        device=device,
        dp=layout.dp,
        tp=layout.tp,
        hosts=ceil(layout.size / asked.cluster.gpus_per_host),
        tokens=way.micro_batch_tokens,
        context=context,
        across=asked.network_bandwidth,
    )
    return passes.update(passing, way.recompute) if stage == "update" else passes.reference(passing)


def _minibatch_tokens(asked: Question, context: int) -> int:
    """Of all rows between two steps of the optimizer, as if all were as long as the longest."""
    return asked.config.rollout.episodes // asked.config.learner.minibatches * context
