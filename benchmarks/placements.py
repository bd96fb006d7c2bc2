"""One recipe and one seed under every placement and layout: the largest differences between their metrics."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from earl.benchmarks.training import trained
from earl.errors import EarlError
from earl.recipe import build, load_toml, override
from earl.runs.folder import RunFolder
from earl.runs.store import read_numbers

RECIPE = load_toml(Path(__file__).with_suffix(".toml"))
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


def numbers(folder: RunFolder, without: tuple[str, ...] = TAKEN) -> dict[tuple[str, int], float]:
    """Metrics by name and step, without those of names that begin so."""
    metrics = read_numbers(folder.database).metrics.items()
    return {(name, step): value for name, points in metrics if not name.startswith(without) for step, value in points}


def differences(one: dict[tuple[str, int], float], other: dict[tuple[str, int], float]) -> dict[str, Any]:
    """The largest differences of loss, reward and any metric. Raises EarlError if different metrics were recorded."""
    if one.keys() != other.keys():
        raise EarlError(f"other numbers were recorded: {sorted(one.keys() ^ other.keys())[:3]}")
    apart = {key: abs(value - other[key]) for key, value in one.items()}
    worst = max(apart, key=lambda key: apart[key])
    named = {word: max(d for (name, _), d in apart.items() if name.endswith(word)) for word in ("loss", "reward")}
    return {**named, "any": apart[worst], "which": worst[0]}
