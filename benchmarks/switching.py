"""The time of splitting the samplers' processes differently between two steps, and whether episodes stay the same."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from earl.benchmarks.repeats import in_turns, interval
from earl.config import Config
from earl.placement.backend import on_cluster
from earl.placement.pipeline import StepPipeline
from earl.recipe import build, load_toml, override
from earl.trajectory import Group

RECIPE = load_toml(Path(__file__).with_suffix(".toml"))


def run(repeats: int, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Split the processes in every way in turn. For the result see `earl bench switching --help`."""
    config = build(override(RECIPE, assignments))
    with on_cluster(config) as place:
        stages = place.open(None)
        stages.limit(config.context.first_limit)
        stages.sync(0)
        measured = _measured(stages, config, repeats)
        parameters = stages.shape.parameters
    return {"parameters": parameters, "splits": measured}


def _measured(stages: StepPipeline, config: Config, repeats: int) -> dict[str, Any]:
    first = stages.players.whole(stages.rollout(1))
    ways = reversed(splits(config.placement.samplers * config.sampler.tp, stages.shape.kv_heads))
    switched = {f"{copies} x {tp}": partial(_switched, stages, copies, tp, first) for copies, tp in ways}
    passes = in_turns(switched, repeats)
    return {
        name: {
            **{key: interval([one[key] for one in own]) for key in ("switch", "split", "rollout")},
            "same": min(one["same"] for one in own),
            "logprobs": max(one["logprobs"] for one in own),
        }
        for name, own in passes.items()
    }


def splits(processes: int, heads: int) -> list[tuple[int, int]]:
    """Copies, and processes per copy; `processes` per copy must divide `heads`."""
    return [(processes // tp, tp) for tp in range(1, processes + 1) if not processes % tp and not heads % tp]


def _switched(stages: StepPipeline, copies: int, tp: int, first: Sequence[Group], _: int) -> dict[str, float]:
    began = time.perf_counter()
    players: Any = stages.players
    players.relayout(copies, tp)
    split = time.perf_counter() - began
    stages.sync(0)
    switched = time.perf_counter()
    played = stages.rollout(1)
    ended = time.perf_counter()
    same, apart = _compared(first, stages.players.whole(played))
    return {"switch": switched - began, "split": split, "rollout": ended - switched, "same": same, "logprobs": apart}


def _compared(ours: Sequence[Group], theirs: Sequence[Group]) -> tuple[float, float]:
    pairs = [
        (one, other)
        for group, of_other in zip(ours, theirs, strict=True)
        for one, other in zip(group.trajectories, of_other.trajectories, strict=True)
    ]
    alike = [(one, other) for one, other in pairs if one.tokens.tolist() == other.tokens.tolist()]
    apart = max((float(abs(one.logprobs - other.logprobs).max()) for one, other in alike), default=float("inf"))
    return len(alike) / len(pairs), apart
