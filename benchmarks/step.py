"""The time of a training step with one process and with two, and the share of checks of untrusted data."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from earl import report
from earl.benchmarks.rollout import interval, recipe
from earl.config import Config
from earl.envs import registry
from earl.recipe import dump
from earl.runs.folder import create, lock
from earl.runs.store import Store
from earl.train import run as train

SHORT = ["evaluate.exact=false", "evaluate.episodes=1", "evaluate.final_episodes=1", "warm_start.steps=10"]


def run(env: str = "tictactoe", steps: int = 10, repeats: int = 3, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure steps of a packaged recipe after a short warm start. For the result see `earl bench step --help`."""
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
        "speedup": interval([a / b for a, b in zip(one, two, strict=True)]),
    }


def _steps(config: Config) -> list[dict[str, float]]:
    """Seconds by stage of every step of reinforcement learning but the first, which warms up."""
    with tempfile.TemporaryDirectory() as root:
        folder = create(Path(root), "benchmark", dump(config))
        with lock(folder):
            train(folder, config)
        with Store(folder.database, read_only=True) as store:
            timings = store.timings()
    first, last = config.warm_start.steps + 2, config.total_steps - 1  # the last step evaluates
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
        "seconds": interval([_total(stages) for stages in steps]),
        "stages": {name: median(stages.get(name, 0.0) for stages in steps) for name in names},
        "tracking_share": _share(steps, "track"),
        "storing_share": _share(steps, "record"),
    }


def _share(steps: list[dict[str, float]], stage: str) -> float:
    return sum(stages.get(stage, 0.0) for stages in steps) / sum(map(_total, steps))


STORE = "earl.runs.store.Store"
CHECKS = {
    "earl.envs.base": ("checked_reset", "checked_step", "checked_text", "checked_turns"),
    "earl.engine.checkpoint_tensors": ("check_finite",),
    "earl.documents": ("_check",),
    "earl.runs.storage": ("open_below", "checked", "checked_database"),
    "earl.runs.tables": ("checked_bytes",),
    "earl.runs.parquet": ("_examine",),
    "earl.runs.trajectories": ("_check", "_checked_step"),
    "earl.runs.signing": ("signature", "signer", "checked"),
    STORE: ("_distrust", "_check_schema", "_worked"),
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
    opponents = "evaluate.opponents=[]" if registry.seats(env) == 1 else 'evaluate.opponents=["random"]'
    kept = ["run.processes=1", "run.keep_trajectories_every=5", f"run.steps={steps}"]
    config = recipe(env, [*SHORT, opponents, *kept, *assignments])
    shares: dict[str, list[float]] = {name: [] for name in ("step", "report")}
    calls = dict.fromkeys(shares, 0.0)
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as root:
            folder = create(Path(root), "benchmark", dump(config))
            with lock(folder), timed() as watch:
                train(folder, config)
            with Store(folder.database, read_only=True) as store:
                whole = sum(seconds for points in store.timings().values() for _, seconds in points)
            shares["step"].append(watch.seconds / whole)
            calls["step"] = watch.calls / config.total_steps
            with timed() as watch:
                report.write(folder)
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "earl.cli.main", "report", folder.path], check=True, stdout=subprocess.DEVNULL
            )
            shares["report"].append(watch.seconds / (time.perf_counter() - began))
            calls["report"] = watch.calls
    shown = {f"{name}_share": interval(own) for name, own in shares.items()}
    return {"env": env, "steps": steps, **shown, **{f"checks_per_{name}": count for name, count in calls.items()}}


@contextmanager
def timed() -> Iterator[Stopwatch]:
    """Time all checks until the context ends, in every module that imported them."""
    watch, undo = Stopwatch(), []
    for place, names in CHECKS.items():
        for name in names:
            owner = Store if place == STORE else import_module(place)
            function = getattr(owner, name)
            timed_one = watch.wrapped(function)
            for holder in (owner, *(module for key, module in [*sys.modules.items()] if key.startswith("earl."))):
                if vars(holder).get(name) is function:
                    undo.append((holder, name, function))
                    setattr(holder, name, timed_one)
    try:
        yield watch
    finally:
        for holder, name, function in undo:
            setattr(holder, name, function)
