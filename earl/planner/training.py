"""Cells of the learner: passes of the reference, and updates, by context and split."""

from dataclasses import dataclass

from earl.parallel.arrangement import splits
from earl.parallel.choice import Stage
from earl.parallel.estimate import Estimate
from earl.parallel.fits import MARGIN
from earl.parallel.footprint import Training, forward_bytes, learner_bytes
from earl.parallel.hardware import GIB
from earl.planner import passes
from earl.planner.cell import Cell
from earl.planner.question import Question

FLOAT_BYTES = 2
"""Of bfloat16, in which a learner on GPUs computes."""
MOST_TOKENS = 1 << 16
"""Of a micro-batch that holds more than one row."""


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
        _cell(asked, stage, context, gpus // tp, tp) for stage in stages for context in asked.contexts for tp in tps
    ]


@dataclass(frozen=True, slots=True)
class Way:
    """How a layout is used, as far as a recipe leaves it open."""

    micro_batch_tokens: int
    recompute: bool
    offload: bool


def _cell(asked: Question, stage: Stage, context: int, dp: int, tp: int) -> Cell:
    """Under the fastest way that fits, offloading where nothing else does; else under the one that needs least."""
    device = asked.cluster.device
    assert device is not None, "the kinds of GPUs that can be named are listed"
    room = int(device.memory_bytes * (1 - MARGIN))
    needs = {way: _needed(asked, stage, way, dp, tp) for way in _ways(asked, stage, context, dp)}
    fitting = [way for way, need in needs.items() if need <= room]
    resting = [way for way in fitting if not way.offload] or fitting
    speeds = {way: _speed(asked, stage, way, context, dp, tp) for way in resting}
    way = max(speeds, key=lambda way: speeds[way].value) if speeds else min(needs, key=lambda way: needs[way])
    return Cell(
        stage=stage,
        context=context,
        responses=None,
        dp=dp,
        tp=tp,
        micro_batch_tokens=way.micro_batch_tokens,
        recompute=way.recompute,
        offload=way.offload,
        feasible=way in speeds,
        verdict=_verdict(needs[way], room, way),
        memory_bytes=needs[way],
        room_bytes=room,
        kv_tokens_capacity=None,
        waves=None,
        throughput=speeds.get(way),
    )


def _ways(asked: Question, stage: Stage, context: int, dp: int) -> list[Way]:
    """What a recipe names stays. A micro-batch holds the longest row at least, a rank's share at most."""
    learner = asked.config.learner
    recompute = [learner.recompute] if "recompute" in learner.model_fields_set else [False, True]
    offload = [learner.offload] if "offload" in learner.model_fields_set else [False, True]
    least = max(context, learner.micro_batch_tokens)
    most = least
    if "micro_batch_tokens" not in learner.model_fields_set:
        rows = asked.config.rollout.episodes // learner.minibatches
        most = max(least, min(MOST_TOKENS, rows * context // dp))
    tokens = [least << by for by in range(most.bit_length()) if least << by <= most]
    kept = [False] if stage == "experience" else recompute
    return [Way(count, again, away) for away in offload for again in kept for count in tokens]


def _needed(asked: Question, stage: Stage, way: Way, dp: int, tp: int) -> int:
    """Of one GPU; without a backward pass neither gradients nor more than a layer's activations are kept."""
    learner = asked.config.learner
    training = Training(
        dp=dp,
        tp=tp,
        tokens=way.micro_batch_tokens,
        float_bytes=FLOAT_BYTES,
        recompute=way.recompute,
        offload=way.offload,
        lora_rank=learner.lora_rank,
        reference=asked.config.algorithm.kl > 0,
    )
    return (learner_bytes if stage == "update" else forward_bytes)(asked.shape, training).peak


def _speed(asked: Question, stage: Stage, way: Way, context: int, dp: int, tp: int) -> Estimate:
    device = asked.cluster.device
    assert device is not None, "the kinds of GPUs that can be named are listed"
    passing = passes.Passing(
        shape=asked.shape,
        device=device,
        dp=dp,
        tp=tp,
        hosts=passes.hosts_of(asked.cluster, dp * tp),
        tokens=way.micro_batch_tokens,
        context=context,
        across=passes.host_link(asked.network_gbps),
    )
    return passes.update(passing, way.recompute) if stage == "update" else passes.reference(passing)


def _verdict(need: int, room: int, way: Way) -> str:
    used = [f"micro-batches of {way.micro_batch_tokens:,} tokens"]
    used += ["recomputed activations"] * way.recompute + ["offloaded moments"] * way.offload
    said = f"{need / GIB:.1f} GiB are needed of each GPU with {', '.join(used)}; {room / GIB:.1f} GiB may be taken"
    return said if need <= room else f"{said}: out of memory"
