"""Layouts that follow growing contexts against layouts that stay, under a memory budget per process.

Arithmetic chains grow longer from step to step, and four ranks and four samplers on this machine take turns. The arm
"unbounded" has the layout of the shortest contexts without a budget: the reference for losses. Of static layouts small
ones run out of memory, large ones are slow.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from earl.benchmarks.training import ASIDE, trained
from earl.config import Config
from earl.errors import EarlError
from earl.recipe import build, load_toml, override
from earl.runs.folder import RunFolder
from earl.runs.store import Numbers, read_numbers

RECIPE = load_toml(Path(__file__).with_suffix(".toml"))
ARMS: dict[str, list[str]] = RECIPE.pop("arms")
"""By name, what each changes of the recipe."""
LOSSES = ("loss", "value_loss", "entropy")


def run(root: Path, arms: Sequence[str] = (), assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Train every arm, or only `arms`; ended runs in `root` are read. See `earl bench adaptive --help`."""
    rows: dict[str, dict[str, Any]] = {}
    expected: dict[tuple[str, int], float] = {}
    for name, settings in ARMS.items():
        if arms and name not in arms:
            continue
        config = build(override(RECIPE, [*settings, *assignments]))
        folder = _ended(root, name.replace(", ", "-").replace(" ", "-"), config)
        found = read_numbers(folder.database)
        losses = {(loss, step): value for loss in LOSSES for step, value in found.metrics.get(loss, [])}
        expected = losses if name == "unbounded" else expected
        apart = [abs(losses[key] - expected[key]) for key in losses.keys() & expected.keys()]
        rows[name] = {**_row(folder, found), "difference": max(apart, default=None)}
    static = [name for name in rows if name not in ("unbounded", "adaptive")]
    feasible = [rows[name]["seconds"] for name in static if not rows[name]["out_of_memory"]]
    return {
        "budget_bytes": build(override(RECIPE, assignments)).placement.memory_bytes,
        "arms": rows,
        "speedup": min(feasible) / rows["adaptive"]["seconds"] if "adaptive" in rows and feasible else None,
    }


def _ended(root: Path, name: str, config: Config) -> RunFolder:
    """Train to the end or until memory runs out. What ended it is kept in `ended.txt`."""
    folder, message = RunFolder(root / name), ""
    ended = folder.path / "ended.txt"
    if not ended.exists():
        try:
            trained(root, name, config)
        except EarlError as error:
            message = str(error)
            if "ran out of memory" not in message:
                raise
        ended.write_text(message, encoding="utf-8")
    return folder


def _row(folder: RunFolder, found: Numbers) -> dict[str, Any]:
    metrics = {name: [value for _, value in points] for name, points in found.metrics.items()}
    timings = {stage: points for stage, points in found.timings.items() if stage not in ASIDE}
    seconds = {stage: sum(value for step, value in points if step) for stage, points in timings.items()}
    events = [(event.kind, event.step, event.message) for event in found.events]
    switches = Counter(message.partition(":")[0] for kind, _, message in events if kind == "layout")
    return {
        "seconds": sum(seconds.values()),
        "steps": found.metrics["loss"][-1][0] if "loss" in metrics else 0,
        "out_of_memory": (folder.path / "ended.txt").read_text(encoding="utf-8") or None,
        "peak_bytes": max(metrics.get("memory/peak_bytes", [0.0])),
        "peaks": {name: max(values) for name, values in metrics.items() if "peak_bytes/" in name},
        "episodes": sum(metrics.get("episodes", [])),
        "switch_seconds": seconds.get("switch", 0.0),
        "stages": seconds,
        "switches": {stage: switches[stage] for stage in ("rollout", "update")},
        "events": [one for one in events if one[0] in ("layout", "out_of_memory")],
    }
