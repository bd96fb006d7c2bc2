"""The plan of a cluster: cells, the fastest layouts, where they change, the speed-up map and the steps."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby, pairwise, product
from typing import Any

from earl.dispatch.predicted_cost import load_at
from earl.errors import EarlError
from earl.parallel.cost_model import CostModel
from earl.parallel.hardware import GIB, devices
from earl.parallel.layout import Stage, check_planned, splits
from earl.parallel.throughput.rollout import Workload, surely_faster
from earl.parallel.throughput.step import fitted, uncalibrated
from earl.planner.question import Question, recipe_contexts
from earl.planner.stages import PlanCell, PredictedStep, rollout_cells, step, training_cells
from earl.planner.tracing import TracedPlan


@dataclass(frozen=True, slots=True)
class FastestLayout:
    """The fastest layout that fits, for one stage, context and load."""

    stage: Stage
    context: int
    responses: int | None
    verdict: str
    """Of the chosen cell; if none fits, of the nearest one."""
    tp: int | None = None  # None: no layout fits
    dp: int | None = None
    pp: int = 1  # hosts that a copy of the engine reaches over
    ep: int = 1
    replicas: int = 1
    recompute: bool = False
    offload: bool = False
    tokens_per_gpu_s: float | None = None
    ahead_percent: float | None = None
    """Over the fastest layout with another split; None: no other fits."""
    certain: bool = False
    """Whether it is ahead in four of five cases; False: measure both before relying on it."""


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
    ordered = sorted(found, key=lambda choice: (choice.stage, choice.responses or 0, choice.context))
    runs = [list(run) for _, run in groupby(ordered, key=lambda choice: (choice.stage, choice.responses, choice.tp))]
    return [Switch(run[0].stage, run[0].responses, run[0].tp, run[0].context, run[-1].context) for run in runs]


def _choice(group: Sequence[PlanCell], costs: CostModel | None) -> FastestLayout:
    """Among equally fast layouts the smallest split wins."""
    fitting = [(cell.throughput, cell) for cell in group if cell.throughput]
    if not fitting:
        nearest = min(group, key=lambda cell: cell.memory_bytes / max(1, cell.room_bytes))
        return FastestLayout(nearest.stage, nearest.context, nearest.responses, nearest.verdict)
    (speed, best), *others = sorted(fitting, key=lambda one: (one[1].step_seconds or -one[0].value, one[1].tp))
    rival, second = next(((other, cell) for other, cell in others if cell.tp != best.tp), (None, best))
    certain = rival is None or speed.low > rival.high
    if rival and costs and best.responses:
        load = Workload(*costs.split(best.context), best.responses)
        certain = surely_faster(costs.engine(best.tp), costs.engine(second.tp), load)
    return FastestLayout(
        **{field.name: getattr(best, field.name) for field in fields(FastestLayout) if hasattr(best, field.name)},
        tokens_per_gpu_s=speed.value,
        ahead_percent=(speed.value / rival.value - 1) * 100 if rival else None,
        certain=certain,
    )


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
        return tuple(tp for tp in self.asked.tps if any(c.feasible and c.tp == tp for c in self.cells if c.waves))

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
            "choices": [asdict(choice) for choice in self.choices],
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
    return costs.shares(load_at(config.rollout.episodes, max(own or asked.contexts)))


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
    if any(cell.feasible for cell in cells):
        return
    best = min(cells, key=lambda cell: cell.memory_bytes - cell.room_bytes)
    near = nearest_fit(asked)
    cure = (
        f"nearest that fits: --gpus {near}" if near else "choose a smaller model, narrower weights or shorter contexts"
    )
    raise EarlError(
        f"{asked.model} fits in no layout of {asked.costs.cluster.where}: TP {best.tp} comes nearest and needs "
        f"{best.memory_bytes / GIB:.1f} GiB of each GPU at {best.context:,} tokens, of which the engine may take "
        f"{best.room_bytes / GIB:.1f}; {cure}"
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
