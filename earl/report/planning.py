"""A plan as one HTML page, in the clothes of a run's report."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from earl.parallel.choice import STAGES
from earl.planner.plan import Plan
from earl.planner.sheet import Sheet, sheet
from earl.planner.spoken import Grid
from earl.planner.step_grids import comparison_grid
from earl.report.figures import Figure
from earl.report.frame import fill
from earl.report.plan_figures import map_figure, memory_figure, speed_figure, step_figure
from earl.runs.storage import write_text

TOLD = (
    "What a job would take on a cluster that is not here. All numbers are predicted from the model's shape, published "
    "numbers of GPUs, and a model that was fitted to published measurements; nothing was measured."
)


@dataclass(frozen=True, slots=True)
class Section:
    """What the page says of one cluster, or of several side by side."""

    key: str
    title: str
    told: Sheet | None
    grids: tuple[Grid, ...]
    figures: tuple[Figure, ...]


def write(path: Path, plans: Sequence[Plan], price: float | None) -> None:
    """Write the page, whole or not at all.

    Raises:
        EarlError: when the disk refuses the file.
    """
    write_text(path, render(plans, price))


def render(plans: Sequence[Plan], price: float | None) -> str:
    """The page as HTML."""
    sections = [_section(plan, price, number) for number, plan in enumerate(plans)]
    if len(plans) > 1:
        sections.append(Section("clusters", "Side by side", None, (comparison_grid(plans, price),), ()))
    drawn = [figure for section in sections for figure in section.figures]
    title = f"Plan {plans[0].asked.model} on {', '.join(section.title for section in sections[: len(plans)])}"
    return fill("plan.html", drawn, title=title, told=TOLD, sections=sections, runs=[], episodes="")


def _section(plan: Plan, price: float | None, number: int) -> Section:
    told, prefix = sheet(plan, price), f"cluster-{number}-"
    maps = [map_figure(plan, before, after, prefix) for before, after in pairwise(plan.fitting)]
    memory = [memory_figure(plan, stage, prefix) for stage in STAGES]
    return Section(
        key=f"cluster-{number}",
        title=plan.asked.cluster.where.removeprefix("--gpus "),
        told=told,
        grids=(*told.step, *told.grids),
        figures=(*maps, speed_figure(plan, prefix), step_figure(plan, prefix), *memory),
    )
