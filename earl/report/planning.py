"""A plan as one HTML page, in the style of a run's report, and its plots as pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from earl.parallel.hardware import GIB
from earl.parallel.layout import STAGES, Stage
from earl.planner.plan import Plan
from earl.planner.sheet import Grid, Sheet, comparison_grid, sheet
from earl.planner.stages import PlanCell
from earl.report.figures import CYCLE, GREY, LEGEND, Figure, error_bars, finite, line
from earl.report.page import fill
from earl.runs.storage import write_text

MAP_COLORS = [[0.0, "#d95f28"], [0.5, "#f4f2ec"], [1.0, "#2f7fc4"]]
"""Orange: the smaller TP is faster; blue: the larger."""
STEADY: dict[str, Any] = {
    "height": 340,
    "margin": {"l": 64, "r": 12, "t": 48, "b": 46},
    "legend": LEGEND,
    "hovermode": "x unified",
}


def map_figure(plan: Plan, before: int, after: int, prefix: str) -> Figure:
    """The speed-up map of the EARL paper: the gain of the larger TP, by context and load."""
    found = {
        (entry.context, entry.responses): entry.percent
        for entry in plan.map
        if (entry.tp_from, entry.tp_to) == (before, after)
    }
    grid = [[found[context, load] for context in plan.asked.contexts] for load in plan.asked.responses]
    most = max((abs(value) for row in grid for value in row if value is not None), default=1.0)
    trace = {
        "type": "heatmap",
        "x": [f"{context:,}" for context in plan.asked.contexts],
        "y": [f"{load}" for load in plan.asked.responses],
        "z": grid,
        "text": [["OOM" if value is None else f"{value:+.0f} %" for value in row] for row in grid],
        "texttemplate": "%{text}",
        "textfont": {"color": "#1d2127"},
        "zmid": 0,
        "zmin": -most,
        "zmax": most,
        "colorscale": MAP_COLORS,
        "colorbar": {"thickness": 12, "outlinewidth": 0, "ticksuffix": " %"},
        "hoverongaps": False,
        "hovertemplate": "%{x} tokens, %{y} responses: %{z:+.1f} %<extra></extra>",
    }
    told = (
        f"What TP {after} gains over TP {before} in tokens per GPU and second, by context and by responses that a copy "
        f"of the engine is given at once. Blue: TP {after} is ahead; orange: TP {before}; OOM: one does not fit."
    )
    layout = {**STEADY, "hovermode": "closest", "showlegend": False, "margin": {**STEADY["margin"], "t": 22}}
    axes = {"xaxis": _axis("context", type="category"), "yaxis": _axis("responses", type="category")}
    return Figure(
        f"{prefix}map-{before}-{after}",
        f"Speed-up of TP {before} → {after}",
        told,
        {"data": [trace], "layout": {**layout, **axes}},
    )


def speed_figure(plan: Plan, prefix: str) -> Figure:
    """Rollout tokens per GPU and second by context, a line for each TP; the reader selects the load."""
    loads = plan.asked.responses
    traces = [_speeds(plan, load, tp, number) for number, load in enumerate(loads) for tp in plan.fitting]
    told = (
        "Tokens that are written per GPU and second; bars hold the true value in four of five cases. Where a line "
        "drops, responses no longer fit at once and have to wait."
    )
    return Figure(
        f"{prefix}rollout",
        "Rollout",
        told,
        {"data": traces, "layout": _over_contexts(plan, "tokens per GPU and second")},
        tuple(f"{load} responses" for load in loads),
    )


def memory_figure(plan: Plan, stage: Stage, prefix: str) -> Figure:
    """Memory per GPU by context, a line for each TP, and the memory available."""
    cells = [cell for cell in plan.cells if cell.stage == stage]
    load = max((cell.responses or 0 for cell in cells), default=0)
    traces = []
    for tp in dict.fromkeys(cell.tp for cell in cells):
        own = [cell for cell in cells if cell.tp == tp and (cell.responses or 0) == load]
        traces.append(_line(f"TP {tp}", own, [cell.memory_bytes / GIB for cell in own], _color(plan, tp)))
    if cells:
        room = [(context, cells[0].room_bytes / GIB) for context in plan.asked.contexts]
        traces.append(line("room", room, GREY, hovertemplate="%{y:.4g}", line={"color": GREY, "dash": "dot"}))
    told = f"GiB of one GPU{f' with {load} responses' if load else ''}; what lies above the room does not fit."
    layout = _over_contexts(plan, "GiB per GPU")
    return Figure(f"{prefix}memory-{stage}", f"Memory, {stage}", told, {"data": traces, "layout": layout})


def step_figure(plan: Plan, prefix: str) -> Figure:
    steps = [each for each in plan.steps if each.parts]
    stages = list(dict.fromkeys(part.stage for each in steps for part in each.parts))
    traces = [
        {
            "type": "bar",
            "name": stage,
            "x": [f"{each.context:,}" for each in steps],
            "y": finite(part.seconds.value for each in steps for part in each.parts if part.stage == stage),
            "marker": {"color": CYCLE[place]},
            "hovertemplate": "%{y:.4g} s",
        }
        for place, stage in enumerate(stages)
    ]
    axes = {"xaxis": _axis("context", type="category"), "yaxis": _axis("seconds")}
    return Figure(
        f"{prefix}step",
        "A step",
        "Seconds of the recipe's step by stage, each in the layout that takes it the least time.",
        {"data": traces, "layout": {**STEADY, "barmode": "stack", **axes}} if steps else None,
        missing="no layout fits",
    )


def _color(plan: Plan, tp: int) -> str:
    return CYCLE[sorted({cell.tp for cell in plan.cells}).index(tp) % len(CYCLE)]


def _speeds(plan: Plan, load: int, tp: int, number: int) -> dict[str, Any]:
    """One line of the rollout plot with its intervals, visible when choice `number` is selected."""
    own = [
        cell
        for cell in plan.cells
        if (cell.stage, cell.responses, cell.tp) == ("rollout", load, tp) and cell.throughput is not None
    ]
    speeds = [cell.throughput for cell in own if cell.throughput is not None]
    bars = error_bars((speed.value for speed in speeds), [(speed.low, speed.high) for speed in speeds], thickness=1)
    drawn = _line(f"TP {tp}", own, [speed.value for speed in speeds], _color(plan, tp))
    return {**drawn, "error_y": bars, "meta": {"choice": number}, "visible": number == 0}


def _line(name: str, cells: Sequence[PlanCell], values: Sequence[float], color: str) -> dict[str, Any]:
    points = [(cell.context, value) for cell, value in zip(cells, values, strict=True)]
    return line(name, points, color, hovertemplate="%{y:.4g}")


def _over_contexts(plan: Plan, unit: str) -> dict[str, Any]:
    ticks = {"tickvals": list(plan.asked.contexts), "ticktext": [f"{context:,}" for context in plan.asked.contexts]}
    axis = _axis("context", type="log", **ticks, unifiedhovertitle={"text": "%{x:,} tokens"})
    return {**STEADY, "xaxis": axis, "yaxis": _axis(unit, rangemode="tozero")}


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, "zeroline": False, "automargin": True, **more}


TOLD = (
    "What a job would take on a cluster that is not here. All numbers are predicted from the model's shape, published "
    "numbers of GPUs, and a model that was fitted to published measurements; nothing was measured."
)


@dataclass(frozen=True, slots=True)
class PlanSection:
    key: str
    title: str
    told: Sheet | None
    grids: tuple[Grid, ...]
    figures: tuple[Figure, ...]


def write(path: Path, plans: Sequence[Plan], price: float | None) -> None:
    write_text(path, render(plans, price))


def render(plans: Sequence[Plan], price: float | None) -> str:
    sections = [_section(plan, price, number) for number, plan in enumerate(plans)]
    if len(plans) > 1:
        sections.append(PlanSection("clusters", "Side by side", None, (comparison_grid(plans, price),), ()))
    drawn = [figure for section in sections for figure in section.figures]
    title = f"Plan {plans[0].asked.model} on {', '.join(section.title for section in sections[: len(plans)])}"
    return fill("plan.html", drawn, title=title, told=TOLD, sections=sections, runs=[], episodes="")


def _section(plan: Plan, price: float | None, number: int) -> PlanSection:
    told, prefix = sheet(plan, price), f"cluster-{number}-"
    maps = [map_figure(plan, before, after, prefix) for before, after in pairwise(plan.fitting)]
    memory = [memory_figure(plan, stage, prefix) for stage in STAGES]
    return PlanSection(
        key=f"cluster-{number}",
        title=plan.asked.cluster.where.removeprefix("--gpus "),
        told=told,
        grids=(*told.step, *told.grids),
        figures=(*maps, speed_figure(plan, prefix), step_figure(plan, prefix), *memory),
    )
