"""The cost of a context limit where better play makes longer games, and whether an automatic limit avoids it.

Tic-Tac-Toe with full history against strong opponents: a draw as first player takes five rounds, and 72 tokens hold
four. Three arms differ only in the limit: 72, 120, and "auto" that begins at 72.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from earl.benchmarks.repeats import intervals
from earl.benchmarks.training import by_arm
from earl.runs.folder import RunFolder
from earl.runs.store import read_numbers
from earl.runs.summary import FINAL


def run(root: Path, seeds: int = 3, steps: int = 100, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Train every arm, seed by seed; existing runs are continued. For the result see `earl bench ceiling --help`."""
    runs = by_arm(root, "ceiling", seeds, steps, assignments)
    seen = {arm: [_measured(folder) for folder in folders] for arm, folders in runs.items()}
    means = {arm: mean(result["not_lost"] for result in results) for arm, results in seen.items()}
    return {
        "seeds": seeds,
        "steps": steps,
        "runs": str(root),
        **{arm: intervals(results) for arm, results in seen.items()},
        "auto_minus_120": means["auto"] - means["120"],
        "auto_minus_72": means["auto"] - means["72"],
    }


def _measured(folder: RunFolder) -> dict[str, float]:
    found = read_numbers(folder.database)
    perfect = [match.result for match in found.matches if match.phase == FINAL and match.result.opponent == "perfect"]
    last = {name: points[-1][1] for name, points in found.metrics.items()}
    return {
        "not_lost": mean(result.win + result.draw for result in perfect),
        "cut": last["truncation/prompt"] + last["truncation/reply"],
        "limit": last["context/limit"],
    }
