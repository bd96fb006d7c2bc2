"""Plots of context growth: lengths with limit and forecast, authors, truncation, memory. Pure functions."""

import math
from collections import defaultdict
from itertools import chain, pairwise
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.reports import figures
from earl.reports.data import ReportedRun
from earl.reports.figures import Figure, Points, Runs
from earl.reports.html import count
from earl.trajectory import KEPT_TURNS, Author

WORDS = figures.PLOTS["words"]
MAX_COLUMNS = 150
"""Maximum columns of the heat map; in a longer run a column holds several steps."""


def heat_figure(data: ReportedRun, number: int = 0, named: bool = False) -> Figure:
    """The heat map of contexts: tokens of each turn at each step, by author."""
    title, caption = WORDS["heat"].values()
    title += figures.plain(f" ({data.name})" if named else "")
    steps = sorted({row.step for row in data.contexts})
    if not steps:
        return Figure(f"heat-{number}", title, caption, None)
    width = math.ceil(len(steps) / MAX_COLUMNS)
    ends = [steps[min(first + width, len(steps)) - 1] for first in range(0, len(steps), width)]
    maps = _maps(data, {step: place // width for place, step in enumerate(steps)})
    turns = len(maps["all authors"])
    traces = [
        {
            **figures.PLOTS["heatmap"],
            "x": ends,
            "y": [*range(1, turns + 1)],
            "z": [figures.finite(float(f"{value:.4g}") for value in row) for row in cells],
            "zmax": float(np.nan_to_num(cells).max()),
            "meta": {"choice": place},
            "visible": place == 0,
        }
        for place, cells in enumerate(maps.values())
    ]
    if width > 1:
        caption += f" Each column stands for {width} neighbouring steps."
    if turns == KEPT_TURNS:
        caption += f" Turn {KEPT_TURNS} holds all later ones too."
    axis = {"range": [0.5, turns + 0.5], "showgrid": False, **({"nticks": 12} if turns > 12 else {"dtick": 1})}
    drawn = figures.layout([data], "turn", axis, hovermode="closest", showlegend=False)
    drawn["margin"]["t"] = 22
    return Figure(f"heat-{number}", title, caption, {"data": traces, "layout": drawn}, tuple(maps))


def _maps(data: ReportedRun, column_of: dict[int, int]) -> dict[str, NDArray[np.float64]]:
    """Mean tokens by turn and column (NaN: no such turn) of all authors and of each that wrote any; also the number of
    episodes that had the turn.
    """
    shape = 1 + max(row.turn for row in data.contexts), 1 + max(column_of.values())
    names = {author.value: author.name.lower() for author in Author}
    tokens = {name: np.full(shape, np.nan) for name in ("all authors", *names.values())}
    episodes: defaultdict[tuple[int, int], int] = defaultdict(int)
    for row in data.contexts:
        cell = row.turn, column_of[row.step]
        episodes[row.turn, row.step] = max(row.episodes, episodes[row.turn, row.step])
        for name in ("all authors", names.get(row.author, "")):
            if name:
                tokens[name][cell] = np.nan_to_num(tokens[name][cell]) + row.tokens
    had = np.zeros(shape)
    for (turn, step), number in episodes.items():
        had[turn, column_of[step]] += number
    means = {name: own / np.maximum(had, 1) for name, own in tokens.items() if np.nansum(own)}
    steps_in = np.bincount(list(column_of.values()))
    return {**means, "episodes that had the turn": np.where(had, had / steps_in, np.nan)}


QUANTILES = {"p50": "median", "p95": "p95", "p99": "p99", "max": "longest"}


def limit_of(data: ReportedRun, level: str) -> Points:
    """The context limit by step, if it applies to the level. With full history a reply's context is the episode."""
    full = data.config is None or data.config.agent.history == "full"
    applies = level == "window" or (level == "episode" and full)
    return data.series("context/limit") if applies else []


def band_figure(runs: Runs, level: str) -> Figure:
    title, caption = WORDS[level].values()
    bands = [trace for run in range(len(runs)) for trace in _bands(runs, run, level)]
    if not bands:
        return Figure(f"context-{level}", title, caption, None)
    drawn = figures.layout(runs, "tokens", {"rangemode": "tozero"})
    longest = max(y or 0 for band in bands for y in band["y"])
    for run, data in enumerate(runs):
        if limits := limit_of(data, level):
            bands += _limit(runs, run, limits, drawn, longest)
    caption += " Median: half are shorter. p95: 95 % are shorter."
    if any(limit_of(data, level) for data in runs):
        caption += " The dashed line is the limit: an episode that reaches it is cut off."
    caption += figures.bucket_note(points for data in runs for points in data.numbers.metrics.values())
    return Figure(f"context-{level}", title, caption, {"data": bands, "layout": drawn})


def _bands(runs: Runs, run: int, level: str) -> list[dict[str, Any]]:
    """Quantiles with the space between them filled; for several runs only median and p95."""
    several = len(runs) > 1
    metrics, color = runs[run].numbers.metrics, figures.color_of(run)
    traces: list[dict[str, Any]] = []
    for name, label in QUANTILES.items():
        points = metrics.get(f"context/{level}/{name}", [])
        if not points or (several and name in ("p99", "max")):
            continue
        opacity = (0.3, 0.18, 0.1)[min(len(traces), 3) - 1]
        fill = {"fill": "tonexty", "fillcolor": figures.faint(color, opacity / (1 + several))} if traces else {}
        kept, label = figures.downsample(points, max if name == "max" else fmean), figures.label_of(runs, run, label)
        style = {"width": 2.5 if name == "p50" else 1}
        traces.append(figures.line(label, kept, color, style, hovertemplate="%{y:,.0f}", mode="lines", **fill))
    return traces


def _limit(runs: Runs, run: int, points: Points, drawn: dict[str, Any], longest: float) -> list[dict[str, Any]]:
    """The limit as a line. If it is far above the data, it is only an annotation, so that the data stay readable."""
    color = figures.color_of(run) if len(runs) > 1 else figures.ORANGE
    if min(value for _, value in points) > 5 * longest:
        label = f"context limit: {count(points[-1][1])} tokens (above this plot)"
        place = {"xref": "paper", "x": 1, "xanchor": "right", "yref": "paper", "y": 1, "yanchor": "top"}
        drawn["annotations"] += [figures.note(label, **place)] if run == 0 else []
        return []
    bends = [points[0], *(now for before, now in pairwise(points) if now[1] != before[1]), points[-1]]
    style, label = {"dash": "dash", "shape": "hv"}, figures.label_of(runs, run, "limit")
    staircase = figures.line(label, list(dict.fromkeys(bends)), color, style, hovertemplate="%{y:,.0f}", mode="lines")
    return [staircase]


AUTHORS = {
    "template": figures.GREY,
    "environment": figures.AMBER,
    "tool": figures.GREEN,
    "thinking": figures.PURPLE,
    "action": figures.BLUE,
}


def context_figures(runs: Runs) -> list[Figure]:
    authors = [_author_figure(runs, run) for run in range(len(runs))]
    return [
        *(band_figure(runs, level) for level in ("window", "episode", "turn")),
        *(figure for figure in authors if figure.spec or len(runs) == 1),
        *figures.declared(runs, "context"),
    ]


def _author_figure(runs: Runs, run: int) -> Figure:
    data, (title, caption) = runs[run], WORDS["authors"].values()
    title += figures.plain(f" ({data.name})" if len(runs) > 1 else "")
    episodes, metrics = dict(data.series("episodes")), data.numbers.metrics
    traces = []
    for author, color in AUTHORS.items():
        points = [(s, v / episodes[s]) for s, v in metrics.get(f"tokens/{author}", []) if episodes.get(s)]
        if any(value for _, value in points):
            traces.append(figures.stacked(author, points, color, 0.75, "%{y:,.1f}"))
    spec = {"data": traces, "layout": figures.layout([data], "tokens per episode")} if traces else None
    return Figure(f"authors-{run}", title, caption + (figures.bucket_note(metrics.values()) if traces else ""), spec)


# The forecast: the step at which each quantile of the contexts reaches the limit.

ENDS = ("early", "late", "median")
FORECAST = {"p50": figures.BLUE, "p95": figures.GREEN, "p99": figures.ORANGE}


def forecast_figure(runs: Runs) -> Figure:
    (title, caption), several = WORDS["forecast"].values(), len(runs) > 1
    quantiles = {"p95": figures.GREEN} if several else FORECAST
    series = [run.series(f"forecast/{q}/{end}") for run in runs for q in FORECAST for end in ENDS]
    horizon = 1.05 * max((value for _, value in chain(*series) if math.isfinite(value)), default=0.0)
    traces = []
    for run, data in enumerate(runs):
        for name, own in quantiles.items():
            color = figures.color_of(run) if several else own
            traces += _forecast_bands(data, name, color, figures.label_of(runs, run, name), horizon)
    if not traces:
        known = any(name.startswith("forecast/") for data in runs for name in data.numbers.metrics)
        why = "not recorded yet" if not known else "at no step was the limit forecast to be reached within the horizon"
        return Figure("forecast", title, caption, None, missing=why)
    last, dotted = max(run.step for run in runs), {"width": 1, "dash": "dot"}
    more = {"mode": "lines", "meta": figures.AGAIN, "hoverinfo": "skip"}
    traces.append(figures.line("now", [(0, 0.0), (last, last)], figures.GREY, dotted, **more))
    caption += figures.bucket_note(points for run in runs for points in run.numbers.metrics.values())
    return Figure("forecast", title, caption, {"data": traces, "layout": figures.layout(runs, "limit reached at step")})


def _forecast_bands(data: ReportedRun, name: str, color: str, label: str, horizon: float) -> list[dict[str, Any]]:
    """Early, late and median forecast, with gaps if none. A late bound beyond the horizon is clamped to it."""
    series = {end: data.series(f"forecast/{name}/{end}") for end in ENDS}
    if not any(math.isfinite(value) for _, value in series["early"]):
        return []
    reached = {step for step, value in series["early"] if math.isfinite(value)}
    late = [(step, min(value, horizon) if step in reached else math.nan) for step, value in series["late"]]
    traces = []
    for end, points in {**series, "late": late}.items():
        fill: dict[str, Any] = {"fill": "tonexty", "fillcolor": figures.faint(color, 0.15)} if end == "late" else {}
        middle = end == "median"
        words, style = label if middle else figures.plain(f"{label}, {end}"), {"width": 2 if middle else 0}
        fill |= {"hovertemplate": "step %{y:,.0f}", "showlegend": middle, "legendgroup": label}
        traces.append(figures.line(words, figures.downsample(points), color, style, mode="lines", **fill))
    return traces
