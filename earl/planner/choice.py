"""The layout that a plan takes for each stage, context and load, and where it changes."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from typing import Any

from earl.parallel.choice import Stage
from earl.planner.cell import Cell


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest layout that fits.

    Example:
        Choice("rollout", 16_384, 32, tp=8, dp=16, …, ahead_percent=4.8, certain=False)
    """

    stage: Stage
    context: int
    responses: int | None
    tp: int | None
    """None: no layout fits."""
    dp: int | None
    recompute: bool
    offload: bool
    tokens_per_gpu_s: float | None
    ahead_percent: float | None
    """Of the fastest layout with another split; None: no other fits."""
    certain: bool
    """Whether its 80 % interval lies above that of the other one; False: measure both before relying on it."""
    verdict: str
    """Of the cell that was chosen; where none fits, of the one that comes nearest."""

    @property
    def as_object(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Switch:
    """Contexts from one to another with the same choice."""

    stage: Stage
    responses: int | None
    tp: int | None
    first: int
    last: int


def choices(cells: Iterable[Cell]) -> list[Choice]:
    """One choice for each stage, number of responses and context, in the order of the cells."""
    groups: dict[tuple[Stage, int, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.stage, cell.responses or 0, cell.context), []).append(cell)
    return [_choice(group) for group in groups.values()]


def switches(found: Iterable[Choice]) -> list[Switch]:
    """Runs of contexts with the same split, by stage and responses.

    Example:
        TP 4 from 1,024 to 8,192, then TP 8 from 16,384 to 32,768
    """
    ordered = sorted(found, key=lambda choice: (choice.stage, choice.responses or 0, choice.context))
    runs = [list(run) for _, run in groupby(ordered, key=lambda choice: (choice.stage, choice.responses, choice.tp))]
    return [Switch(run[0].stage, run[0].responses, run[0].tp, run[0].context, run[-1].context) for run in runs]


def changes(runs: Sequence[Switch]) -> list[tuple[Switch, Switch]]:
    """Neighbouring runs of the same stage and load: where the layout changes as contexts grow."""
    return [
        (before, after)
        for before, after in pairwise(runs)
        if (before.stage, before.responses) == (after.stage, after.responses)
    ]


def _choice(group: Sequence[Cell]) -> Choice:
    """Of equally fast ones the smallest split."""
    fitting = sorted((cell for cell in group if cell.throughput), key=lambda cell: (-_value(cell), cell.tp))
    if not fitting:
        nearest = min(group, key=lambda cell: cell.memory_bytes / max(1, cell.room_bytes))
        return Choice(
            nearest.stage,
            nearest.context,
            nearest.responses,
            None,
            None,
            False,
            False,
            None,
            None,
            False,
            nearest.verdict,
        )
    best, *others = fitting
    rival = next((cell for cell in others if cell.tp != best.tp), None)
    return Choice(
        stage=best.stage,
        context=best.context,
        responses=best.responses,
        tp=best.tp,
        dp=best.dp,
        recompute=best.recompute,
        offload=best.offload,
        tokens_per_gpu_s=_value(best),
        ahead_percent=(_value(best) / _value(rival) - 1) * 100 if rival else None,
        certain=rival is None or _low(best) > _high(rival),
        verdict=best.verdict,
    )


def _value(cell: Cell) -> float:
    return cell.throughput.value if cell.throughput else 0.0


def _low(cell: Cell) -> float:
    return cell.throughput.low if cell.throughput else 0.0


def _high(cell: Cell) -> float:
    return cell.throughput.high if cell.throughput else 0.0
