"""A plan in words, in the order in which it is read: the same in a terminal and on a page."""

from dataclasses import dataclass
from itertools import pairwise

from earl.planner.grids import map_grid, rollout_grid, training_grid
from earl.planner.plan import Plan
from earl.planner.spoken import Grid
from earl.planner.step_grids import dispatch_grid, step_grid
from earl.planner.words import head, switch_lines, uncertain, without_room


@dataclass(frozen=True, slots=True)
class Sheet:
    """All that is said of a cluster."""

    head: tuple[str, ...]
    """What is assumed, and what the marks mean."""
    grids: tuple[Grid, ...]
    """Of cells, and of what splits gain."""
    choices: tuple[str, ...]
    """Where the layout changes, by stage and load."""
    step: tuple[Grid, ...]
    """The recipe's step, and its dispatch."""


def sheet(plan: Plan, price: float | None) -> Sheet:
    """Say a plan.

    Args:
        price: of a GPU-hour; None: no cost is said.
    """
    maps = [map_grid(plan, before, after) for before, after in pairwise(plan.fitting)]
    moved = any(each.dispatch for each in plan.steps)
    dispatched = [dispatch_grid(plan.steps, plan.asked.network_gbps)] if moved else []
    return Sheet(
        head=tuple(head(plan)),
        grids=(rollout_grid(plan), *maps, training_grid(plan)),
        choices=(*switch_lines(plan), *without_room(plan), uncertain(plan)),
        step=(step_grid(plan.steps, price), *dispatched),
    )
