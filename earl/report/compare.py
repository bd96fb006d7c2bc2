"""Comparison of several runs for the report: learning curves, last evaluations, recipes. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from earl.config import Config
from earl.matches import BOTH_SEATS, MatchResult
from earl.report.data import RunData
from earl.report.evaluation_plots import curve_of, intervals
from earl.report.figures import (
    AGAIN,
    Figure,
    color_of,
    error_bars,
    faint,
    label_of,
    layout,
    line,
    percent_axis,
)
from earl.report.html import shown
from earl.report.results import Pairing, Phase, opponent_name, pairings, phases, result_at, seat_name, seats_of
from earl.runs.tables import RecordedMatch

Runs = Sequence[RunData]


def all_pairings(runs: Runs) -> list[Pairing]:
    return list(dict.fromkeys(pairing for run in runs for pairing in pairings(run)))


def curve_figures(runs: Runs) -> list[Figure]:
    """One plot for each opponent and seat, a line per run; the reader selects the measure."""
    listed: list[Figure] = []
    for pairing in all_pairings(runs):
        curves = [curve_of(run, pairing) for run in runs]
        for seat in sorted({match.result.seat for curve in curves for match in curve}):
            own = [[match for match in curve if match.result.seat == seat] for curve in curves]
            listed.append(_curve_figure(runs, len(listed), pairing, seat, own))
    return listed


Curve = list[RecordedMatch]


def _curve_figure(runs: Runs, number: int, pairing: Pairing, seat: int, curves: Sequence[Curve]) -> Figure:
    opponent, exact = pairing
    where = f", {seat_name(seat)}" if opponent else ""
    title = (f"Against {opponent_name(opponent, exact)}" if opponent else "On held-out tasks") + where
    names = {"win": "wins", "draw": "draws", "loss": "losses"} if opponent else {"win": "solved", "loss": "not solved"}
    last = {name: max((getattr(curve[-1].result, name) for curve in curves if curve), default=0.0) for name in names}
    first = "draw" if last.get("draw", 0.0) > last["win"] else "win"  # a draw is the best result against perfect play
    order = [first, *(name for name in names if name != first)]
    how = "Exact: every possible reply of the opponent was tried." if exact else "Shaded: 95 % intervals (Wilson)."
    traces = [
        {**trace, "meta": {**trace.get("meta", {}), "choice": choice}, "visible": choice == 0}
        for choice, name in enumerate(order)
        for run, curve in enumerate(curves)
        if curve
        for trace in _traces(runs, run, curve, name)
    ]
    axis = percent_axis(title={"text": "share of games" if opponent else "share of tasks"}, range=[-0.03, 1.03])
    spec = {"data": traces, "layout": layout(runs, "", yaxis=axis)}
    return Figure(f"strength-{number}", title, how, spec, tuple(names[name] for name in order))


def _traces(runs: Runs, run: int, curve: Curve, name: str) -> list[dict[str, Any]]:
    color, label = color_of(run, 0, len(runs)), label_of(runs, run)
    group = f"{run} {name}"
    points = [(match.step, float(getattr(match.result, name))) for match in curve]
    own = line(label, points, color, mode="lines+markers", hovertemplate="%{y:.2%}", legendgroup=group)
    if curve[0].result.exact:
        return [own]
    bounds = intervals(curve, name)
    own["error_y"] = error_bars((value for _, value in points), bounds, visible=False)
    edges = [(match.step, low) for match, (low, _) in zip(curve, bounds, strict=True)]
    edges += [(match.step, high) for match, (_, high) in zip(curve[::-1], bounds[::-1], strict=True)]
    band = line(label, edges, color, mode="lines", fill="toself", fillcolor=faint(color, 0.15), hoverinfo="skip")
    return [band | {"showlegend": False, "legendgroup": group, "meta": AGAIN, "line": {"width": 0}}, own]


@dataclass(frozen=True, slots=True)
class FinalRow:
    pairing: Pairing
    opponent: str
    seat: int
    results: list[MatchResult | None]


def final_rows(runs: Runs) -> list[list[FinalRow]]:
    last = [phases(run)[-1] for run in runs]
    rows = [
        FinalRow(pairing, opponent_name(*pairing), seat, [_result(phase, pairing, seat) for phase in last])
        for pairing in all_pairings(runs)
        for seat in seats_of(last, pairing)
    ]
    return [list(group) for _, group in groupby(rows, key=lambda row: row.pairing)]


def _result(phase: Phase, pairing: Pairing, seat: int) -> MatchResult | None:
    found = result_at(phase, pairing, seat)
    alone = phase.results.get(pairing, [])
    return alone[0] if found is None and seat == BOTH_SEATS and len(alone) == 1 else found


def last_phases(runs: Runs) -> list[Phase]:
    return [phases(run)[-1] for run in runs]


def recipe_differences(runs: Runs) -> list[tuple[str, list[str]]]:
    """Every recipe key that differs, with each value, such as ("context.limit", ["72", "120"]); "–" if missing."""
    trees = [dict(_flat(run.config)) if run.config else {} for run in runs]
    keys = list(dict.fromkeys(key for tree in trees for key in tree))
    values = {key: [tree.get(key, "–") for tree in trees] for key in keys}
    return [(shown(key, 80), found) for key, found in values.items() if len(set(found)) > 1]


def _flat(config: Config) -> list[tuple[str, str]]:
    def walk(prefix: str, value: Any) -> list[tuple[str, str]]:
        if isinstance(value, dict) and value:
            return [pair for key, inner in value.items() for pair in walk(f"{prefix}.{key}" if prefix else key, inner)]
        return [(prefix, shown(str(value), 200))]

    return walk("", config.model_dump())
