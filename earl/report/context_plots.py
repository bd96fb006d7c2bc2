"""Plots of context growth: lengths with limit and forecast, authors, truncation, memory. Pure functions."""

import math
from collections import Counter, defaultdict
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
from earl.report.html import count
from earl.trajectory import KEPT_TURNS, Author

# The heat map of contexts: tokens of each turn at each step, by author. Pure functions.

MAX_COLUMNS = 150
"""Maximum columns of the map; in a longer run a column holds several steps."""
Runs = Sequence[RunData]
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
    episodes: Counter[tuple[int, int]] = Counter()
    tokens: defaultdict[str, Counter[Cell]] = defaultdict(Counter)
    for row in data.contexts:
        cell = column_of[row.step], row.turn
        episodes[row.step, row.turn] = max(row.episodes, episodes[row.step, row.turn])
        tokens["all authors"][cell] += row.tokens
        tokens[_author(row.author)][cell] += row.tokens
    had: Counter[Cell] = Counter()
    for (step, turn), number in episodes.items():
        had[column_of[step], turn] += number
    steps_in = Counter(column_of.values())
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


LEVELS = {
    "window": (
        "Context that a reply sees",
        "Tokens of the longest context that one reply of an episode saw, the reply included. The limit applies to it.",
    ),
    "episode": ("Context of an episode", "Tokens that an episode gathered over all its turns."),
    "turn": ("Context of a turn", "Tokens of one round: what the environment said and what the model replied."),
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


def band_figure(runs: Runs, level: str) -> Figure:
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


def _bands(runs: Runs, run: int, level: str) -> list[dict[str, Any]]:
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


def _limit(runs: Runs, run: int, drawn: dict[str, Any], longest: float) -> list[dict[str, Any]]:
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


AUTHORS = {"template": GREY, "environment": AMBER, "tool": GREEN, "thinking": PURPLE, "action": BLUE}


def context_figures(runs: Runs) -> list[Figure]:
    several = len(runs) > 1
    authors = [_author_figure(runs, run) for run in range(len(runs))]
    return [
        *(
            band_figure(runs, level)
            for level in LEVELS
            if level != "window" or any("context/window/p50" in run.numbers.metrics for run in runs)
        ),
        *([figure for figure in authors if figure.spec] if several else authors),
        _truncation_figure(runs),
        *declared(runs, "memory"),
    ]


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
    if any("truncation/reply" in run.numbers.metrics for run in runs):
        stops = causes | {name: label for name, label in stops.items() if name not in covered}
    happened = {
        name: label
        for name, label in stops.items()
        if any(share for run in runs for _, share in run.numbers.metrics.get(name, []))
    }
    return series_figure(
        runs, "stops", "Episodes that did not reach their end",
        "Share of a step's episodes that something else than the environment's own end stopped. What a limit cuts off "
        "is a broken game to learn from.",
        "share of episodes", happened or stops, percent=True,
    )  # fmt: skip


# The forecast: the step at which each quantile of the contexts reaches the limit.

ENDS = ("early", "late", "median")
FORECAST = {"p50": BLUE, "p95": GREEN, "p99": ORANGE}
FORECAST_TOLD = (
    "At each step: the step at which that quantile of the contexts was forecast to reach the limit. The line is the "
    "median forecast, the band holds 80 %; the dotted diagonal is the present. No line: not within the horizon; a band "
    "that ends at the top: perhaps never."
)


def forecast_figure(runs: Runs) -> Figure:
    title = "Forecast: when the limit will be reached"
    several = len(runs) > 1
    quantiles = {"p95": GREEN} if several else FORECAST
    horizon = 1.05 * _latest(runs)
    traces = [
        trace
        for run, data in enumerate(runs)
        for name, own in quantiles.items()
        for trace in _forecast_bands(
            data, name, color_of(run, 0, len(runs)) if several else own, label_of(runs, run, name), horizon
        )
    ]
    if not traces:
        known = any(name.startswith("forecast/") for data in runs for name in data.numbers.metrics)
        why = "not recorded yet" if not known else "at no step was the limit forecast to be reached within the horizon"
        return Figure("forecast", title, FORECAST_TOLD, None, missing=why)
    last = max(run.numbers.last_step or 0 for run in runs)
    diagonal = line("now", [(0, 0.0), (last, float(last))], GREY, mode="lines", meta=AGAIN, hoverinfo="skip")
    traces.append(diagonal | {"line": {"color": GREY, "width": 1, "dash": "dot"}})
    drawn = layout(runs, "limit reached at step")
    told = FORECAST_TOLD + bucket_note(points for run in runs for points in run.numbers.metrics.values())
    return Figure("forecast", title, told, {"data": traces, "layout": drawn})


def _latest(runs: Runs) -> float:
    series = [run.numbers.metrics.get(f"forecast/{q}/{end}", []) for run in runs for q in FORECAST for end in ENDS]
    return max((value for points in series for _, value in points if math.isfinite(value)), default=0.0)


def _forecast_bands(data: RunData, name: str, color: str, label: str, horizon: float) -> list[dict[str, Any]]:
    """Early, late and median forecast, with gaps if none. A late bound beyond the horizon is clamped to it."""
    series = {end: data.numbers.metrics.get(f"forecast/{name}/{end}", []) for end in ENDS}
    if not any(math.isfinite(value) for _, value in series["early"]):
        return []
    reached = {step for step, value in series["early"] if math.isfinite(value)}
    late = [(step, min(value, horizon) if step in reached else math.nan) for step, value in series["late"]]
    traces = []
    for end, points in {**series, "late": late}.items():
        fill = {"fill": "tonexty", "fillcolor": faint(color, 0.15)} if end == "late" else {}
        words = plain(f"{label}, {end}") if end != "median" else label
        trace = line(words, thin(points), color, mode="lines", hovertemplate="step %{y:,.0f}", **fill)
        trace |= {"showlegend": end == "median", "legendgroup": label}
        traces.append(trace | {"line": {"color": color, "width": 2 if end == "median" else 0}})
    return traces


def outlook_traces(data: RunData, limits: Points, drawn: dict[str, Any]) -> list[dict[str, Any]]:
    """The last forecast as a wedge from each quantile to the limit. Extends the x axis of `drawn` in place."""
    now = data.numbers.last_step or 0
    found = {name: _last(data, name) for name in FORECAST}
    reached = {name: ends for name, ends in found.items() if ends and math.isfinite(ends[1])}
    if not reached or not limits:
        return []
    ends = [end for bounds in reached.values() for end in bounds if math.isfinite(end)]
    until = min(max(*ends, now + 1), 2.0 * now + 50)
    drawn["xaxis"] = {**drawn["xaxis"], "range": [-0.01 * until, 1.02 * until]}
    traces = []
    for name, (early, median, late) in reversed(reached.items()):
        traces += _wedge(name, now, data.numbers.metrics[f"context/window/{name}"][-1][1], limits[-1][1], until,
                         (early, median, late))  # fmt: skip
    return traces


def _last(data: RunData, name: str) -> tuple[float, float, float] | None:
    metrics = data.numbers.metrics
    series = [metrics.get(f"forecast/{name}/{end}") for end in ("early", "median", "late")]
    if not all(series) or not metrics.get(f"context/window/{name}"):
        return None
    now = data.numbers.last_step or 0
    early, median, late = (max(points[-1][1], now) for points in series if points)
    return (early, median, late) if late > now else None  # a forecast for a past step is not shown


def _wedge(
    name: str, now: int, height: float, limit: float, until: float, bounds: tuple[float, float, float]
) -> list[dict[str, Any]]:
    early, median, late = bounds
    label, color = f"forecast, {name}", FORECAST[name]
    x = [now, min(early, until), until, until] if late > until else [now, early, late]
    y = [height, limit, limit, height] if late > until else [height, limit, limit]
    base: dict[str, Any] = {"type": "scatter", "mode": "lines", "legendgroup": label, "name": label}
    base["meta"] = {**AGAIN, "outlook": True}
    wedge = {"fill": "toself", "fillcolor": faint(color, 0.18), "line": {"width": 0}, "hoverinfo": "skip"}
    traces = [{**base, "x": finite(x), "y": finite(y), **wedge}]
    if median <= until:
        end = f"{late:,.0f}" if math.isfinite(late) else "beyond the horizon"
        words = f"{name} reaches the limit at step {median:,.0f} ({early:,.0f} to {end})"
        path = {"line": {"color": color, "width": 1.5, "dash": "dot"}, "hovertemplate": words, "showlegend": False}
        traces.append({**base, "x": finite([now, median]), "y": finite([height, limit]), **path})
    return traces
