"""The whole plan of a cluster."""

from dataclasses import dataclass

from earl.errors import EarlError
from earl.parallel.arrangement import shares
from earl.parallel.hardware import GIB
from earl.planner.cell import Cell
from earl.planner.choice import Choice, Switch, choices, switches
from earl.planner.question import Question
from earl.planner.rollout import rollout_cells
from earl.planner.speedup import Speedup, speedups


@dataclass(frozen=True, slots=True)
class Plan:
    """What a cluster would do."""

    asked: Question
    sampling: int
    """GPUs that sample; where they take turns with the learner, all of them."""
    learning: int
    cells: tuple[Cell, ...]
    choices: tuple[Choice, ...]
    switches: tuple[Switch, ...]
    """Contexts with the same choice, by stage and load."""
    map: tuple[Speedup, ...]


def plan(asked: Question) -> Plan:
    """Plan a cluster.

    Raises:
        EarlError: when no engine fits, or learner and samplers cannot both have GPUs.
    """
    learning, sampling = shares(asked.cluster, asked.config.placement.kind != "disaggregated")
    if not sampling:
        raise EarlError(
            f"placement.kind = 'disaggregated' needs GPUs for the learner and others for samplers, {asked.cluster.where} "
            f"has {asked.cluster.gpus}; name more of them, or set placement.kind to colocated"
        )
    cells = rollout_cells(asked, sampling)
    _check_any_fits(asked, cells)
    found = choices(cells)
    return Plan(
        asked=asked,
        sampling=sampling,
        learning=learning,
        cells=tuple(cells),
        choices=tuple(found),
        switches=tuple(switches(found)),
        map=tuple(speedups(cells)),
    )


def _check_any_fits(asked: Question, cells: list[Cell]) -> None:
    if any(cell.feasible for cell in cells):
        return
    best = min(cells, key=lambda cell: cell.memory_bytes - cell.room_bytes)
    raise EarlError(
        f"{asked.model} fits in no layout of {asked.cluster.where}: TP {best.tp} comes nearest and needs "
        f"{best.memory_bytes / GIB:.1f} GiB of each GPU, of which the engine may take {best.room_bytes / GIB:.1f}; "
    )
