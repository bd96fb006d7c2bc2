"""Plots as data: pure functions from a run's numbers to plotly figures (dictionaries).

Plotly interprets text in a figure as a kind of HTML, so text of unknown origin is escaped with `plain`.
"""

import math
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from earl.reports.data import ReportedRun
from earl.reports.html import count, shown

Points = Sequence[tuple[float, float]]
Runs = Sequence[ReportedRun]

MAX_POINTS = 600
"""Maximum points of one line. Longer series are drawn as means (or maxima) of neighbours."""
BLUE, GREY, ORANGE, GREEN, PURPLE, AMBER, BROWN = (
    "#2f7fc4", "#868c96", "#d95f28", "#1c9a82", "#8f68c0", "#b3860e", "#9a6a4f",
)  # fmt: skip
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, AMBER, GREY, BROWN)
DASHES = ("solid", "dot", "dash", "dashdot")
PERCENT = {"tickformat": ".2~%", "rangemode": "tozero"}
AGAIN = {"again": True}
PLOTS = tomllib.loads(Path(__file__).with_name("plots.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    """Names the HTML element."""
    title: str
    explanation: str
    spec: dict[str, Any] | None
    """`data` and `layout` for plotly; None if there is nothing to draw.

    A trace's `meta` holds `again` if its numbers are in another trace or table, so that the table omits it, and
    `choice` n if it belongs to the n-th of `choices`.
    """
    choices: tuple[str, ...] = ()
    """Options for the reader: one choice's traces are visible at a time, initially the first's."""
    missing: str = "not recorded yet"


def downsample(points: Points, pick: Callable[[list[float]], float] = fmean) -> Points:
    """Reduce to at most MAX_POINTS points: each stands for a run of neighbours, at the last one's step."""
    width = math.ceil(len(points) / MAX_POINTS)
    if width <= 1:
        return points
    buckets = [points[start : start + width] for start in range(0, len(points), width)]
    return [(bucket[-1][0], pick([value for _, value in bucket])) for bucket in buckets]


def plain(text: str) -> str:
    """Escape text for plotly: no markup, no control characters."""
    return shown(text, 60).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", "⟨LF⟩")


def finite(values: Iterable[float]) -> list[float | None]:
    """Values for JSON, six digits each. NaN and infinity, which JSON does not have, become gaps."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def line(name: str, points: Points, color: str, style: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """One line of a plot. If it has few points, they get markers, so that a single one is visible."""
    mode = "lines+markers" if len(points) <= 60 else "lines"
    trace = {"type": "scatter", "mode": mode, "name": name, "marker": {"size": 5}}
    steps = [step if math.isfinite(step) else None for step, _ in points]
    values = {"x": steps, "y": finite(value for _, value in points)}
    return {**trace, **values, "line": {"color": color, "width": 2, **(style or {})}, **more}


def layout(runs: Runs, unit: str, axis: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The layout over steps, with the warm start shaded if all runs have the same. `axis`: settings of the y axis."""
    last = max(1, *(run.step for run in runs))
    placed: dict[str, Any] = deepcopy(PLOTS["layout"]) | more
    placed["xaxis"]["range"] = [-0.01 * last, 1.01 * last]
    placed["yaxis"] |= {"title": {"text": unit}, **(axis or {})}
    first, *others = {min(run.warm_steps, last) for run in runs}
    if first and not others:
        placed["shapes"] = [{**PLOTS["warm_start"], "x1": first}]
        placed["annotations"] = [note("warm start", x=0, xanchor="left", yref="paper", y=1, yanchor="bottom")]
    return placed


def color_of(number: int) -> str:
    """The colour of a line, or of a run where there are several."""
    return CYCLE[number % len(CYCLE)]


def label_of(runs: Runs, run: int, label: str = "") -> str:
    return plain(": ".join(filter(None, [runs[run].name if len(runs) > 1 else "", label])))


def faint(color: str, opacity: float) -> str:
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def note(text: str, **place: Any) -> dict[str, Any]:
    return {"text": text, "showarrow": False, "font": {"size": 11}, "xref": "x", "borderpad": 0, **place}


def series_figure(
    runs: Runs,
    name: str,
    title: str,
    explanation: str,
    unit: str,
    lines: dict[str, str],
    percent: bool = False,
    suffix: str = "",
) -> Figure:
    """Plot metrics over steps. `lines`: metric → line name; `suffix`: a unit that takes prefixes, such as "B"."""
    recorded = [
        (run, number, data.numbers.metrics[metric], label)
        for run, data in enumerate(runs)
        for number, (metric, label) in enumerate(lines.items())
        if data.numbers.metrics.get(metric)
    ]
    if not recorded:
        return Figure(name, title, explanation, None)
    drawn = [one for one in recorded if any(value for _, value in one[2])] or recorded  # no line of zeros beside others
    several, single = len(runs) > 1, len({label for *_, label in drawn}) == 1
    axis = {**PERCENT, "tickformat": "~s", "ticksuffix": suffix} if suffix else PERCENT if percent else {}
    hover = "%{y:.2%}" if percent else f"%{{y:.4s}}{suffix}" if suffix else "%{y:.4g}"
    traces = [
        line(
            label_of(runs, run, "" if single and several else label),
            downsample(points),
            color_of(run if several else number),
            {"dash": DASHES[number % len(DASHES)] if several else "solid"},
            hovertemplate=hover,
        )
        for run, number, points, label in drawn
    ]
    placed = layout(runs, "" if suffix else unit, axis, showlegend=len(traces) > 1)
    if len(traces) == 1:
        placed["margin"]["t"] = 22
    caption = explanation + bucket_note(points for *_, points, _ in drawn)
    return Figure(name, title, caption, {"data": traces, "layout": placed})


def declared(runs: Runs, group: str) -> list[Figure]:
    """The plots that plots.toml declares under `group`."""
    return [series_figure(runs, **plot) for plot in PLOTS[group]]


def bucket_note(series: Iterable[Points]) -> str:
    width = math.ceil(max(map(len, series), default=0) / MAX_POINTS)
    return f" Each point stands for {count(width)} neighbouring steps." if width > 1 else ""


# Training metrics, stage times, and any other recorded metric.

STAGES = ("rollout", "track", "dispatch", "prepare", "update", "weights", "evaluate", "record")
"""The stages in the order of a step; others follow by name."""


def training_figures(runs: Runs) -> list[Figure]:
    optional = [figure for figure in declared(runs, "optional") if figure.spec]
    return [*declared(runs, "training"), *optional]


def stages(data: ReportedRun) -> list[str]:
    known = [stage for stage in STAGES if stage in data.numbers.timings]
    return known + sorted(set(data.numbers.timings) - set(known))


def stacked(name: str, points: Points, color: str, opacity: float, hover: str) -> dict[str, Any]:
    """An area on top of those before it."""
    more = {"stackgroup": "all", "fillcolor": faint(color, opacity), "mode": "lines", "hovertemplate": hover}
    return line(plain(name), downsample(points), color, {"width": 0}, **more)


def time_figure(runs: Runs) -> Figure:
    """Seconds by stage, stacked; for several runs the total of each step."""
    words, several, hover = PLOTS["words"]["time"], len(runs) > 1, "%{y:.3f} s"
    timings = [points for run in runs for points in run.numbers.timings.values()]
    traces = []
    for number, run in enumerate(runs):
        totals: defaultdict[int, float] = defaultdict(float)
        for step, seconds in chain(*run.numbers.timings.values()):
            totals[step] += seconds
        if several:
            points = downsample(sorted(totals.items()))
            traces.append(line(label_of(runs, number), points, color_of(number), hovertemplate=hover))
            continue
        for place, stage in enumerate(stages(run)):
            had = dict(run.numbers.timings[stage])
            points = [(step, had.get(step, 0.0)) for step in sorted(totals)]
            traces.append(stacked(stage, points, color_of(place), 1, hover))
    caption = words["several" if several else "one"] + bucket_note(timings)
    spec = {"data": traces, "layout": layout(runs, "seconds")} if any(timings) else None
    return Figure("time", words["title"], caption, spec)


ELSEWHERE = re.compile(
    "(reward|illegal_replies|entropy|grad_norm|loss)$"
    "|(warm_start|context|stop|tokens|truncation|memory|forecast|staleness|correction|dispatch|weights)/"
)
"""Metrics that a plot of their own or another section shows."""


def other_figures(runs: Runs) -> list[Figure]:
    names = sorted({name for run in runs for name in run.numbers.metrics})
    rest = [name for name in names if not ELSEWHERE.match(name)][:40]
    return [
        series_figure(runs, f"metric-{number}", shown(name, 60), "", "", {name: name})
        for number, name in enumerate(rest)
    ]
