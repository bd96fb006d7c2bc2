"""What checking untrusted values and files takes, of a training step and of a report.

A packaged recipe trains for some steps in this process, then its report is written. Every check is timed where it is
called; of checks within checks the outermost counts.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from earl import report
from earl.benchmarks.rollout import recipe, spread
from earl.benchmarks.step import SHORT
from earl.envs import registry
from earl.recipe import dump
from earl.runs.folder import create, lock
from earl.runs.store import Store
from earl.train import run as train

CHECKS = {
    "earl.envs.base": ("checked_reset", "checked_step", "checked_text", "checked_turns"),
    "earl.engine.stored": ("check_finite",),
    "earl.documents": ("_short", "_check"),
    "earl.runs.storage": ("open_below", "checked", "checked_database"),
    "earl.runs.tables": ("checked_bytes",),
    "earl.runs.parquet": ("_examine",),
    "earl.runs.trajectories": ("_check", "_checked_step"),
    "earl.runs.signing": ("signature", "signer", "checked"),
    "earl.runs.store.Store": ("_distrust", "_check_schema", "_worked"),
}
"""Where they are defined -> their names. Opening a file counts whole, though something had to open it before."""


class Stopwatch:
    """Seconds that wrapped functions took, of nested ones the outermost alone; of any thread."""

    def __init__(self) -> None:
        self.seconds, self.calls, self._inside = 0.0, 0, False

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

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


def run(env: str = "tictactoe", steps: int = 10, repeats: int = 3, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure the share of the checks.

    Returns:
        `step_share`, `report_share`: seconds in checks over all seconds, of the training after it began and of the
        writing of its report, as median, min and max over repeats; `checks_per_step`, `checks_per_report`.
    """
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
                began = time.perf_counter()
                report.write(folder)
                shares["report"].append(watch.seconds / (time.perf_counter() - began))
            calls["report"] = watch.calls
    shown = {f"{name}_share": spread(own) for name, own in shares.items()}
    return {"env": env, "steps": steps, **shown, **{f"checks_per_{name}": count for name, count in calls.items()}}


@contextmanager
def timed() -> Iterator[Stopwatch]:
    """Time all checks until the context ends, wherever they were imported to."""
    watch, undo = Stopwatch(), []
    for place, names in CHECKS.items():
        for name in names:
            owner = sys.modules.get(place) or Store
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
