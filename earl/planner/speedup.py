"""The speed-up map of the EARL paper (arXiv 2510.05943, equation 1): one split against another, by context and load."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from earl.planner.cell import Cell


@dataclass(frozen=True, slots=True)
class Speedup:
    """What rollout gains by another split: Speedup%(a, b) = (TGS(b) - TGS(a)) / TGS(a) x 100, TGS = tokens per GPU and
    second. Negative: the first one is ahead.

    Example:
        >>> speedup(100.0, 131.0), speedup(131.0, 100.0)
        (31.0, -23.7)
    """

    tp_from: int
    tp_to: int
    context: int
    responses: int
    percent: float | None
    """None where one of the two does not fit."""
    why: str
    """Which one does not; empty where both do."""

    @property
    def as_object(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def speedup(before: float, after: float) -> float:
    """In percent, to a tenth."""
    return round((after - before) / before * 100, 1)


def speedups(cells: Iterable[Cell]) -> list[Speedup]:
    """Every split of the rollout against the next larger one."""
    found = {(cell.tp, cell.responses, cell.context): cell for cell in cells if cell.responses is not None}
    tps = sorted({tp for tp, _, _ in found})
    places = sorted({(responses, context) for _, responses, context in found})
    return [
        _speedup(found[before, responses, context], found[after, responses, context])
        for before, after in pairwise(tps)
        for responses, context in places
    ]


def _speedup(before: Cell, after: Cell) -> Speedup:
    assert before.responses is not None, "rollout has a load"
    percent, without = None, [cell for cell in (before, after) if cell.throughput is None]
    if before.throughput and after.throughput:
        percent = speedup(before.throughput.value, after.throughput.value)
    why = " and ".join(f"TP {cell.tp} does not fit" for cell in without)
    return Speedup(before.tp, after.tp, before.context, before.responses, percent, why)
