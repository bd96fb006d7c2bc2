"""One recipe and one seed under every placement and layout: the largest differences between their metrics."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from earl.benchmarks.ceiling import trained
from earl.errors import EarlError
from earl.recipe import build, override
from earl.runs.folder import RunFolder
from earl.runs.store import Store

RECIPE: dict[str, Any] = {
    "env": {"name": "tictactoe", "opponents": {"random": 1.0, "perfect": 1.0}},
    "agent": {"max_turn_tokens": 2},
    "model": {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 64},
    "warm_start": {"steps": 10, "teacher": "expert", "episodes": 96, "minibatches": 12, "learning_rate": 5e-3},
    "rollout": {"episodes": 32, "group_size": 4},
    "algorithm": {"kl": 0.01},
    "learner": {"minibatches": 2},
    "evaluate": {"every": 100, "opponents": ["random"], "episodes": 20, "final_episodes": 20},
    "run": {"steps": 20, "processes": 1, "checkpoint_every": 100, "keep_trajectories_every": 100},
}
KINDS = ("colocated", "disaggregated")
TAKEN = ("dispatch/", "weights/", "memory/peak_bytes")
LAYOUTS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (2, 1, 2))
"""(dp, tp, cp)."""


def run(root: Path, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Train under every placement; existing runs are continued. For the result see `earl bench placements --help`."""
    config = build(override(RECIPE, assignments))
    expected = numbers(trained(root, "embedded", config))
    rows = []
    for kind in KINDS:
        for dp, tp, cp in LAYOUTS:
            layout = {"dp": dp, "tp": tp, "cp": cp}
            placement = config.placement.model_copy(update={"kind": kind, **layout, "samplers": 2})
            placed = config.model_copy(update={"placement": placement})
            found = numbers(trained(root, f"{kind}-{dp}-{tp}-{cp}", placed))
            rows.append({"placement": kind, **layout, **differences(expected, found)})
    return {"steps": config.total_steps, "rows": rows}


def numbers(folder: RunFolder) -> dict[tuple[str, int], float]:
    with Store(folder.database, read_only=True) as store:
        metrics = {name: points for name, points in store.metrics().items() if not name.startswith(TAKEN)}
    return {(name, step): value for name, points in metrics.items() for step, value in points}


def differences(one: dict[tuple[str, int], float], other: dict[tuple[str, int], float]) -> dict[str, Any]:
    """The largest differences of loss, reward and any metric. Raises EarlError if different metrics were recorded."""
    if one.keys() != other.keys():
        raise EarlError(f"other numbers were recorded: {sorted(one.keys() ^ other.keys())[:3]}")
    apart = {key: abs(value - other[key]) for key, value in one.items()}
    worst = max(apart, key=lambda key: apart[key])
    named = {word: max(d for (name, _), d in apart.items() if name.endswith(word)) for word in ("loss", "reward")}
    return {**named, "any": apart[worst], "which": worst[0]}
