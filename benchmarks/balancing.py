"""What balancing rows is worth, and what planning takes: pure, for `earl bench dispatch`."""

import time
from typing import Any

import numpy as np

from earl.benchmarks.transfers import EVERYTHING
from earl.dispatch.balance import Work, balance, even_counts, excess
from earl.dispatch.plan import Leg, plan
from earl.dispatch.rows import columns, spread
from earl.parallel.layout import Layout

BALANCED_RANKS, BALANCED_ROWS = 32, 10_000
PLANNED_RANKS, PLANNED_ROWS = 1024, 16_384


def balanced() -> dict[str, Any]:
    """By how much the slowest of 32 consumers has more work than the mean: rows dealt by work, and equally many."""
    lengths = np.random.default_rng(0).lognormal(7, 1, BALANCED_ROWS).astype(np.int64) + 1
    result: dict[str, Any] = {"ranks": BALANCED_RANKS, "rows": BALANCED_ROWS, "longest": int(lengths.max())}
    for name, kind in {"tokens": Work(), "compute": Work(1.0, 1 / 8192)}.items():
        work_of_rows = kind.of(lengths)
        for way, dealt in {
            "balanced": balance(work_of_rows, BALANCED_RANKS),
            "even_counts": even_counts(BALANCED_ROWS, BALANCED_RANKS),
        }.items():
            result[f"{name}_{way}_excess"] = excess(work_of_rows, dealt, BALANCED_RANKS)
    return result


def planned() -> dict[str, Any]:
    """Seconds of planning for 1,024 ranks on 128 hosts, dp 64 × tp 8 to dp 128 × tp 4."""
    random, half = np.random.default_rng(0), PLANNED_RANKS // 2
    lengths = random.integers(100, 32_768, PLANNED_ROWS)
    source = spread(Layout(64, 8), range(half), random.integers(0, 64, PLANNED_ROWS))
    target = spread(Layout(128, 4), range(half, PLANNED_RANKS), random.integers(0, 128, PLANNED_ROWS))
    begin = time.perf_counter()
    made = plan(lengths, [Leg(columns(EVERYTHING), source)], target, np.arange(PLANNED_RANKS) // 8)
    seconds = time.perf_counter() - begin
    return {"ranks": PLANNED_RANKS, "rows": PLANNED_ROWS, "pieces": len(made.pieces), "seconds": seconds}
