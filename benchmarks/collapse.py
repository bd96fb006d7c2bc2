"""Figure 1 of the EARL paper (arXiv 2510.05943) at small scale: useful thinking grows into the context limit.

There a 4B model learns Tic-Tac-Toe, its turns grow under reward, at step 13 episodes reach the limit of 8,192 tokens,
and after step 15 the return collapses. Here a small model works out chains of 4 … 16 operations in writing, without the
calculator. Its teacher stops early at random, so that at first it thinks too little, and longer thinking raises the
reward. A limit of 60 tokens is enough for chains of up to 10 operations; 96 for all.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from earl.benchmarks.repeats import intervals
from earl.benchmarks.training import by_arm
from earl.runs.folder import RunFolder
from earl.runs.store import read_numbers

SMOOTHED = 5
"""Steps that are averaged before the best, the first or the last reward is taken."""
CUT = 0.1
"""A step counts as cut from this share of its episodes that met the limit."""


def run(root: Path, seeds: int = 3, steps: int = 100, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Train every arm, seed by seed; existing runs are continued. For the result see `earl bench collapse --help`."""
    runs = by_arm(root, "collapse", seeds, steps, assignments)
    return {
        "seeds": seeds,
        "steps": steps,
        "runs": str(root),
        **{arm: intervals([measured(folder) for folder in folders]) for arm, folders in runs.items()},
    }


def measured(folder: RunFolder) -> dict[str, float]:
    found = read_numbers(folder.database).metrics
    metrics = {name: np.array([value for _, value in points]) for name, points in found.items()}
    reward = smoothed(metrics["reward"])
    # An unfinished episode has reward -1 and is not solved; a solved chain has reward 1.
    solved = smoothed(metrics["reward"] + 1 - metrics["stop/finished"])
    reply = smoothed(metrics["tokens/sampled"] / metrics["episodes"])
    cut = metrics["truncation/prompt"] + metrics["truncation/reply"]
    return {
        "reward_first": reward[0],
        "reward_best": max(reward),
        "best_step": float(reward.index(max(reward)) + 1),
        "reward_last": reward[-1],
        "fallen": max(reward) - reward[-1],
        "solved_first": solved[0],
        "solved_last": solved[-1],
        "reply_first": reply[0],
        "reply_last": reply[-1],
        "cut_last": smoothed(cut)[-1],
        "limit_last": float(metrics["context/limit"][-1]),
        "cut_steps": float((cut >= CUT).sum()),
    }


def smoothed(values: NDArray[np.float64]) -> list[float]:
    """Means over SMOOTHED consecutive values, or over all if there are fewer."""
    width = min(SMOOTHED, len(values))
    return [float(mean) for mean in sliding_window_view(values, width).mean(axis=1)]
