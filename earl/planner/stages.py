"""Cells of the stages: rollout by context, load and split; experience preparation and update by context and split."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from math import ceil, exp
from typing import Any

import numpy as np

from earl.dispatch.predicted_cost import RATES, CostLine, DispatchJob, entry, row_lengths
from earl.dispatch.rows import Numbers
from earl.dispatch.rows import columns as named
from earl.parallel.footprint import Training, forward_bytes, learner_bytes
from earl.parallel.hardware import GIB
from earl.parallel.layout import Layout, Stage, fits, splits, usable, verdict
from earl.parallel.memory import Estimate
from earl.parallel.throughput.rollout import Rollout, Workload, rollout
from earl.parallel.throughput.step import CONTEXT_BYTES, Engine, StepLoad, fitted, parts, step_seconds, weight_bytes
from earl.planner.question import Question


@dataclass(frozen=True, slots=True)
class PlanCell:
    stage: Stage
    context: int  # of the longest episode, which has to fit
    dp: int  # copies of the engine, or data-parallel size of the learner
    tp: int
    feasible: bool
    verdict: str  # why it fits or does not, in words
    memory_bytes: int  # needed on one GPU
    room_bytes: int  # available to the stage on one GPU
    throughput: Estimate | None  # tokens per GPU and second; None: it does not fit
    responses: int | None = None
    """Given to one copy of the engine at once; None: the stage does not sample."""
    micro_batch_tokens: int | None = None  # per pass of the learner; None: the stage samples
    recompute: bool = False
    offload: bool = False
    kv_tokens_capacity: int | None = None
    """Tokens of keys and values that one copy of the engine holds; None: the stage keeps none."""
    waves: int | None = None
    """How often the engine fills its cache to serve all responses; None: it cannot, or keeps none."""

    @property
    def oversubscription(self) -> float | None:
        """Tokens of all responses at full length per token that fits; None if none are kept or none fits."""
        if self.responses is None or not self.kv_tokens_capacity:
            return None
        return self.responses * self.context / self.kv_tokens_capacity

    @property
    def as_object(self) -> dict[str, Any]:
        told = asdict(self)
        needed, room, fast = told.pop("memory_bytes"), told.pop("room_bytes"), told.pop("throughput") or {}
        speed = {end: fast.get(name) for end, name in (("", "value"), ("_low", "low"), ("_high", "high"))}
        return {
            **told,
            "oversubscription": _rounded(self.oversubscription),
            **{f"tokens_per_gpu_s{end}": _rounded(value) for end, value in speed.items()},
            "origin": "predicted",
            "memory_gib_per_gpu": _rounded(needed / GIB),
            "room_gib_per_gpu": _rounded(room / GIB),
        }


def _rounded(value: float | None) -> float | None:
    """Five digits: a plan is not more precise."""
    return None if value is None else float(f"{value:.5g}")


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
    moved = entry(planned, named(MOVED), (*RATES, asked.wish.network_gbps))
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
        more = {"tokens": count, "float_bytes": FLOAT_BYTES, "recompute": again, "offload": away}
        yield Training.of(asked.config, layout.dp, layout.tp, **more)


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
