"""Plots of training metrics, stage times, and any other recorded metric. Pure functions."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from earl.report.data import RunData
from earl.report.figures import (
    CYCLE,
    Figure,
    bucket_note,
    color_of,
    declared,
    label_of,
    layout,
    line,
    plain,
    series_figure,
    thin,
)
from earl.report.html import shown

Runs = Sequence[RunData]

STAGES = ("rollout", "track", "dispatch", "prepare", "update", "weights", "evaluate", "record")
"""The stages in the order of a step; others follow by name."""


def training_figures(runs: Runs) -> list[Figure]:
    optional = [figure for figure in declared(runs, "optional") if figure.spec]
    return [*declared(runs, "training"), *optional]


def stages(data: RunData) -> list[str]:
    known = [stage for stage in STAGES if stage in data.numbers.timings]
    return known + sorted(set(data.numbers.timings) - set(known))


def time_figure(runs: Runs) -> Figure:
    """Seconds by stage, stacked; for several runs the total of each step."""
    title, told = "Time of each step", "Seconds that a step took, by stage, one on top of the other."
    timings = [points for run in runs for points in run.numbers.timings.values()]
    if not any(timings):
        return Figure("time", title, told, None)
    if len(runs) > 1:
        told, traces = "Seconds that a step took in all.", [_whole_time(runs, run) for run in range(len(runs))]
    else:
        traces = _stage_times(runs[0])
    return Figure("time", title, told + bucket_note(timings), {"data": traces, "layout": layout(runs, "seconds")})


def _stage_times(data: RunData) -> list[dict[str, Any]]:
    traces = []
    steps = sorted({step for points in data.numbers.timings.values() for step, _ in points})
    for number, stage in enumerate(stages(data)):
        had = dict(data.numbers.timings[stage])
        points = thin([(step, had.get(step, 0.0)) for step in steps])
        color = CYCLE[number % len(CYCLE)]
        stacked = {"stackgroup": "time", "fillcolor": color, "mode": "lines", "hovertemplate": "%{y:.3f} s"}
        traces.append(line(plain(stage), points, color, **stacked) | {"line": {"width": 0, "color": color}})
    return traces


def _whole_time(runs: Runs, run: int) -> dict[str, Any]:
    totals: defaultdict[int, float] = defaultdict(float)
    for points in runs[run].numbers.timings.values():
        for step, seconds in points:
            totals[step] += seconds
    color = color_of(run, 0, len(runs))
    return line(label_of(runs, run), thin(sorted(totals.items())), color, hovertemplate="%{y:.3f} s")


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
