"""A plan as one HTML page, in the style of a run's report, and its plots as pure functions."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from earl.parallel.hardware import GIB
from earl.parallel.layout import STAGES, Stage
from earl.planner.plan import Plan
from earl.planner.sheet import comparison_grid, sheet
from earl.reports.figures import CYCLE, GREY, PLOTS, Figure, axes, error_bars, finite, line
from earl.reports.page import fill
from earl.runs.storage import write_text

WORDS = PLOTS["words"]
MAP_COLORS = [[0.0, "#d95f28"], [0.5, "#f4f2ec"], [1.0, "#2f7fc4"]]
"""Orange: the smaller TP is faster; blue: the larger."""


def map_figure(plan: Plan, before: int, after: int, prefix: str) -> Figure:
    """The speed-up map of the EARL paper: the gain of the larger TP, by context and load."""
    found = {(e.context, e.responses): e.percent for e in plan.map if (e.tp_from, e.tp_to) == (before, after)}
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
    layout = axes("context", "responses", type="category")
    layout["yaxis"]["type"] = "category"
    layout |= {"hovermode": "closest", "showlegend": False, "margin": {**layout["margin"], "t": 22}}
    title, told = (words.format(before=before, after=after) for words in WORDS["map"].values())
    return Figure(f"{prefix}map-{before}-{after}", title, told, {"data": [trace], "layout": layout})


def speed_figure(plan: Plan, prefix: str) -> Figure:
    """Rollout tokens per GPU and second by context, a line for each TP; the reader selects the load."""
    traces = []
    for number, load in enumerate(plan.asked.responses):
        for tp in plan.fitting:
            own = [c for c in plan.cells if (c.stage, c.responses, c.tp) == ("rollout", load, tp)]
            speeds = {cell.context: cell.throughput for cell in own if cell.throughput is not None}
            values = {context: speed.value for context, speed in speeds.items()}
            bounds = [(speed.low, speed.high) for speed in speeds.values()]
            drawn = _line(plan, tp, values)
            drawn["error_y"] = error_bars(values.values(), bounds, thickness=1)
            traces.append({**drawn, "meta": {"choice": number}, "visible": number == 0})
    choices = tuple(f"{load} responses" for load in plan.asked.responses)
    spec = {"data": traces, "layout": _over_contexts(plan, "tokens per GPU and second")}
    title, told = WORDS["rollout"].values()
    return Figure(f"{prefix}rollout", title, told, spec, choices)


def memory_figure(plan: Plan, stage: Stage, prefix: str) -> Figure:
    """Memory per GPU by context, a line for each TP, and the memory available."""
    cells = [cell for cell in plan.cells if cell.stage == stage]
    load = max((cell.responses or 0 for cell in cells), default=0)
    traces = []
    for tp in dict.fromkeys(cell.tp for cell in cells):
        own = [cell for cell in cells if cell.tp == tp and (cell.responses or 0) == load]
        traces.append(_line(plan, tp, {cell.context: cell.memory_bytes / GIB for cell in own}))
    if cells:
        room = [(context, cells[0].room_bytes / GIB) for context in plan.asked.contexts]
        traces.append(line("room", room, GREY, {"dash": "dot"}, hovertemplate="%{y:.4g}"))
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
    spec = {"data": traces, "layout": {**axes("context", "seconds", type="category"), "barmode": "stack"}}
    title, told = WORDS["step"].values()
    return Figure(f"{prefix}step", title, told, spec if steps else None, missing="no layout fits")


def _line(plan: Plan, tp: int, values: dict[int, float]) -> dict[str, Any]:
    color = CYCLE[sorted({cell.tp for cell in plan.cells}).index(tp) % len(CYCLE)]
    return line(f"TP {tp}", list(values.items()), color, hovertemplate="%{y:.4g}")


def _over_contexts(plan: Plan, unit: str) -> dict[str, Any]:
    ticks = {"tickvals": list(plan.asked.contexts), "ticktext": [f"{context:,}" for context in plan.asked.contexts]}
    layout = axes("context", unit, type="log", **ticks, unifiedhovertitle={"text": "%{x:,} tokens"})
    layout["yaxis"]["rangemode"] = "tozero"
    return layout


def write(path: Path, plans: Sequence[Plan], price: float | None) -> None:
    write_text(path, render(plans, price))


def render(plans: Sequence[Plan], price: float | None) -> str:
    sections = [_section(plan, price, number) for number, plan in enumerate(plans)]
    title = f"Plan {plans[0].asked.model} on {', '.join(section['title'] for section in sections)}"
    drawn = [figure for section in sections for figure in section["figures"]]
    if len(plans) > 1:
        grids = [comparison_grid(plans, price)]
        sections.append({"key": "clusters", "title": "Side by side", "told": None, "grids": grids, "figures": []})
    told = WORDS["plan"]["explanation"]
    return fill("plan.html", drawn, title=title, told=told, sections=sections, runs=[], episodes="")


def _section(plan: Plan, price: float | None, number: int) -> dict[str, Any]:
    told, prefix = sheet(plan, price), f"cluster-{number}-"
    maps = [map_figure(plan, before, after, prefix) for before, after in pairwise(plan.fitting)]
    memory = [memory_figure(plan, stage, prefix) for stage in STAGES]
    return {
        "key": f"cluster-{number}",
        "title": plan.asked.costs.cluster.where.removeprefix("--gpus "),
        "told": told,
        "grids": [*told.step, *told.grids, *told.traced],
        "figures": [*maps, speed_figure(plan, prefix), step_figure(plan, prefix), *memory],
    }
