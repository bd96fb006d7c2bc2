"""The time of a training step with one process and with two: same recipe, same seed, turn about."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from earl.benchmarks.rollout import recipe, spread
from earl.config import Config
from earl.envs import registry
from earl.recipe import dump
from earl.runs.folder import create, lock
from earl.runs.store import Store
from earl.train import run as train

SHORT = ["evaluate.exact=false", "evaluate.episodes=1", "evaluate.final_episodes=1", "warm_start.steps=10"]
"""What is not measured is kept short."""


def run(env: str = "tictactoe", steps: int = 10, repeats: int = 3, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure steps of reinforcement learning of a packaged recipe, after a short warm start.

    Returns:
        `one` and `two` (processes): `seconds`, of whole steps, as median, min and max over the steps of all
        repeats, and `stages`, the median seconds of each stage, `tracking_share` and `storing_share`: what
        measuring contexts and storing episodes took of all steps together; `speedup`: of two processes over one,
        pair by pair of repeats; `episodes` per step and what was asked for.
    """
    opponents = "evaluate.opponents=[]" if registry.seats(env) == 1 else 'evaluate.opponents=["random"]'
    seldom = [f"{key}={steps + 10}" for key in ("evaluate.every", "run.checkpoint_every")]
    config = recipe(env, [*SHORT, opponents, *seldom, f"run.steps={steps}", *assignments])
    measured: dict[str, list[list[dict[str, float]]]] = {"one": [], "two": []}
    for _ in range(repeats):
        for processes, name in enumerate(measured, start=1):
            own = config.model_copy(update={"run": config.run.model_copy(update={"processes": processes})})
            measured[name].append(_steps(own))
    one, two = ([median(map(_total, steps_)) for steps_ in repeats_] for repeats_ in measured.values())
    return {
        "env": env,
        "steps": steps,
        "repeats": repeats,
        "episodes": config.rollout.episodes,
        **{name: _summary(own) for name, own in measured.items()},
        "speedup": spread([a / b for a, b in zip(one, two, strict=True)]),
    }


def _steps(config: Config) -> list[dict[str, float]]:
    """Seconds by stage of every step of reinforcement learning but the first, which warms up."""
    with tempfile.TemporaryDirectory() as root:
        folder = create(Path(root), "benchmark", dump(config))
        with lock(folder):
            train(folder, config)
        with Store(folder.database, read_only=True) as store:
            timings = store.timings()
    first, last = config.warm_start.steps + 2, config.total_steps - 1  # the last one evaluates
    return [
        {stage: dict(points)[step] for stage, points in timings.items() if step in dict(points)}
        for step in range(first, last + 1)
    ]


def _total(stages: dict[str, float]) -> float:
    return sum(stages.values())


def _summary(repeats: list[list[dict[str, float]]]) -> dict[str, Any]:
    steps = [stages for repeat in repeats for stages in repeat]
    names = sorted({name for stages in steps for name in stages})
    return {
        "seconds": spread([_total(stages) for stages in steps]),
        "stages": {name: median(stages.get(name, 0.0) for stages in steps) for name in names},
        "tracking_share": _share(steps, "track"),
        "storing_share": _share(steps, "record"),
    }


def _share(steps: list[dict[str, float]], stage: str) -> float:
    return sum(stages.get(stage, 0.0) for stages in steps) / sum(map(_total, steps))
