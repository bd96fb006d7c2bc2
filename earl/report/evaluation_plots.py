"""Plots of wins, draws and losses over steps: one per opponent, with all seats. Pure functions."""

import math
from collections.abc import Sequence
from typing import Any

from earl.matches import wilson
from earl.report.data import RunData
from earl.report.figures import (
    AGAIN,
    BLUE,
    DASHES,
    GREY,
    ORANGE,
    Figure,
    color_of,
    error_bars,
    faint,
    label_of,
    layout,
    line,
    note,
    percent_axis,
)
from earl.report.html import count
from earl.report.results import Pairing, all_pairings, opponent_name, pairings, seat_name
from earl.runs.tables import RecordedMatch

DURING = ("start", "warm_start", "train")
"""Phases that evaluate the weights of their own step; the final one evaluates the best weights."""
COLORS = {"win": BLUE, "draw": GREY, "loss": ORANGE}
SYMBOLS = ("circle", "circle-open", "square", "square-open")


def curve_of(data: RunData, pairing: Pairing) -> list[RecordedMatch]:
    return [
        match
        for match in data.numbers.matches
        if (match.result.opponent, match.result.exact) == pairing and match.phase in DURING
    ]


def intervals(curve: Sequence[RecordedMatch], name: str) -> list[tuple[float, float]]:
    """The 95 % interval of each match's share."""
    return [wilson(getattr(match.result, name) * match.result.episodes, match.result.episodes) for match in curve]


def _title(pairing: Pairing) -> str:
    return f"Against {opponent_name(*pairing)}" if pairing[0] else "On held-out tasks"


def _points(curve: Sequence[RecordedMatch], name: str) -> list[tuple[int, float]]:
    return [(match.step, float(getattr(match.result, name))) for match in curve]


def strength_figures(data: RunData) -> list[Figure]:
    return [_strength_figure(data, number, pairing) for number, pairing in enumerate(pairings(data))]


def _strength_figure(data: RunData, number: int, pairing: Pairing) -> Figure:
    opponent, exact = pairing
    curve = curve_of(data, pairing)
    title = _title(pairing)
    if not curve:
        return Figure(f"strength-{number}", title, "", None)
    how = "Exact: every possible reply of the opponent was tried."
    if not exact:
        games = max(match.result.episodes for match in curve)
        how = f"Each point: {count(games)} {'games' if opponent else 'tasks'}. Bars are 95 % intervals."
    top = enlarged_range([match.result.loss for match in curve])
    spec = {"data": _traces(curve, enlarge=top > 0), "layout": _layout(data, curve, top)}
    return Figure(f"strength-{number}", title, how, spec)


def _traces(curve: Sequence[RecordedMatch], enlarge: bool) -> list[dict[str, Any]]:
    is_game = bool(curve[0].result.opponent)
    names = {"win": "win", "draw": "draw", "loss": "loss"} if is_game else {"win": "solved", "loss": "not solved"}
    seats = sorted({match.result.seat for match in curve})
    traces = []
    for place, seat in enumerate(seats):
        own = [match for match in curve if match.result.seat == seat]
        suffix = f", {seat_name(seat).removeprefix('moves ')}" if len(seats) > 1 else ""
        traces += [_trace(own, name, word + suffix, place) for name, word in names.items()]
        if enlarge:
            again = {"yaxis": "y2", "showlegend": False, "meta": AGAIN}
            traces.append({**_trace(own, "loss", names["loss"] + suffix, place), **again})
    return traces


def _trace(curve: Sequence[RecordedMatch], name: str, label: str, place: int) -> dict[str, Any]:
    points = _points(curve, name)
    trace = line(label, points, COLORS[name], mode="lines+markers", hovertemplate="%{y:.2%}", legendgroup=label)
    trace["line"] = {**trace["line"], "dash": DASHES[place % 4]}
    trace["marker"] = {"size": 6, "symbol": SYMBOLS[place % 4]}
    if not curve[0].result.exact:
        bars = error_bars((value for _, value in points), intervals(curve, name), thickness=1, width=2)
        trace["error_y"] = bars
    return trace


def _layout(data: RunData, curve: Sequence[RecordedMatch], top: float) -> dict[str, Any]:
    """The main panel, and below it the losses up to `top`, unless that is 0."""
    is_game = bool(curve[0].result.opponent)
    unit, below = ("share of games", "losses, enlarged") if is_game else ("share of tasks", "not solved, enlarged")
    drawn = layout([data], unit, height=430 if top else 300)
    drawn["margin"] = {**drawn["margin"], "t": 28 + 18 * len({match.result.seat for match in curve})}
    drawn["yaxis"] = percent_axis(title={"text": unit}, range=[-0.03, 1.03], domain=[0.42 if top else 0, 1])
    if top:
        drawn["yaxis2"] = percent_axis(range=[-0.05 * top, top], domain=[0, 0.28], nticks=4)
        drawn["xaxis"] = {**drawn["xaxis"], "anchor": "y2"}
        place = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": 0.28, "yanchor": "bottom"}
        drawn["annotations"].append(note(below, **place))
    return drawn


def enlarged_range(losses: Sequence[float]) -> float:
    """The top of the enlarged panel, from the later half of the losses; 0 if they are too large for an enlargement."""
    later = [loss for loss in losses[len(losses) // 2 :] if math.isfinite(loss)]
    top = max(0.01, 1.25 * max(later, default=1.0))
    return top if top <= 0.7 else 0.0


# Several runs side by side.

Runs = Sequence[RunData]


def curve_figures(runs: Runs) -> list[Figure]:
    """One plot for each opponent and seat, a line per run; the reader selects the measure."""
    listed: list[Figure] = []
    for pairing in all_pairings(runs):
        curves = [curve_of(run, pairing) for run in runs]
        for seat in sorted({match.result.seat for curve in curves for match in curve}):
            own = [[match for match in curve if match.result.seat == seat] for curve in curves]
            listed.append(_curve_figure(runs, len(listed), pairing, seat, own))
    return listed


def _curve_figure(
    runs: Runs, number: int, pairing: Pairing, seat: int, curves: Sequence[list[RecordedMatch]]
) -> Figure:
    opponent, exact = pairing
    where = f", {seat_name(seat)}" if opponent else ""
    title = _title(pairing) + where
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
        for trace in _run_traces(runs, run, curve, name)
    ]
    axis = percent_axis(title={"text": "share of games" if opponent else "share of tasks"}, range=[-0.03, 1.03])
    spec = {"data": traces, "layout": layout(runs, "", yaxis=axis)}
    return Figure(f"strength-{number}", title, how, spec, tuple(names[name] for name in order))


def _run_traces(runs: Runs, run: int, curve: Sequence[RecordedMatch], name: str) -> list[dict[str, Any]]:
    color, label = color_of(run, 0, len(runs)), label_of(runs, run)
    group = f"{run} {name}"
    points = _points(curve, name)
    own = line(label, points, color, mode="lines+markers", hovertemplate="%{y:.2%}", legendgroup=group)
    if curve[0].result.exact:
        return [own]
    bounds = intervals(curve, name)
    own["error_y"] = error_bars((value for _, value in points), bounds, visible=False)
    edges = [(match.step, low) for match, (low, _) in zip(curve, bounds, strict=True)]
    edges += [(match.step, high) for match, (_, high) in zip(curve[::-1], bounds[::-1], strict=True)]
    band = line(label, edges, color, mode="lines", fill="toself", fillcolor=faint(color, 0.15), hoverinfo="skip")
    return [band | {"showlegend": False, "legendgroup": group, "meta": AGAIN, "line": {"width": 0}}, own]
