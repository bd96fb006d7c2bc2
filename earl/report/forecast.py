"""Plots of the forecast: the step at which each quantile of the contexts reaches the limit. Pure functions."""

import math
from collections.abc import Sequence
from typing import Any

from earl.report.data import RunData
from earl.report.figures import (
    AGAIN,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Figure,
    Points,
    bucket_note,
    color_of,
    faint,
    finite,
    label_of,
    layout,
    line,
    plain,
    thin,
)

ENDS = ("early", "late", "median")
QUANTILES = {"p50": BLUE, "p95": GREEN, "p99": ORANGE}
TOLD = (
    "At each step: the step at which that quantile of the contexts was forecast to reach the limit. The line is the "
    "median forecast, the band holds 80 %; the dotted diagonal is the present. No line: not within the horizon; a band "
    "that ends at the top: perhaps never."
)


def forecast_figure(runs: Sequence[RunData]) -> Figure:
    title = "Forecast: when the limit will be reached"
    several = len(runs) > 1
    quantiles = {"p95": GREEN} if several else QUANTILES
    listed = [(run, name, color) for run in range(len(runs)) for name, color in quantiles.items()]
    known = [data for data in runs if any(name.startswith("forecast/") for name in data.numbers.metrics)]
    traces: list[dict[str, Any]] = []
    horizon = 1.05 * _latest(runs)
    for run, name, color in listed:
        shown_color = color_of(run, 0, len(runs)) if several else color
        traces += _bands(runs[run], name, shown_color, label_of(runs, run, name), horizon)
    if not traces:
        why = "not recorded yet" if not known else "at no step was the limit forecast to be reached within the horizon"
        return Figure("forecast", title, TOLD, None, missing=why)
    last = max(run.numbers.last_step or 0 for run in runs)
    diagonal = line("now", [(0, 0.0), (last, float(last))], GREY, mode="lines", meta=AGAIN, hoverinfo="skip")
    traces.append(diagonal | {"line": {"color": GREY, "width": 1, "dash": "dot"}})
    drawn = layout(runs, "limit reached at step")
    told = TOLD + bucket_note(points for run in runs for points in run.numbers.metrics.values())
    return Figure("forecast", title, told, {"data": traces, "layout": drawn})


def _latest(runs: Sequence[RunData]) -> float:
    series = [run.numbers.metrics.get(f"forecast/{q}/{end}", []) for run in runs for q in QUANTILES for end in ENDS]
    return max((value for points in series for _, value in points if math.isfinite(value)), default=0.0)


def _bands(data: RunData, name: str, color: str, label: str, horizon: float) -> list[dict[str, Any]]:
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
    found = {name: _last(data, name) for name in QUANTILES}
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
    label, color = f"forecast, {name}", QUANTILES[name]
    x = [now, min(early, until), until, until] if late > until else [now, early, late]
    y = [height, limit, limit, height] if late > until else [height, limit, limit]
    base: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "legendgroup": label,
        "meta": {**AGAIN, "outlook": True},
        "name": label,
    }
    wedge: dict[str, Any] = {
        "fill": "toself",
        "fillcolor": faint(color, 0.18),
        "line": {"width": 0},
        "hoverinfo": "skip",
    }
    traces = [{**base, "x": finite(x), "y": finite(y), **wedge}]
    if median <= until:
        words = f"{name} reaches the limit at step {median:,.0f} ({early:,.0f} to {_step(late)})"
        path = {"line": {"color": color, "width": 1.5, "dash": "dot"}, "hovertemplate": words, "showlegend": False}
        traces.append({**base, "x": finite([now, median]), "y": finite([height, limit]), **path})
    return traces


def _step(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "beyond the horizon"
