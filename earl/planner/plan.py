"""The plan of a cluster: cells of every stage by context, load and split, the fastest layouts and where they change,
the speed-up map and the steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise, product
from typing import Any

from earl.dispatch.predicted_cost import RATES, CostLine, DispatchJob, entry
from earl.dispatch.rows import LEARNED
from earl.dispatch.rows import columns as named
from earl.errors import EarlError
from earl.parallel.cost_model import CostModel, Need, with_interval
from earl.parallel.hardware import GIB, devices
from earl.parallel.layout import Choice, Layout, Stage, check_planned, splits, verdict
from earl.parallel.memory import Estimate
from earl.parallel.throughput.rollout import Rollout, Workload, rollout, surely_faster
from earl.parallel.throughput.step import Engine, fitted, uncalibrated
from earl.planner.question import Question, recipe_contexts
from earl.planner.tracing import TracedPlan


@dataclass(frozen=True, slots=True)
class PlanCell:
    choice: Choice  # dp: copies of the engine, or data-parallel size of the learner
    context: int  # of the longest episode, which has to fit
    need: Need
    verdict: str  # why it fits or does not, in words
    throughput: Estimate | None  # tokens per GPU and second; None: it does not fit
    responses: int | None = None
    """Given to one copy of the engine at once; None: the stage does not sample."""
    kv_tokens_capacity: int | None = None
    """Tokens of keys and values that one copy of the engine holds; None: the stage keeps none."""
    waves: int | None = None
    """How often the engine fills its cache to serve all responses; None: it cannot, or keeps none."""
    step_seconds: float | None = None
    """Of the recipe's step, experience and update together; None: the stage samples."""

    @property
    def stage(self) -> Stage:
        return self.choice.stage

    @property
    def tp(self) -> int:
        return self.choice.layout.tp

    @property
    def oversubscription(self) -> float | None:
        """Tokens of all responses at full length per token that fits; None if none are kept or none fits."""
        if self.responses is None or not self.kv_tokens_capacity:
            return None
        return self.responses * self.context / self.kv_tokens_capacity

    @property
    def as_object(self) -> dict[str, Any]:
        fields = asdict(self)
        choice, need, fast = fields.pop("choice"), fields.pop("need"), fields.pop("throughput") or {}
        speed = {end: fast.get(name) for end, name in (("", "value"), ("_low", "low"), ("_high", "high"))}
        return {
            **choice.pop("layout"),
            **choice,
            **fields,
            "feasible": self.throughput is not None,
            "oversubscription": _rounded(self.oversubscription),
            **{f"tokens_per_gpu_s{end}": _rounded(value) for end, value in speed.items()},
            "origin": "predicted",
            "memory_gib_per_gpu": _rounded(need["needed_bytes"] / GIB),
            "room_gib_per_gpu": _rounded(need["room_bytes"] / GIB),
        }


def _rounded(value: float | None) -> float | None:
    """Five digits: a plan is not more precise."""
    return None if value is None else float(f"{value:.5g}")


def rollout_cells(asked: Question, gpus: int) -> list[PlanCell]:
    """Cells of every split at every context and load; `gpus` sample."""
    return [
        _rollout_cell(asked, context, responses, engine, gpus)
        for context in asked.contexts
        for responses in asked.responses
        for engine in map(asked.costs.engine, asked.tps)
        if engine.devices <= gpus
    ]


def _rollout_cell(asked: Question, context: int, responses: int, engine: Engine, gpus: int) -> PlanCell:
    prompt, reply = asked.costs.split(context)
    found = rollout(engine, Workload(prompt, reply, responses))
    held = engine.weight_bytes + engine.reserve_bytes(fitted(engine).values)
    room = max(0, held + engine.room_bytes(fitted(engine).values))
    needed = held + found.kv_bytes if found.running else int(held + context * engine.token_bytes)
    words = _verdict(found, engine, context, responses, (held, room))
    return PlanCell(
        choice=Choice("rollout", Layout(gpus // engine.devices, engine.tp, pp=engine.pp)),
        context=context,
        need=Need(needed, room, "" if found.running else words),
        verdict=words,
        throughput=found.tokens_per_gpu_s,
        responses=responses,
        kv_tokens_capacity=found.kv_tokens_capacity,
        waves=found.waves or None,
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
    for layout in asked.learner_layouts(gpus):
        by_tp.setdefault(layout.tp, []).append(layout)
    stages: tuple[Stage, ...] = ("experience", "update")
    points = product(stages, asked.contexts, by_tp.values())
    return [_training_cell(asked, stage, context, layouts) for stage, context, layouts in points]


def _training_cell(asked: Question, stage: Stage, context: int, layouts: list[Layout]) -> PlanCell:
    """The fastest way that fits, for both stages the same; the layouts have one split."""
    costs, load = asked.costs, asked.load(context)
    way = costs.best_update(layouts, load)
    own = replace(way, stage=stage)
    need = costs.need(own, costs.largest(load))
    words = verdict(need.needed_bytes, costs.memory_bytes) if need.needed_bytes else need.why_not
    speed = load.sequences * load.mean_tokens / costs.batch_seconds(own, load) / way.layout.size
    return PlanCell(
        choice=own,
        context=context,
        need=need,
        verdict=f"out of memory: {words}" if need.why_not and need.needed_bytes else words,
        throughput=None if need.why_not else with_interval(speed),
        step_seconds=costs.seconds(way, load),
    )


@dataclass(frozen=True, slots=True)
class FastestLayout:
    """The fastest layout that fits, for one stage, context and load."""

    cell: PlanCell  # if none fits, the nearest one
    ahead_percent: float | None = None
    """Over the fastest layout with another split; None: no other fits."""
    certain: bool = False
    """Whether it is ahead in four of five cases; False: measure both before relying on it."""

    @property
    def tp(self) -> int | None:
        return self.cell.tp if self.cell.throughput else None

    @property
    def as_object(self) -> dict[str, Any]:
        split = {} if self.tp else {"dp": None, "tp": None}
        return {**self.cell.as_object, **split, "ahead_percent": self.ahead_percent, "certain": self.certain}


@dataclass(frozen=True, slots=True)
class Switch:
    stage: Stage
    responses: int | None
    tp: int | None
    first: int
    last: int


def choices(cells: Iterable[PlanCell], costs: CostModel | None = None) -> list[FastestLayout]:
    """One choice for each stage, number of responses and context, in the order of the cells."""
    groups: dict[tuple[Stage, int, int], list[PlanCell]] = {}
    for cell in cells:
        if cell.stage != "experience":  # the learner's ranks prepare it
            groups.setdefault((cell.stage, cell.responses or 0, cell.context), []).append(cell)
    return [_choice(group, costs) for group in groups.values()]


def switches(found: Iterable[FastestLayout]) -> list[Switch]:
    """Ranges of contexts with the same split, by stage and responses, such as TP 4 from 1,024 to 8,192."""
    ordered = sorted(found, key=lambda pick: (pick.cell.stage, pick.cell.responses or 0, pick.cell.context))
    runs = groupby(ordered, key=lambda pick: (pick.cell.stage, pick.cell.responses, pick.tp))
    ranges = [(key, [pick.cell.context for pick in run]) for key, run in runs]
    return [Switch(*key, contexts[0], contexts[-1]) for key, contexts in ranges]


def _choice(group: Sequence[PlanCell], costs: CostModel | None) -> FastestLayout:
    """Among equally fast layouts the smallest split wins."""
    fitting = [(cell.throughput, cell) for cell in group if cell.throughput]
    if not fitting:
        return FastestLayout(min(group, key=lambda cell: cell.need.needed_bytes / max(1, cell.need.room_bytes)))
    (speed, best), *others = sorted(fitting, key=lambda one: (one[1].step_seconds or -one[0].value, one[1].tp))
    rival, second = next(((other, cell) for other, cell in others if cell.tp != best.tp), (None, best))
    certain = rival is None or speed.low > rival.high
    if rival and costs and best.responses:
        load = Workload(*costs.split(best.context), best.responses)
        certain = surely_faster(costs.engine(best.tp), costs.engine(second.tp), load)
    return FastestLayout(best, (speed.value / rival.value - 1) * 100 if rival else None, certain)


@dataclass(frozen=True, slots=True)
class Speedup:
    """Gain of rollout by another split: Speedup%(a, b) = (TGS(b) - TGS(a)) / TGS(a) x 100, TGS = tokens per GPU and
    second (arXiv 2510.05943, equation 1). Negative: the first one is faster."""

    tp_from: int
    tp_to: int
    context: int
    responses: int
    percent: float | None  # None if one of the two does not fit
    why: str  # which one does not fit; empty if both do


def speedups(cells: Iterable[PlanCell]) -> list[Speedup]:
    """Every split of the rollout against the next larger one."""
    found = {(cell.tp, cell.responses, cell.context): cell.throughput for cell in cells if cell.responses is not None}
    result = []
    for (first, last), (load, context) in product(
        pairwise(sorted({tp for tp, _, _ in found})), sorted({(load, context) for _, load, context in found})
    ):
        before, after = found[first, load, context], found[last, load, context]
        gain = round((after.value - before.value) / before.value * 100, 1) if before and after else None
        why = " and ".join(f"TP {tp} does not fit" for tp, speed in ((first, before), (last, after)) if speed is None)
        result.append(Speedup(first, last, context, load, gain, why))
    return result


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
    costs, load = asked.costs, asked.load(context)
    shared, gpus = costs.config.placement.kind != "disaggregated", costs.cluster.gpus
    episodes, tokens = load.sequences, int(load.sequences * load.mean_tokens)
    possible = costs.rollout_choices(sampling)
    rollouts = [choice for choice in possible if choice.layout.tp in asked.tps] or possible
    first, last = costs.best(rollouts, load), asked.update_choice(context, learning)
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


LARGEST_HOST = 8  # GPUs of the largest host that is proposed


@dataclass(frozen=True, slots=True)
class Plan:
    asked: Question
    sampling: int
    """GPUs that sample; all of them if sampling and learning alternate."""
    learning: int
    cells: tuple[PlanCell, ...]
    choices: tuple[FastestLayout, ...]
    switches: tuple[Switch, ...]  # contexts with the same choice, by stage and load
    map: tuple[Speedup, ...]
    steps: tuple[PredictedStep, ...]  # one for each context
    traced: TracedPlan | None = None

    @property
    def fitting(self) -> tuple[int, ...]:
        """Splits of the engine that hold at least one response at some context."""
        return tuple(tp for tp in self.asked.tps if any(cell.waves and cell.tp == tp for cell in self.cells))

    def as_object(self, price: float | None) -> dict[str, Any]:
        """The plan as a JSON object. `price` is per GPU-hour; None: without cost."""
        asked = self.asked
        costs, config = asked.costs, asked.costs.config
        cluster, precision = costs.cluster, costs.engine(1).precision
        return {
            "predicted": True,
            "uncalibrated": [] if costs.measured else uncalibrated(costs.engine(1)),
            "recalibrated": costs.measured and costs.measured.text,
            "model": asked.model,
            "gpus": cluster.gpus,
            "hosts": cluster.hosts,
            "gpus_per_host": cluster.gpus_per_host,
            "kind": costs.device.kind,
            "engine": costs.software.name,
            "weights": precision.weights,
            "kv_cache": precision.kv,
            "network_gbps": costs.network_gbps,
            "placement": "disaggregated" if config.placement.kind == "disaggregated" else "colocated",
            "sampling_gpus": self.sampling,
            "learning_gpus": self.learning,
            "episodes": config.rollout.episodes,
            "price_per_gpu_hour": price,
            "cells": [cell.as_object for cell in self.cells],
            "choices": [choice.as_object for choice in self.choices],
            "switches": [asdict(run) for run in self.switches],
            "map": [asdict(entry) for entry in self.map],
            "step": [each.as_object for each in self.steps],
            "dispatch": [asdict(each.dispatch) for each in self.steps if each.dispatch],
            "cost": [each.cost(price) for each in self.steps],
            "trace": self.traced and self.traced.as_object,
        }


def shares(asked: Question) -> tuple[int, int]:
    """GPUs that learn, and that sample, for the recipe's longest context, if that is asked for. Raises EarlError when
    the cluster is too large, or they cannot both have one."""
    config, costs = asked.costs.config, asked.costs
    check_planned(costs.cluster, config.placement.kind != "disaggregated")
    own = [context for context in recipe_contexts(config) if context in asked.contexts]
    return costs.shares(asked.load(max(own or asked.contexts)))


def plan(asked: Question) -> Plan:
    """Plan a cluster. Raises EarlError when no engine fits, or learner and samplers cannot both have GPUs."""
    costs = asked.costs
    learning, sampling = shares(asked)
    sampled = rollout_cells(asked, sampling)
    _check_any_fits(asked, sampled)
    cells = sampled + training_cells(asked, learning)
    found = choices(cells, costs)
    return Plan(
        asked=asked,
        sampling=sampling,
        learning=learning,
        cells=tuple(cells),
        choices=tuple(found),
        switches=tuple(switches(found)),
        map=tuple(speedups(sampled)),
        steps=tuple(step(asked, context, sampling, learning) for context in asked.contexts),
    )


def _check_any_fits(asked: Question, cells: list[PlanCell]) -> None:
    """Raises EarlError, with the fewest GPUs of a host that are enough, when no engine holds one response."""
    if any(cell.throughput for cell in cells):
        return
    best = min(cells, key=lambda cell: cell.need.needed_bytes - cell.need.room_bytes)
    near = nearest_fit(asked)
    cure = (
        f"nearest that fits: --gpus {near}" if near else "choose a smaller model, narrower weights or shorter contexts"
    )
    raise EarlError(
        f"{asked.model} fits in no layout of {asked.costs.cluster.where}: TP {best.tp} comes nearest and needs "
        f"{best.need.needed_bytes / GIB:.1f} GiB of each GPU at {best.context:,} tokens, of which the engine may take "
        f"{best.need.room_bytes / GIB:.1f}; {cure}"
    )


def nearest_fit(asked: Question) -> str | None:
    """The fewest GPUs on one host that hold the model and its shortest context: of the same kind, else of another."""
    kinds = sorted(devices().values(), key=lambda device: device.memory_bytes)
    for device in [asked.costs.device, *kinds]:
        for tp in splits(asked.costs.shape, LARGEST_HOST, replicated=True):
            engine = replace(asked.costs.engine(tp), device=device, measured=None)
            if engine.kv_tokens(fitted(engine).values) >= asked.contexts[0]:
                return f"{tp}x{device.kind}"
    return None
