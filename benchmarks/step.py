"""The time of a training step with one process and with two."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from earl.benchmarks.repeats import in_turns, interval
from earl.benchmarks.training import by_step, recipe, trained
from earl.config import Config
from earl.envs import registry
from earl.runs.store import read_numbers

SHORT = (
    *("evaluate.patience=0", "evaluate.exact=false", "evaluate.episodes=1", "evaluate.final_episodes=1"),
    "warm_start.steps=10",
)
Steps = list[dict[str, float]]
"""Seconds by stage of every step."""


def run(env: str = "tictactoe", steps: int = 10, repeats: int = 3, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure steps of a packaged recipe after a short warm start. For the result see `earl bench step --help`."""
    seldom = [f"{key}={steps + 10}" for key in ("evaluate.every", "run.checkpoint_every")]
    opponents = "evaluate.opponents=[]" if registry.seats(env) == 1 else 'evaluate.opponents=["random"]'
    config = recipe(env, [*SHORT, opponents, *seldom, f"run.steps={steps}", *assignments])
    measured = in_turns({"one": lambda _: _steps(config, 1), "two": lambda _: _steps(config, 2)}, repeats)
    one, two = ([median(_totals(own)) for own in repeated] for repeated in measured.values())
    return {
        "env": env,
        "steps": steps,
        "repeats": repeats,
        "episodes": config.rollout.episodes,
        **{name: _summary([stages for repeat in own for stages in repeat]) for name, own in measured.items()},
        "speedup": interval([a / b for a, b in zip(one, two, strict=True)]),
    }


def _steps(config: Config, processes: int) -> Steps:
    """The steps of reinforcement learning but the first, which warms up, and the last, which evaluates."""
    own = config.model_copy(update={"run": config.run.model_copy(update={"processes": processes})})
    with tempfile.TemporaryDirectory() as root:
        timings = read_numbers(trained(Path(root), "benchmark", own).database).timings
    return by_step(timings, config.warm_start.steps + 2, config.total_steps - 1)


def _totals(steps: Steps) -> list[float]:
    return [sum(stages.values()) for stages in steps]


def _summary(steps: Steps) -> dict[str, Any]:
    seconds = {name: [stages.get(name, 0.0) for stages in steps] for name in sorted(set().union(*steps))}
    whole = sum(_totals(steps))
    return {
        "seconds": interval(_totals(steps)),
        "stages": {name: median(own) for name, own in seconds.items()},
        "tracking_share": sum(seconds.get("track", [])) / whole,
        "storing_share": sum(seconds.get("record", [])) / whole,
    }
