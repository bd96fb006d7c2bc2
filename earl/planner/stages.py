"""Cells of the stages: rollout by context, load and split; experience preparation and update by context and split."""

from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from earl.dispatch.predicted_cost import RATES, CostLine, DispatchJob, entry, load_at
from earl.dispatch.rows import LEARNED
from earl.dispatch.rows import columns as named
from earl.parallel.cost_model import with_interval
from earl.parallel.hardware import GIB
from earl.parallel.layout import Choice, Layout, Stage, verdict
from earl.parallel.memory import Estimate
from earl.parallel.throughput.rollout import Rollout, Workload, rollout
from earl.parallel.throughput.step import Engine, fitted
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
    pp: int = 1  # hosts that a copy of the engine reaches over
    ep: int = 1  # ranks that the experts of a mixture are spread over
    replicas: int = 1  # groups of the learner's ranks that hold the model once each
    kv_tokens_capacity: int | None = None
    """Tokens of keys and values that one copy of the engine holds; None: the stage keeps none."""
    waves: int | None = None
    """How often the engine fills its cache to serve all responses; None: it cannot, or keeps none."""
    step_seconds: float | None = None
    """Of the recipe's step, experience and update together; None: the stage samples."""

    @property
    def oversubscription(self) -> float | None:
        """Tokens of all responses at full length per token that fits; None if none are kept or none fits."""
        if self.responses is None or not self.kv_tokens_capacity:
            return None
        return self.responses * self.context / self.kv_tokens_capacity

    @property
    def as_object(self) -> dict[str, Any]:
        fields = asdict(self)
        needed, room, fast = fields.pop("memory_bytes"), fields.pop("room_bytes"), fields.pop("throughput") or {}
        speed = {end: fast.get(name) for end, name in (("", "value"), ("_low", "low"), ("_high", "high"))}
        return {
            **fields,
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
    idle: tuple[str, ...]  # in words, which GPUs have nothing to do, and why

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
            "idle": [*self.idle],
            "seconds": _object(self.seconds),
            "stages": {
                part.stage: {
                    "seconds": _object(part.seconds),
                    **(asdict(part.layout) if part.layout else {"dp": None, "tp": None}),
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


def step(asked: Question, context: int, sampling: int, learning: int) -> PredictedStep:
    """A step whose longest episode has `context` tokens, every stage in the layout that takes it the least time."""
    costs, load = asked.costs, load_at(asked.costs.config.rollout.episodes, context)
    shared, gpus = costs.config.placement.kind != "disaggregated", costs.cluster.gpus
    episodes, tokens = load.sequences, int(load.sequences * load.mean_tokens)
    possible = costs.rollout_choices(sampling)
    rollouts = [choice for choice in possible if choice.layout.tp in asked.tps] or possible
    first, last = costs.best(rollouts, load), update_choice(asked, context, learning)
    if missing := [own.stage for own, at in ((first, load), (last, costs.largest(load))) if costs.obstacle(own, at)]:
        return PredictedStep(context, episodes, tokens, gpus, (), f"{' and '.join(missing)}: no layout fits", None, ())
    planned = DispatchJob(costs.cluster, costs.shape, context, episodes, first.layout, last.layout, shared, True)
    moved = entry(planned, named(LEARNED), (*RATES, costs.network_gbps))
    parts = (
        StageTime("rollout", costs.estimate(first, load), first.layout),
        StageTime("dispatch", _exactly(moved.times[-1].direct_s), None),
        StageTime("experience", costs.estimate(replace(last, stage="experience"), load), last.layout),
        StageTime("update", costs.estimate(last, load), last.layout),
        StageTime("weights", _exactly(costs.weights_seconds(first.layout, last.layout)), None),
    )
    idle = tuple(filter(None, (costs.idle(first, sampling), costs.idle(last, learning))))
    return PredictedStep(context, episodes, tokens, gpus, parts, "", moved, idle)


def _exactly(seconds: float) -> Estimate:
    return Estimate(seconds, seconds, seconds)


def rollout_cells(asked: Question, gpus: int) -> list[PlanCell]:
    """Cells of every split at every context and load; `gpus` sample."""
    return [
        _rollout_cell(asked, context, responses, Layout(gpus // engine.devices, engine.tp, pp=engine.pp))
        for context in asked.contexts
        for responses in asked.responses
        for engine in map(asked.costs.engine, asked.tps)
        if engine.devices <= gpus
    ]


def _rollout_cell(asked: Question, context: int, responses: int, layout: Layout) -> PlanCell:
    engine = asked.costs.engine(layout.tp)
    prompt, reply = asked.costs.split(context)
    found = rollout(engine, Workload(prompt, reply, responses))
    held = engine.weight_bytes + engine.reserve_bytes(fitted(engine).values)
    room = max(0, held + engine.room_bytes(fitted(engine).values))
    return PlanCell(
        stage="rollout",
        context=context,
        responses=responses,
        dp=layout.dp,
        tp=layout.tp,
        pp=layout.pp,
        feasible=found.running > 0,
        verdict=_verdict(found, engine, context, responses, (held, room)),
        memory_bytes=held + found.kv_bytes if found.running else int(held + context * engine.token_bytes),
        room_bytes=room,
        kv_tokens_capacity=found.kv_tokens_capacity,
        waves=found.waves or None,
        throughput=found.tokens_per_gpu_s,
    )


def _verdict(found: Rollout, engine: Engine, context: int, responses: int, sizes: tuple[int, int]) -> str:
    """Why a load fits or not, and its cost in waves and memory. sizes: bytes of weights and workspace on a GPU, and
    those that the engine may take."""
    held, room = sizes
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
    return (
        f"{why}, in {found.waves} waves; all at once would be {asked / found.kv_tokens_capacity:.1f} times as many "
        f"tokens and need {need:.1f} GiB on each GPU: an engine that cannot let responses wait runs out of memory"
    )


def training_cells(asked: Question, gpus: int) -> list[PlanCell]:
    """Cells of both learner stages at every context, for every split that the heads allow; `gpus` learn."""
    by_tp: dict[int, list[Layout]] = {}
    for layout in learner_layouts(asked, gpus):
        by_tp.setdefault(layout.tp, []).append(layout)
    stages: tuple[Stage, ...] = ("experience", "update")
    points = product(stages, asked.contexts, by_tp.values())
    return [_training_cell(asked, stage, context, layouts) for stage, context, layouts in points]


def update_choice(asked: Question, context: int, gpus: int) -> Choice:
    """The fastest way to learn that fits, or the one that comes nearest."""
    load = load_at(asked.costs.config.rollout.episodes, context)
    return asked.costs.best_update(learner_layouts(asked, gpus), load)


def learner_layouts(asked: Question, gpus: int) -> list[Layout]:
    possible = asked.costs.learner_layouts(gpus)
    return [layout for layout in possible if layout.tp in asked.tps] or possible


def _training_cell(asked: Question, stage: Stage, context: int, layouts: list[Layout]) -> PlanCell:
    """The fastest way that fits, for both stages the same; the layouts have one split."""
    costs, load = asked.costs, load_at(asked.costs.config.rollout.episodes, context)
    way = costs.best_update(layouts, load)
    layout = way.layout
    own = replace(way, stage=stage)
    need = costs.need(own, costs.largest(load))
    words = verdict(need.needed_bytes, costs.memory_bytes) if need.needed_bytes else need.why_not
    speed = load.sequences * load.mean_tokens / costs.batch_seconds(own, load) / layout.size
    return PlanCell(
        stage=stage,
        context=context,
        dp=layout.dp,
        tp=layout.tp,
        ep=layout.ep,
        replicas=layout.replicas,
        micro_batch_tokens=way.micro_batch_tokens,
        recompute=way.recompute,
        offload=way.offload,
        feasible=not need.why_not,
        verdict=f"out of memory: {words}" if need.why_not and need.needed_bytes else words,
        memory_bytes=need.needed_bytes,
        room_bytes=need.room_bytes,
        throughput=None if need.why_not else with_interval(speed),
        step_seconds=costs.seconds(way, load),
    )
