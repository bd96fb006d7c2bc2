"""Evaluation results as tables: opponent × seat by phase of one run, or by run. Pure functions."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from earl.matches import BOTH_SEATS, MatchResult, mean_over_seats, wilson
from earl.reports.data import RunData
from earl.reports.figures import (
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
from earl.reports.html import count, percent, percent_digits, shown
from earl.runs.store import RecordedMatch

_LIMITS = [("illegal", "Illegal"), ("truncated", "Cut off")]
SEATS = {0: "moves first", 1: "moves second", BOTH_SEATS: "both seats"}

Pairing = tuple[str, bool]
"""Opponent, and whether its replies were enumerated."""


@dataclass(frozen=True, slots=True)
class Phase:
    title: str
    when: str
    results: dict[Pairing, list[MatchResult]]
    """By seat, the mean over seats last; empty if not recorded yet."""


@dataclass(frozen=True, slots=True)
class Words:
    """The vocabulary of results: games have seats and draws, tasks are solved or not."""

    opponent: str
    seats: bool
    measures: list[tuple[str, str]]
    """Field of `MatchResult` and its title; illegal actions and truncation last."""


@dataclass(frozen=True, slots=True)
class Cell:
    value: str
    interval: str
    """The 95 % interval; empty for enumerated matches."""
    alarming: bool
    """Whether it is a loss, an illegal action or a truncation, and not zero."""


def seat_name(seat: int) -> str:
    return SEATS.get(seat, f"seat {seat + 1}")


def opponent_name(opponent: str, exact: bool = False) -> str:
    if not opponent:
        return "held-out tasks"
    return shown(opponent, 60) + (" (every reply)" if exact and opponent == "any" else "")


def pairings(data: RunData) -> list[Pairing]:
    order = data.config.evaluate.opponents if data.config else []
    met = {(match.result.opponent, match.result.exact) for match in data.numbers.matches}
    return sorted(met, key=lambda pair: (order.index(pair[0]) if pair[0] in order else len(order), *pair))


def phases(data: RunData) -> list[Phase]:
    """Start, after warm start (if the recipe has one) and end; phases without matches are empty."""
    found = {name: _last(data.numbers.matches, name) for name in ("start", "warm_start", "final", "train")}
    start, warm, final, latest = found.values()
    listed = [_phase("At the start", start, "before training")]
    if data.warm_steps or warm:
        ended = not warm or warm[0].step >= data.warm_steps
        listed.append(_phase("After warm start" if ended else "During warm start", warm))
    if final:
        best = data.model.best_step if data.model else None
        return [*listed, _phase("Final", final, f"weights of step {best}" if best is not None else "")]
    return [*listed, _phase("Latest, not final" if latest else "Final", latest)]


def words(data: RunData) -> Words:
    met = pairings(data)
    if met and not any(opponent for opponent, _ in met):
        return Words("Played on", False, [("win", "Solved"), ("loss", "Not solved"), *_LIMITS])
    return Words("Opponent", True, [("win", "Win"), ("draw", "Draw"), ("loss", "Loss"), *_LIMITS])


def _last(matches: Iterable[RecordedMatch], phase: str) -> list[RecordedMatch]:
    chosen = [match for match in matches if match.phase == phase]
    last = max((match.step for match in chosen), default=0)
    return [match for match in chosen if match.step == last]


def _phase(title: str, matches: Sequence[RecordedMatch], when: str = "") -> Phase:
    grouped: dict[Pairing, list[MatchResult]] = {}
    for match in matches:
        grouped.setdefault((match.result.opponent, match.result.exact), []).append(match.result)
    for results in grouped.values():
        results.sort(key=lambda result: result.seat)
        if len(results) > 1:
            results.append(mean_over_seats(results))
    return Phase(title, (when or f"step {matches[0].step}") if matches else "not recorded yet", grouped)


def cell(result: MatchResult, measure: str) -> Cell:
    value = getattr(result, measure)
    interval = ""
    if not result.exact and result.episodes:
        low, high = wilson(value * result.episodes, result.episodes)
        interval = f"{percent_digits(low)} to {percent_digits(high)}"
    return Cell(percent(value), interval, value > 0 and measure in ("loss", "illegal", "truncated"))


def size(result: MatchResult) -> str:
    if result.exact:
        return f"exact: {count(result.episodes)} leaves"
    return f"{count(result.episodes)} {'games' if result.opponent else 'tasks'}"


def seats_of(listed: Sequence[Phase], pairing: Pairing) -> list[int]:
    """The seats of a pairing in any phase, the mean over seats last."""
    seats = {result.seat for phase in listed for result in phase.results.get(pairing, [])}
    return sorted(seats, key=lambda seat: (seat == BOTH_SEATS, seat))


def result_at(phase: Phase, pairing: Pairing, seat: int) -> MatchResult | None:
    return next((r for r in phase.results.get(pairing, []) if r.seat == seat), None)


# Several runs side by side.

Runs = Sequence[RunData]


def all_pairings(runs: Runs) -> list[Pairing]:
    return list(dict.fromkeys(pairing for run in runs for pairing in pairings(run)))


def final_rows(runs: Runs, last: Sequence[Phase]) -> list[list[dict[str, Any]]]:
    """By pairing, a row for each seat with the last result of each run."""
    return [
        [
            {"pairing": pairing, "seat": seat, "results": [_result(phase, pairing, seat) for phase in last]}
            for seat in seats
        ]
        for pairing in all_pairings(runs)
        if (seats := seats_of(last, pairing))
    ]


def _result(phase: Phase, pairing: Pairing, seat: int) -> MatchResult | None:
    alone = phase.results.get(pairing, [])
    return alone[0] if seat == BOTH_SEATS and len(alone) == 1 else result_at(phase, pairing, seat)


def recipe_differences(runs: Runs) -> list[tuple[str, list[str]]]:
    """Every recipe key that differs, with each value, such as ("context.limit", ["72", "120"]); "–" if missing."""
    trees = [dict(_flat(run.config.model_dump())) if run.config else {} for run in runs]
    keys = list(dict.fromkeys(key for tree in trees for key in tree))
    values = {key: [tree.get(key, "–") for tree in trees] for key in keys}
    return [(shown(key, 80), found) for key, found in values.items() if len(set(found)) > 1]


def _flat(value: Any, key: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict) and value:
        return [pair for name, inner in value.items() for pair in _flat(inner, f"{key}.{name}" if key else name)]
    return [(key, shown(str(value), 200))]


DURING = ("start", "warm_start", "train")
"""Phases that evaluate the weights of their own step; the final one evaluates the best weights."""
COLORS = {"win": BLUE, "draw": GREY, "loss": ORANGE}
EXACT = "Exact: every possible reply of the opponent was tried."
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


def _shares(curve: Sequence[RecordedMatch], name: str, label: str, color: str, **bars: Any) -> dict[str, Any]:
    """A line of shares, with error bars unless they are exact."""
    points = [(match.step, float(getattr(match.result, name))) for match in curve]
    trace = line(label, points, color, mode="lines+markers", hovertemplate="%{y:.2%}")
    if not curve[0].result.exact:
        trace["error_y"] = error_bars((value for _, value in points), intervals(curve, name), **bars)
    return trace


def _title(pairing: Pairing) -> str:
    return f"Against {opponent_name(*pairing)}" if pairing[0] else "On held-out tasks"


def strength_figures(data: RunData) -> list[Figure]:
    return [_strength_figure(data, number, pairing) for number, pairing in enumerate(pairings(data))]


def _strength_figure(data: RunData, number: int, pairing: Pairing) -> Figure:
    opponent, exact = pairing
    curve = curve_of(data, pairing)
    if not curve:
        return Figure(f"strength-{number}", _title(pairing), "", None)
    games = max(match.result.episodes for match in curve)
    how = f"Each point: {count(games)} {'games' if opponent else 'tasks'}. Bars are 95 % intervals."
    top = enlarged_range([match.result.loss for match in curve])
    spec = {"data": _traces(curve, enlarge=top > 0), "layout": _layout(data, curve, top)}
    return Figure(f"strength-{number}", _title(pairing), EXACT if exact else how, spec)


def _traces(curve: Sequence[RecordedMatch], enlarge: bool) -> list[dict[str, Any]]:
    is_game = bool(curve[0].result.opponent)
    names = {"win": "win", "draw": "draw", "loss": "loss"} if is_game else {"win": "solved", "loss": "not solved"}
    seats = sorted({match.result.seat for match in curve})
    traces = []
    for place, seat in enumerate(seats):
        own = [match for match in curve if match.result.seat == seat]
        suffix = f", {seat_name(seat).removeprefix('moves ')}" if len(seats) > 1 else ""
        for name, word in names.items():
            trace = _shares(own, name, word + suffix, COLORS[name], thickness=1, width=2)
            trace["line"]["dash"] = DASHES[place % 4]
            traces.append(trace | {"marker": {"size": 6, "symbol": SYMBOLS[place % 4]}, "legendgroup": trace["name"]})
        if enlarge:
            traces.append({**traces[-1], "yaxis": "y2", "showlegend": False, "meta": AGAIN})
    return traces


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
    traces = [
        {**trace, "meta": {**trace.get("meta", {}), "choice": choice}, "visible": choice == 0}
        for choice, name in enumerate(order)
        for run, curve in enumerate(curves)
        if curve
        for trace in _run_traces(runs, run, curve, name)
    ]
    axis = percent_axis(title={"text": "share of games" if opponent else "share of tasks"}, range=[-0.03, 1.03])
    spec = {"data": traces, "layout": layout(runs, "", yaxis=axis)}
    how = EXACT if exact else "Shaded: 95 % intervals (Wilson)."
    return Figure(f"strength-{number}", title, how, spec, tuple(names[name] for name in order))


def _run_traces(runs: Runs, run: int, curve: Sequence[RecordedMatch], name: str) -> list[dict[str, Any]]:
    color, label = color_of(run, 0, len(runs)), label_of(runs, run)
    group = {"legendgroup": f"{run} {name}"}
    own = _shares(curve, name, label, color, visible=False) | group
    if curve[0].result.exact:
        return [own]
    bounds = intervals(curve, name)
    edges = [(match.step, low) for match, (low, _) in zip(curve, bounds, strict=True)]
    edges += [(match.step, high) for match, (_, high) in zip(curve[::-1], bounds[::-1], strict=True)]
    area = {"fill": "toself", "fillcolor": faint(color, 0.15), "hoverinfo": "skip", "showlegend": False, "meta": AGAIN}
    return [line(label, edges, color, {"width": 0}, mode="lines", **area, **group), own]
