"""The plots, as data: pure functions from a run's numbers to plotly figures (dictionaries).

Text that stands in a figure is read by plotly as a kind of HTML, so whatever is not written here is neutralised.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from earl.report.data import RunData
from earl.report.text import count, shown

Points = Sequence[tuple[int, float]]

MAX_POINTS = 600
"""Points of one line. Longer series are drawn as means (or maxima) of neighbours."""
BLUE, GREY, ORANGE, GREEN, PURPLE, AMBER, BROWN = (
    "#2f7fc4", "#868c96", "#d95f28", "#1c9a82", "#8f68c0", "#b3860e", "#9a6a4f",
)  # fmt: skip
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, AMBER, GREY, BROWN)
PERCENT = ".2~%"
LEGEND = {
    "orientation": "h",
    "yref": "container",
    "y": 1,
    "yanchor": "top",
    "xref": "container",
    "x": 0,
    "traceorder": "normal",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot with its words."""

    name: str
    """Names the element and the file when it is saved."""
    title: str
    explanation: str
    spec: dict[str, Any] | None
    """`data` and `layout` for plotly; None when nothing was recorded yet."""


def thin(points: Points, pick: Callable[[list[float]], float] | None = None) -> list[tuple[int, float]]:
    """At most MAX_POINTS points: each stands for a run of neighbours, at the step of the last of them.

    Example:
        with MAX_POINTS = 2: [(1, 1.0), (2, 3.0), (3, 5.0)] -> [(2, 2.0), (3, 5.0)]
    """
    width = math.ceil(len(points) / MAX_POINTS)
    if width <= 1:
        return list(points)
    pick = pick or (lambda values: math.fsum(values) / len(values))
    buckets = [points[start : start + width] for start in range(0, len(points), width)]
    return [(bucket[-1][0], pick([value for _, value in bucket])) for bucket in buckets]


def plain(text: str) -> str:
    """Text that plotly draws as it is: no markup, no controls."""
    return shown(text, 60).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", "⟨LF⟩")


def finite(values: Iterable[float]) -> list[float | None]:
    """Values for JSON, six digits each. JSON knows neither NaN nor infinity: those are gaps."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def line(name: str, points: Points, color: str, **more: Any) -> dict[str, Any]:
    """One line of a plot. Few points are marked, so that a single one can be seen."""
    mode = "lines+markers" if len(points) <= 60 else "lines"
    trace = {"type": "scatter", "mode": mode, "name": name, "marker": {"size": 5}}
    values = {"x": [step for step, _ in points], "y": finite(value for _, value in points)}
    return {**trace, **values, "line": {"color": color, "width": 2}, **more}


def layout(data: RunData, unit: str, **more: Any) -> dict[str, Any]:
    """What all plots share: steps on the x axis, the warm start shaded."""
    last = max(data.numbers.last_step or 0, 1)
    base: dict[str, Any] = {
        "height": 300,
        "hovermode": "x unified",
        "margin": {"l": 56, "r": 12, "t": 48, "b": 42},
        "legend": LEGEND,
        "xaxis": {
            "title": {"text": "step"},
            "range": [-0.01 * last, 1.01 * last],
            "zeroline": False,
            "unifiedhovertitle": {"text": "step %{x}"},
        },
        "yaxis": {"title": {"text": unit}, "zeroline": False, "automargin": True},
        "shapes": [],
        "annotations": [],
    }
    warm = min(data.warm_steps, last)
    if warm:
        base["shapes"] = [_shade(warm)]
        base["annotations"] = [note("warm start", x=0, xanchor="left", yref="paper", y=1, yanchor="bottom")]
    return {**base, **more}


def _shade(until: int) -> dict[str, Any]:
    band = {"type": "rect", "xref": "x", "yref": "paper", "x0": 0, "x1": until, "y0": 0, "y1": 1}
    return {**band, "layer": "below", "line": {"width": 0}, "fillcolor": "rgba(128,134,148,0.16)"}


def note(text: str, **place: Any) -> dict[str, Any]:
    """Small words inside a plot, without an arrow."""
    return {"text": text, "showarrow": False, "font": {"size": 11}, "xref": "x", "borderpad": 0, **place}


def percent_axis(**more: Any) -> dict[str, Any]:
    """A y axis of fractions."""
    return {"tickformat": PERCENT, "rangemode": "tozero", "zeroline": False, "automargin": True, **more}


def series_figure(
    data: RunData,
    name: str,
    title: str,
    explanation: str,
    unit: str,
    lines: dict[str, str],
    percent: bool = False,
) -> Figure:
    """Metrics over steps.

    Args:
        lines: metric → name of its line.
    """
    metrics = data.numbers.metrics
    present = [(metrics[metric], label) for metric, label in lines.items() if metric in metrics]
    hover = "%{y:.2%}" if percent else "%{y:.4g}"
    traces = [
        line(plain(label), thin(points), color, hovertemplate=hover)
        for (points, label), color in zip(present, CYCLE, strict=False)
    ]
    if not traces:
        return Figure(name, title, explanation, None)
    axes = {"yaxis": percent_axis(title={"text": unit})} if percent else {}
    drawn = layout(data, unit, showlegend=len(traces) > 1, **axes)
    if len(traces) == 1:
        drawn["margin"] = {**drawn["margin"], "t": 22}
    return Figure(
        name,
        title,
        explanation + bucket_note(points for points, _ in present),
        {"data": traces, "layout": drawn},
    )


def bucket_note(series: Iterable[Points]) -> str:
    """What `thin` did to the longest of the series, in words; empty when it did nothing."""
    width = math.ceil(max(map(len, series), default=0) / MAX_POINTS)
    return f" Each point stands for {count(width)} neighbouring steps." if width > 1 else ""
