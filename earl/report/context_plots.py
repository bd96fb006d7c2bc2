"""Plots of context growth: length quantiles with limit and forecast, authors, truncation, memory. Pure functions."""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from earl.report.data import RunData
from earl.report.figures import (
    AGAIN,
    AMBER,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    Figure,
    Points,
    bucket_note,
    color_of,
    declared,
    faint,
    finite,
    label_of,
    layout,
    line,
    note,
    plain,
    series_figure,
    thin,
)
from earl.report.forecast import outlook_traces
from earl.report.html import count
from earl.trajectory import KEPT_TURNS, Author

# The heat map of contexts: tokens of each turn at each step, by author. Pure functions.

MAX_COLUMNS = 150
"""Maximum columns of the map; in a longer run a column holds several steps."""
Cell = tuple[int, int]
"""Column and turn, both from 0."""


def heat_figure(data: RunData, number: int = 0, named: bool = False) -> Figure:
    title = f"Context by turn{plain(f' ({data.name})') if named else ''}"
    told = (
        "Mean tokens that a turn added, over the episodes that had it, by step. A row that brightens to the right is a "
        "turn that grows."
    )
    steps = sorted({row.step for row in data.contexts})
    if not steps:
        return Figure(f"heat-{number}", title, told, None)
    width = math.ceil(len(steps) / MAX_COLUMNS)
    column_of = {step: place // width for place, step in enumerate(steps)}
    ends = steps[width - 1 :: width] + ([steps[-1]] if len(steps) % width else [])
    maps = _maps(data, column_of)
    turns = 1 + max(row.turn for row in data.contexts)
    choices = [name for name in maps if any(maps[name].values())]
    traces = [_trace(place, maps[name], ends, turns) for place, name in enumerate(choices)]
    if width > 1:
        told += f" Each column stands for {width} neighbouring steps."
    if turns == KEPT_TURNS:
        told += f" Turn {KEPT_TURNS} holds all later ones too."
    return Figure(f"heat-{number}", title, told, {"data": traces, "layout": _layout(data, turns)}, tuple(choices))


def _maps(data: RunData, column_of: dict[int, int]) -> dict[str, dict[Cell, float]]:
    """Mean tokens by map: all authors, and each author; also the number of episodes that had the turn."""
    episodes: dict[tuple[int, int], int] = {}
    tokens: defaultdict[str, defaultdict[Cell, int]] = defaultdict(lambda: defaultdict(int))
    for row in data.contexts:
        cell = column_of[row.step], row.turn
        episodes[row.step, row.turn] = max(row.episodes, episodes.get((row.step, row.turn), 0))
        tokens["all authors"][cell] += row.tokens
        tokens[_author(row.author)][cell] += row.tokens
    had: defaultdict[Cell, int] = defaultdict(int)
    steps_in: defaultdict[int, int] = defaultdict(int)
    for (step, turn), number in episodes.items():
        had[column_of[step], turn] += number
    for column in column_of.values():
        steps_in[column] += 1
    order = ["all authors", *(author.name.lower() for author in Author)]
    means = {name: {cell: total / max(1, had[cell]) for cell, total in tokens[name].items()} for name in order}
    return {**means, "episodes that had the turn": {cell: number / steps_in[cell[0]] for cell, number in had.items()}}


def _author(value: int) -> str:
    return Author(value).name.lower() if value in set(Author) else f"author {value}"


def _trace(choice: int, cells: dict[Cell, float], ends: list[int], turns: int) -> dict[str, Any]:
    grid = [[cells.get((column, turn), math.nan) for column in range(len(ends))] for turn in range(turns)]
    return {
        "type": "heatmap",
        "x": ends,
        "y": [turn + 1 for turn in range(turns)],
        "z": [finite(float(f"{value:.4g}") for value in row) for row in grid],
        "zmin": 0,
        "zmax": max(cells.values()),
        "colorscale": "Cividis",
        "colorbar": {"thickness": 12, "outlinewidth": 0},
        "hovertemplate": "step %{x}, turn %{y}: %{z:,.1f}<extra></extra>",
        "meta": {"choice": choice},
        "visible": choice == 0,
    }


def _layout(data: RunData, turns: int) -> dict[str, Any]:
    drawn = layout([data], "turn", hovermode="closest", showlegend=False)
    drawn["margin"] = {**drawn["margin"], "t": 22}
    ticks = {"nticks": min(turns + 1, 12)} if turns > 12 else {"dtick": 1}
    drawn["yaxis"] = {**drawn["yaxis"], **ticks, "range": [0.5, turns + 0.5], "showgrid": False}
    return drawn


BandRuns = Sequence[RunData]

LEVELS = {
    "window": (
        "Context that a reply sees",
        "Tokens of the longest context that one reply of an episode saw, the reply included. The limit applies to it.",
    ),
    "episode": ("Context of an episode", "Tokens that an episode gathered over all its turns."),
    "turn": (
        "Context of a turn",
        "Tokens of one round: what the environment said and what the model replied.",
    ),
}
QUANTILES = {"p50": "median", "p95": "p95", "p99": "p99", "max": "longest"}


def limit_of(data: RunData) -> Points:
    """The context limit by step; the recipe's limit throughout if it was not recorded."""
    recorded = data.numbers.metrics.get("context/limit")
    if recorded:
        return recorded
    limit = data.config.context.limit if data.config else None
    return [(0, float(limit)), (data.numbers.last_step or 1, float(limit))] if isinstance(limit, int) else []


def limited_levels(data: RunData) -> set[str]:
    """The levels that the limit applies to. With full history a reply's context is the whole episode."""
    full = data.config is None or data.config.agent.history == "full"
    known = data.numbers.metrics.get("context/window/p50")
    return {"window" if known else "turn", *(["episode"] if full else [])} - ({"turn"} if full else set())


def band_figure(runs: BandRuns, level: str) -> Figure:
    title, told = LEVELS[level]
    bands = [trace for run in range(len(runs)) for trace in _bands(runs, run, level)]
    if not bands:
        return Figure(f"context-{level}", title, told, None)
    drawn = layout(runs, "tokens")
    drawn["yaxis"]["rangemode"] = "tozero"
    longest = max(y or 0 for band in bands for y in band["y"])
    for run, data in enumerate(runs):
        if level in limited_levels(data):
            bands += _limit(runs, run, drawn, longest)
            if level == "window" and len(runs) == 1:
                bands += outlook_traces(data, limit_of(data), drawn)
    told += " Median: half are shorter. p95: 95 % are shorter."
    if any(level in limited_levels(data) and limit_of(data) for data in runs):
        told += " The dashed line is the limit: an episode that reaches it is cut off."
    if any("outlook" in band.get("meta", {}) for band in bands):
        told += " Shaded beyond the last step: where the last forecast saw each quantile reach the limit (80 %)."
    told += bucket_note(points for data in runs for points in data.numbers.metrics.values())
    return Figure(f"context-{level}", title, told, {"data": bands, "layout": drawn})


def _bands(runs: BandRuns, run: int, level: str) -> list[dict[str, Any]]:
    """Quantiles with the space between them filled; for several runs only median and p95."""
    several = len(runs) > 1
    metrics, color = runs[run].numbers.metrics, color_of(run, 0, len(runs))
    traces: list[dict[str, Any]] = []
    for name, label in QUANTILES.items():
        points = metrics.get(f"context/{level}/{name}", [])
        if not points or (several and name in ("p99", "max")):
            continue
        kept = thin(points, max if name == "max" else None)
        opacity = (0.3, 0.18, 0.1)[min(len(traces), 3) - 1]
        fill = {"fill": "tonexty", "fillcolor": faint(color, opacity / (1 + several))} if traces else {}
        trace = line(label_of(runs, run, label), kept, color, hovertemplate="%{y:,.0f}", mode="lines", **fill)
        traces.append(trace | {"line": {"width": 2.5 if name == "p50" else 1, "color": color}})
    return traces


def _limit(runs: BandRuns, run: int, drawn: dict[str, Any], longest: float) -> list[dict[str, Any]]:
    """The limit as a line. If it is far above the data, it is only an annotation, so that the data stay readable."""
    points = limit_of(runs[run])
    if not points:
        return []
    limits = [value for _, value in points]
    color = color_of(run, 0, len(runs)) if len(runs) > 1 else ORANGE
    if min(limits) > 5 * longest:
        told = f"context limit: {count(limits[-1])} tokens (above this plot)"
        place = {"xref": "paper", "x": 1, "xanchor": "right", "yref": "paper", "y": 1, "yanchor": "top"}
        drawn["annotations"] = [*drawn["annotations"], note(told, **place)] if run == 0 else drawn["annotations"]
        return []
    style = {"color": color, "width": 2, "dash": "dash", "shape": "hv"}
    trace = line(label_of(runs, run, "limit"), _steps_of(points), color, hovertemplate="%{y:,.0f}", mode="lines")
    return [trace | {"line": style}, *(_raises(runs[run], points) if len(runs) == 1 else [])]


def _steps_of(points: Points) -> list[tuple[int, float]]:
    inner = [point for before, point in pairwise(points) if point[1] != before[1]]
    return list(dict.fromkeys([points[0], *inner, points[-1]]))


def _raises(data: RunData, limits: Points) -> list[dict[str, Any]]:
    signs = {
        "limit": ("limit raised", "triangle-up"),
        "forecast": ("warning", "diamond"),
        "layout": ("layout changed", "square"),
        "out_of_memory": ("out of memory", "x"),
    }
    traces = []
    for kind, (label, symbol) in signs.items():
        events = [event for event in data.numbers.events if event.kind == kind]
        heights = [next((y for step, y in reversed(limits) if step <= event.step), limits[0][1]) for event in events]
        if not events:
            continue
        points = list(zip((event.step for event in events), heights, strict=True))
        trace = line(label, points, ORANGE, mode="markers", meta=AGAIN, text=[plain(e.message) for e in events])
        traces.append(trace | {"hovertemplate": "%{text}", "marker": {"size": 9, "symbol": symbol, "color": ORANGE}})
    return traces


Runs = Sequence[RunData]

AUTHORS = {"template": GREY, "environment": AMBER, "tool": GREEN, "thinking": PURPLE, "action": BLUE}


def context_figures(runs: Runs) -> list[Figure]:
    several = len(runs) > 1
    authors = [_author_figure(runs, run) for run in range(len(runs))]
    return [
        *(band_figure(runs, level) for level in LEVELS if level != "window" or _has(runs, "context/window/p50")),
        *([figure for figure in authors if figure.spec] if several else authors),
        _truncation_figure(runs),
        *declared(runs, "memory"),
    ]


def _has(runs: Runs, metric: str) -> bool:
    return any(run.numbers.metrics.get(metric) for run in runs)


def _author_figure(runs: Runs, run: int) -> Figure:
    data, suffix = runs[run], f" ({runs[run].name})" if len(runs) > 1 else ""
    name, title = f"authors-{run}", f"Who wrote the context{plain(suffix)}"
    told = "Mean tokens of an episode by author, one on top of the other: the chat's template, the environment, \
tools, and the model while it thinks and acts."
    episodes = dict(data.numbers.metrics.get("episodes", []))
    traces = []
    for author, color in AUTHORS.items():
        points = [(s, v / episodes[s]) for s, v in data.numbers.metrics.get(f"tokens/{author}", []) if episodes.get(s)]
        if not any(value for _, value in points):
            continue
        stacked = {"stackgroup": "authors", "fillcolor": faint(color, 0.75), "mode": "lines"}
        trace = line(author, thin(points), color, hovertemplate="%{y:,.1f}", **stacked)
        traces.append(trace | {"line": {"width": 0.5, "color": color}})
    if not traces:
        return Figure(name, title, told, None)
    told += bucket_note(data.numbers.metrics.values())
    return Figure(name, title, told, {"data": traces, "layout": layout([data], "tokens per episode")})


def _truncation_figure(runs: Runs) -> Figure:
    """Truncated episodes by cause; in runs without recorded causes, by stop reason."""
    causes = {
        "truncation/prompt": "no room for the next prompt",
        "truncation/reply": "reply met the context limit",
        "truncation/turn": "reply longer than a turn may be",
    }
    names = sorted({name for run in runs for name in run.numbers.metrics if name.startswith("stop/")})
    stops = {name: name.removeprefix("stop/").replace("_", " ") for name in names if name != "stop/finished"}
    covered = ("stop/context_limit", "stop/truncated_turn")
    if _has(runs, "truncation/reply"):
        stops = causes | {name: label for name, label in stops.items() if name not in covered}
    happened = {name: label for name, label in stops.items() if _happened(runs, name)}
    return series_figure(
        runs, "stops", "Episodes that did not reach their end",
        "Share of a step's episodes that something else than the environment's own end stopped. What a limit cuts off "
        "is a broken game to learn from.",
        "share of episodes", happened or stops, percent=True,
    )  # fmt: skip


def _happened(runs: Runs, name: str) -> bool:
    return any(value for run in runs for _, value in run.numbers.metrics.get(name, []))
