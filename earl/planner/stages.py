"""Cells of the stages: rollout by context, load and split; experience preparation and update by context and split."""

from collections.abc import Iterator
from itertools import product
from math import ceil, exp

from earl.parallel.arrangement import fits, splits, usable, verdict
from earl.parallel.footprint import Training, forward_bytes, learner_bytes
from earl.parallel.hardware import GIB
from earl.parallel.layout import Layout, Stage
from earl.parallel.memory import Estimate
from earl.parallel.throughput.rollout import Rollout, Workload, rollout
from earl.parallel.throughput.step import CONTEXT_BYTES, Engine, StepLoad, fitted, parts, step_seconds
from earl.planner.cell import PlanCell
from earl.planner.question import Question


def rollout_cells(asked: Question, gpus: int) -> list[PlanCell]:
    """Cells of every split at every context and load; `gpus` sample."""
    return [
        _rollout_cell(asked, context, responses, Layout(gpus // tp, tp))
        for context in asked.contexts
        for responses in asked.responses
        for tp in asked.tps
        if tp <= gpus
    ]


def _rollout_cell(asked: Question, context: int, responses: int, layout: Layout) -> PlanCell:
    engine = asked.engine(layout.tp)
    prompt, reply = asked.split(context)
    found = rollout(engine, Workload(prompt, reply, responses))
    held = engine.weight_bytes + engine.reserve_bytes(fitted().values)
    room = max(0, held + engine.room_bytes(fitted().values))
    return PlanCell(
        stage="rollout",
        context=context,
        responses=responses,
        dp=layout.dp,
        tp=layout.tp,
        feasible=found.running > 0,
        verdict=_verdict(found, engine, context, responses, room),
        memory_bytes=held + found.kv_bytes if found.running else int(held + context * engine.token_bytes),
        room_bytes=room,
        kv_tokens_capacity=found.kv_tokens_capacity,
        waves=found.waves or None,
        throughput=found.tokens_per_gpu_s,
    )


def _verdict(found: Rollout, engine: Engine, context: int, responses: int, room: int) -> str:
    """Why a load fits, and its cost in waves and memory."""
    held = engine.weight_bytes + engine.reserve_bytes(fitted().values)
    if not found.kv_tokens_capacity:
        alone = f"weights and workspace alone take {held / GIB:.1f} GiB of each GPU"
        return f"out of memory: {alone}, the engine may take {room / GIB:.1f}"
    fit = f"{found.kv_tokens_capacity:,} tokens of context fit"
    if not found.running:
        return f"out of memory: {fit}, one response has {context:,}"
    if found.running == responses:
        return f"{fit}: all {responses} responses at once"
    why = f"{fit}: {found.running} of {responses} responses at once"
    if found.running == engine.software.max_sequences:
        why = f"{engine.software.name} runs at most {found.running} sequences at once"
    asked = responses * context
    need = (held + asked * engine.token_bytes) / GIB
    times = asked / found.kv_tokens_capacity
    return (
        f"{why}, in {found.waves} waves; all at once would be {times:.1f} times as many tokens and need "
        f"{need:.1f} GiB on each GPU: an engine that cannot let responses wait runs out of memory"
    )


# Learner passes are timed as an engine's steps over prompts alone, overlapped with fetching of FSDP's weights.

BACKWARD = 2.0
"""Duration of a backward pass in forward passes: gradients of inputs and of weights."""
FLOAT_BYTES = 2  # of bfloat16, in which a learner on GPUs computes
GRADIENT_BYTES = 4
SPEED = 0.7
"""Learner's arithmetic speed relative to an engine's prompt processing: an assumption, not fitted."""
SPREAD = 0.35
"""Half of the 80 % interval, as a logarithm: the coefficients were fitted to serving engines, not to learners."""


MOST_TOKENS = 1 << 16  # of a micro-batch that holds more than one row


def training_cells(asked: Question, gpus: int) -> list[PlanCell]:
    """Cells of both learner stages at every context, for every split that the heads allow; `gpus` learn."""
    host = asked.cluster.gpus_per_host
    possible = [tp for tp in splits(asked.shape, min(host, gpus)) if host % tp == 0]
    tps = [tp for tp in asked.tps if tp in possible] or possible
    stages: tuple[Stage, ...] = ("experience", "update")
    return [
        _training_cell(asked, stage, context, Layout(gpus // tp, tp))
        for stage in stages
        for context in asked.contexts
        for tp in tps
    ]


def _training_cell(asked: Question, stage: Stage, context: int, layout: Layout) -> PlanCell:
    """The fastest way that fits, offloading only if nothing else does; if none fits, the one with the least memory."""
    needs = learner_bytes if stage == "update" else forward_bytes
    memory = asked.device.memory_bytes  # the driver and libraries take some, too
    needed = {way: needs(asked.shape, way).peak + CONTEXT_BYTES for way in _ways(asked, stage, context, layout)}
    fitting = [way for way, size in needed.items() if fits(size, memory)]
    resting = [way for way in fitting if not way.offload] or fitting
    speeds = {way: learner_speed(asked, stage, way, context) for way in resting}
    way = max(speeds, key=lambda way: speeds[way].value) if speeds else min(needed, key=needed.__getitem__)
    return PlanCell(
        stage=stage,
        context=context,
        dp=layout.dp,
        tp=layout.tp,
        micro_batch_tokens=way.tokens,
        recompute=way.recompute,
        offload=way.offload,
        feasible=way in speeds,
        verdict=f"{'' if way in speeds else 'out of memory: '}{verdict(needed[way], memory)}",
        memory_bytes=needed[way],
        room_bytes=usable(memory),
        throughput=speeds.get(way),
    )


def _ways(asked: Question, stage: Stage, context: int, layout: Layout) -> Iterator[Training]:
    """The recipe's settings are fixed. A micro-batch holds at least the longest row, at most a rank's share."""
    learner = asked.config.learner
    named = learner.model_fields_set
    least = most = max(context, learner.micro_batch_tokens)
    if "micro_batch_tokens" not in named:  # all rows between two optimizer steps, as if as long as the longest
        share = asked.config.rollout.episodes // learner.minibatches * context // layout.dp
        most = max(least, min(MOST_TOKENS, share))
    tokens = [least << by for by in range(most.bit_length()) if least << by <= most]
    recompute = [learner.recompute] if "recompute" in named or stage == "experience" else [False, True]
    offload = [learner.offload] if "offload" in named else [False, True]
    for away, again, count in product(offload, recompute, tokens):
        yield Training(
            dp=layout.dp,
            tp=layout.tp,
            tokens=count,
            float_bytes=FLOAT_BYTES,
            recompute=again,
            offload=away,
            lora_rank=learner.lora_rank,
            reference=asked.config.algorithm.kl > 0,
        )


def learner_speed(asked: Question, stage: Stage, way: Training, context: int) -> Estimate:
    """Tokens per GPU and second of forward passes alone, or of an update's, forward and backward."""
    passes, copies = 1.0, 1.0  # of the model's weights, fetched
    if stage == "update":
        passes += BACKWARD + way.recompute
        copies = 2 + GRADIENT_BYTES / FLOAT_BYTES
    value = way.tokens / max(passes * _forward_seconds(asked, way, context), _fetching_seconds(asked, way, copies))
    value /= way.tp
    return Estimate(value, value * exp(-SPREAD), value * exp(SPREAD))


def _forward_seconds(asked: Question, way: Training, context: int) -> float:
    """Time of a micro-batch: an engine's prompt processing, and the output layer for every token."""
    own = fitted().values
    batch = StepLoad(sequences=0, context=0, prompt_tokens=way.tokens, prompt_context=context / 2)
    step = step_seconds(Engine(asked.shape, asked.device, way.tp), batch, own).total
    head = 2 * parts(asked.shape).head * way.tokens / way.tp / (asked.device.bf16_flops * own["compute_16"])
    return (step + head) / SPEED


def _fetching_seconds(asked: Question, way: Training, copies: float) -> float:
    """Time to fetch remote shards, once per pass: into a host over its link, then to each of its GPUs."""
    if way.dp == 1:
        return 0.0
    hosts = ceil(way.dp * way.tp / asked.cluster.gpus_per_host)
    size = copies * asked.shape.parameters * FLOAT_BYTES
    link = asked.device.link_bandwidth * fitted().values["link"]
    inside = size / way.tp * (way.dp - 1) / way.dp / link
    return max(inside, size * (hosts - 1) / hosts / asked.network_bandwidth)
