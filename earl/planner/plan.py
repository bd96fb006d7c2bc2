"""The whole plan of a cluster."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from earl.errors import EarlError
from earl.parallel.arrangement import shares, splits
from earl.parallel.hardware import GIB, devices
from earl.parallel.throughput.coefficients import fitted
from earl.planner.cell import Cell
from earl.planner.choice import Choice, Switch, choices, switches
from earl.planner.question import Question
from earl.planner.rollout import rollout_cells
from earl.planner.speedup import Speedup, speedups
from earl.planner.step import Step
from earl.planner.timing import step
from earl.planner.training import training_cells

LARGEST_HOST = 8
"""GPUs of the largest host that is proposed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a cluster would do."""

    asked: Question
    sampling: int
    """GPUs that sample; where they take turns with the learner, all of them."""
    learning: int
    cells: tuple[Cell, ...]
    choices: tuple[Choice, ...]
    switches: tuple[Switch, ...]
    """Contexts with the same choice, by stage and load."""
    map: tuple[Speedup, ...]
    steps: tuple[Step, ...]
    """One for each context."""

    @property
    def fitting(self) -> tuple[int, ...]:
        """Splits of the engine that have room for a response at one context at least."""
        return tuple(tp for tp in self.asked.tps if any(c.feasible and c.tp == tp for c in self.cells if c.waves))

    def as_object(self, price: float | None) -> dict[str, Any]:
        """For programs.

        Args:
            price: of a GPU-hour; None: no cost is said.
        """
        asked = self.asked
        cluster, config = asked.cluster, asked.config
        return {
            "predicted": True,
            "model": asked.model,
            "gpus": cluster.gpus,
            "hosts": cluster.hosts,
            "gpus_per_host": cluster.gpus_per_host,
            "kind": cluster.device.kind if cluster.device else None,
            "engine": asked.software.name,
            "weights": asked.precision.weights,
            "kv_cache": asked.precision.kv,
            "network_gbps": asked.network_gbps,
            "placement": "disaggregated" if config.placement.kind == "disaggregated" else "colocated",
            "sampling_gpus": self.sampling,
            "learning_gpus": self.learning,
            "episodes": config.rollout.episodes,
            "price_per_gpu_hour": price,
            "cells": [cell.as_object for cell in self.cells],
            "choices": [choice.as_object for choice in self.choices],
            "switches": [asdict(run) for run in self.switches],
            "map": [entry.as_object for entry in self.map],
            "step": [each.as_object for each in self.steps],
            "dispatch": [asdict(each.dispatch) for each in self.steps if each.dispatch],
            "cost": [each.cost(price) for each in self.steps],
        }


def plan(asked: Question) -> Plan:
    """Plan a cluster.

    Raises:
        EarlError: when no engine fits, or learner and samplers cannot both have GPUs.
    """
    learning, sampling = shares(asked.cluster, asked.config.placement.kind != "disaggregated")
    if not sampling:
        raise EarlError(
            "placement.kind = 'disaggregated' needs GPUs for the learner and others for samplers, "
            f"{asked.cluster.where} has {asked.cluster.gpus}; name more of them, or set placement.kind to colocated"
        )
    sampled = rollout_cells(asked, sampling)
    _check_any_fits(asked, sampled)
    cells = sampled + training_cells(asked, learning)
    found = choices(cells)
    return Plan(
        asked=asked,
        sampling=sampling,
        learning=learning,
        cells=tuple(cells),
        choices=tuple(found),
        switches=tuple(switches(found)),
        map=tuple(speedups(sampled)),
        steps=tuple(step(asked, context, cells, sampling) for context in asked.contexts),
    )


def _check_any_fits(asked: Question, cells: list[Cell]) -> None:
    """Raises EarlError, with the fewest GPUs of a host that are enough, when no engine holds one response."""
    if any(cell.feasible for cell in cells):
        return
    best = min(cells, key=lambda cell: cell.memory_bytes - cell.room_bytes)
    near = nearest_fit(asked)
    cure = (
        f"nearest that fits: --gpus {near}" if near else "choose a smaller model, narrower weights or shorter contexts"
    )
    raise EarlError(
        f"{asked.model} fits in no layout of {asked.cluster.where}: TP {best.tp} comes nearest and needs "
        f"{best.memory_bytes / GIB:.1f} GiB of each GPU at {best.context:,} tokens, of which the engine may take "
        f"{best.room_bytes / GIB:.1f}; {cure}"
    )


def nearest_fit(asked: Question) -> str | None:
    """As few GPUs on one host as hold the model and its shortest context: of the same kind, else of another one."""
    own = asked.cluster.device
    kinds = sorted(devices().values(), key=lambda device: (device is not own, device.memory_bytes))
    for device in [own, *kinds] if own else kinds:
        for tp in splits(asked.shape, LARGEST_HOST, replicated=True):
            engine = replace(asked.engine(tp), device=device)
            if engine.kv_tokens(fitted().values) >= asked.contexts[0]:
                return f"{tp}x{device.kind}"
    return None
