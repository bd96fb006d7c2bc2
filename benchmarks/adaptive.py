"""Adaptive against static layouts in the same run, under a memory budget per process.

Arithmetic chains grow longer from step to step. Four ranks and four samplers on this machine take turns.

    unbounded   the layout of the shortest contexts, without a budget: the reference for losses
    static      one layout each: small ones run out of memory, large ones are slow
    adaptive    the selector's layouts
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from earl.config import Config
from earl.errors import EarlError
from earl.recipe import build, dump, load_toml, override
from earl.runs.folder import RunFolder, create, lock
from earl.runs.store import Store
from earl.train import run as train

RECIPE = load_toml(Path(__file__).with_name("adaptive.toml"))
RECOMPUTE = "learner.recompute=true"
LARGE_SAMPLER = ("placement.samplers=1", "sampler.tp=4")
STATIC: dict[str, tuple[str, ...]] = {
    "small": (),
    "recompute, 2 x tp 2": (RECOMPUTE, "placement.samplers=2", "sampler.tp=2"),
    "dp 2 x tp 2, 1 x tp 4": (RECOMPUTE, "placement.dp=2", "placement.tp=2", *LARGE_SAMPLER),
    "large": ("placement.dp=1", "placement.tp=4", *LARGE_SAMPLER),
}
LOSSES = ("loss", "value_loss", "entropy")
SETUP = ("evaluate", "checkpoint")
"""Stages that are not part of a step."""


def run(root: Path, arms: Sequence[str] = (), assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Train every arm, or only `arms`; existing runs in `root` are read. For the result see `earl bench adaptive
    --help`.
    """
    settings = {
        "unbounded": ("placement.memory_gib=64",),
        **STATIC,
        "adaptive": ("selector.kind=auto",),
    }
    wanted = [name for name in settings if not arms or name in arms]
    found = {}
    for name in wanted:
        config = build(override(RECIPE, [*settings[name], *assignments]))
        found[name] = _arm(root, name.replace(", ", "-").replace(" ", "-"), config)
    expected = found.get("unbounded", {}).get("losses", {})
    result = {name: _row(own, expected) for name, own in found.items()}
    budget = build(override(RECIPE, assignments)).placement.memory_bytes
    feasible = [result[name]["seconds"] for name in STATIC if name in result and not result[name]["out_of_memory"]]
    own = result.get("adaptive")
    return {
        "budget_bytes": budget,
        "arms": result,
        "speedup": min(feasible) / own["seconds"] if own and feasible else None,
    }


def _arm(root: Path, name: str, config: Config) -> dict[str, Any]:
    folder = root / name
    said = None
    if not folder.exists():
        said = _trained(create(root, name, dump(config)), config)
        (folder / "ended.txt").write_text(said or "", encoding="utf-8")
    with Store(RunFolder(folder).database, read_only=True) as store:
        timings, metrics, events = store.timings(), store.metrics(), store.events()
    seconds = {
        stage: sum(value for step, value in points if step) for stage, points in timings.items() if stage not in SETUP
    }
    told = [(event.kind, event.step, event.message) for event in events if event.kind in ("layout", "out_of_memory")]
    return {
        "seconds": sum(seconds.values()),
        "stages": seconds,
        "steps": max((step for step, _ in metrics.get("loss", [])), default=0),
        "out_of_memory": (folder / "ended.txt").read_text(encoding="utf-8") or None,
        "peak_bytes": max((value for _, value in metrics.get("memory/peak_bytes", [])), default=0.0),
        "peaks": {name: max(v for _, v in points) for name, points in metrics.items() if "peak_bytes/" in name},
        "episodes": sum(value for _, value in metrics.get("episodes", [])),
        "losses": {loss: dict(metrics.get(loss, [])) for loss in LOSSES},
        "told": told,
    }


def _trained(folder: RunFolder, config: Config) -> str | None:
    """Train to the end. Returns the message of an out-of-memory error."""
    try:
        with lock(folder):
            train(folder, config)
    except EarlError as error:
        if "ran out of memory" not in str(error):
            raise
        return str(error)
    return None


def _row(own: dict[str, Any], expected: dict[str, dict[int, float]]) -> dict[str, Any]:
    switches = [message.partition(":")[0] for kind, _, message in own["told"] if kind == "layout"]
    apart = [
        abs(value - expected[loss][step])
        for loss, points in own["losses"].items()
        for step, value in points.items()
        if step in expected.get(loss, {})
    ]
    return {
        **{name: own[name] for name in ("seconds", "steps", "out_of_memory", "peak_bytes", "peaks", "episodes")},
        "switch_seconds": own["stages"].get("switch", 0.0),
        "stages": own["stages"],
        "difference": max(apart, default=None),
        "switches": {stage: switches.count(stage) for stage in ("rollout", "update")},
        "told": own["told"],
    }
