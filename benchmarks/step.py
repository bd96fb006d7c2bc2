"""The time of a training step with one process and with two, and the share of checks of untrusted data."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pkgutil import resolve_name
from statistics import median
from typing import Any
from unittest.mock import patch

from earl import reports
from earl.benchmarks.repeats import in_turns, interval
from earl.benchmarks.training import by_step, recipe, trained
from earl.config import Config
from earl.envs import registry
from earl.runs.store import read_numbers

SAMPLED = ["evaluate.patience=0", "evaluate.exact=false", "evaluate.episodes=1", "evaluate.final_episodes=1"]
SHORT = [*SAMPLED, "warm_start.steps=10"]
Steps = list[dict[str, float]]
"""Seconds by stage of every step."""


def run(env: str = "tictactoe", steps: int = 10, repeats: int = 3, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure steps of a packaged recipe after a short warm start. For the result see `earl bench step --help`."""
    seldom = [f"{key}={steps + 10}" for key in ("evaluate.every", "run.checkpoint_every")]
    config = _recipe(env, [*seldom, f"run.steps={steps}", *assignments])
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


def _recipe(env: str, assignments: Sequence[str]) -> Config:
    opponents = "evaluate.opponents=[]" if registry.seats(env) == 1 else 'evaluate.opponents=["random"]'
    return recipe(env, [*SHORT, opponents, *assignments])


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


CHECKS = {
    "earl.envs.base": ("checked_reset", "checked_step", "checked_text", "checked_turns"),
    "earl.engine.checkpoint_tensors": ("check_finite",),
    "earl.documents": ("_check",),
    "earl.runs.storage": ("open_below", "checked", "checked_database"),
    "earl.runs.store": ("checked_bytes",),
    "earl.runs.parquet": ("_examine",),
    "earl.runs.trajectories": ("_check", "_checked_step"),
    "earl.runs.signing": ("signature", "signer", "checked"),
    "earl.runs.store:Store": ("_distrust", "_check_schema", "_worked"),
}
"""Module or class -> its checks. Opening a file counts fully, although some open would be needed anyway."""


class Stopwatch:
    """Total seconds of wrapped functions, in any thread; of nested ones only the outermost counts."""

    def __init__(self) -> None:
        self.seconds, self.calls, self._inside = 0.0, 0, False

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return function(*arguments, **named)
            self._inside, began = True, time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - began
                self.calls, self._inside = self.calls + 1, False

        return call


def overhead_of_checks(
    env: str = "tictactoe", steps: int = 10, repeats: int = 3, assignments: Sequence[str] = ()
) -> dict[str, Any]:
    """Measure the share of checks, timed where they are called. For the result see `earl bench checks --help`."""
    kept = ["run.processes=1", "run.keep_trajectories_every=5", f"run.steps={steps}"]
    config = _recipe(env, [*kept, *assignments])
    measured = [_checks(config) for _ in range(repeats)]
    shares = {f"{name}_share": interval([own[f"{name}_share"] for own in measured]) for name in ("step", "report")}
    counts = {name: measured[-1][name] for name in ("checks_per_step", "checks_per_report")}
    return {"env": env, "steps": steps, **shares, **counts}


def _checks(config: Config) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as root:
        with timed() as training:
            folder = trained(Path(root), "benchmark", config)
        whole = sum(seconds for points in read_numbers(folder.database).timings.values() for _, seconds in points)
        with timed() as reporting:
            reports.write(folder)
        began = time.perf_counter()
        command = [sys.executable, "-m", "earl.cli.main", "report", str(folder.path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return {
            "step_share": training.seconds / whole,
            "checks_per_step": training.calls / config.total_steps,
            "report_share": reporting.seconds / (time.perf_counter() - began),
            "checks_per_report": reporting.calls,
        }


@contextmanager
def timed() -> Iterator[Stopwatch]:
    """Time all checks until the context ends, in every module that imported them."""
    watch = Stopwatch()
    with ExitStack() as patched:
        for place, names in CHECKS.items():
            owner = resolve_name(place)
            holders = {owner, *(module for key, module in sys.modules.items() if key.startswith("earl."))}
            for name, function in [(name, getattr(owner, name)) for name in names]:
                for holder in [holder for holder in holders if vars(holder).get(name) is function]:
                    patched.enter_context(patch.object(holder, name, watch.wrapped(function)))
        yield watch
