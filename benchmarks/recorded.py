"""Histories out of runs that were recorded, with limits at levels that they came to."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from earl.benchmarks.growth import History, first_at_least
from earl.errors import EarlError
from earl.runs.folder import listing
from earl.runs.store import Store

NAMES = tuple(
    f"context/{what}/{quantile}" for what in ("window", "episode") for quantile in ("p50", "p95", "p99", "max")
)
LEVELS = (0.3, 0.6, 0.9, 1.1)
"""Limits, as shares of the way from the highest of the first five values to the highest of all; the last is not met."""
ORIGINS = (0.25, 0.5, 0.75)
SHORTEST, SMALLEST = 20, 0.05
"""Recordings that have fewer points, or grow by a smaller share, say nothing."""


def recorded(root: Path) -> Iterator[tuple[str, History]]:
    """Every history of every run in a folder, with the run's name.

    Raises EarlError when there is no such folder or a run in it cannot be read.
    """
    if not root.is_dir():
        raise EarlError(f"{str(root)!r} is no folder: --runs takes the folder that runs lie in, such as runs")
    for folder in listing(root):
        if not folder.database.is_file():
            continue
        with Store(folder.database, read_only=True) as store:
            metrics = store.metrics(NAMES)
        for name, points in metrics.items():
            for history in _histories(name, np.array([value for _, value in points])):
                yield folder.name, history


def _histories(name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Iterator[History]:
    low, high = values[:5].max(), values.max()
    if len(values) < SHORTEST or high < low * (1 + SMALLEST):
        return
    for level in LEVELS:
        limit = float(low + level * (high - low))
        before = min(first_at_least(values, limit), len(values) - 1)
        origins = sorted({int(share * before) for share in ORIGINS})
        yield History(name, "recorded", values, limit, tuple(origin for origin in origins if origin >= 3))
