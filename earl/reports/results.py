"""Evaluation results as tables: opponent × seat by phase of one run, or by run. Pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from earl.formats import percent, percent_digits
from earl.matches import BOTH_SEATS, OUTCOMES, MatchResult, by_opponent, mean_over_seats
from earl.reports import figures
from earl.reports.data import ReportedRun
from earl.reports.figures import Figure, Runs
from earl.reports.html import count, nowrap, shown
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


def pairings(data: ReportedRun) -> list[Pairing]:
    order = data.config.evaluate.opponents if data.config else []
    met = {(match.result.opponent, match.result.exact) for match in data.numbers.matches}
    return sorted(met, key=lambda pair: (order.index(pair[0]) if pair[0] in order else len(order), *pair))


def phases(data: ReportedRun) -> list[Phase]:
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


def words(data: ReportedRun) -> Words:
    met = pairings(data)
    if met and not any(opponent for opponent, _ in met):
        return Words("Played on", False, [("win", "Solved"), ("loss", "Not solved"), *_LIMITS])
    return Words("Opponent", True, [("win", "Win"), ("draw", "Draw"), ("loss", "Loss"), *_LIMITS])


def _last(matches: Iterable[RecordedMatch], phase: str) -> list[RecordedMatch]:
    chosen = [match for match in matches if match.phase == phase]
    last = max((match.step for match in chosen), default=0)
    return [match for match in chosen if match.step == last]


def _phase(title: str, matches: Sequence[RecordedMatch], when: str = "") -> Phase:
    grouped = by_opponent(match.result for match in matches)
    for results in grouped.values():
        if len(results) > 1:
            results.append(mean_over_seats(results))
    return Phase(title, (when or f"step {matches[0].step}") if matches else "not recorded yet", grouped)


def cell(result: MatchResult, measure: str) -> Cell:
    value, low, high = result.share(measure)
    interval = ""
    if not result.exact and result.episodes:
        interval = f"{percent_digits(low)} to {percent_digits(high)}"
    return Cell(nowrap(percent(value)), interval, value > 0 and measure in ("loss", "illegal", "truncated"))


def seats_of(listed: Sequence[Phase], pairing: Pairing) -> list[int]:
    """The seats of a pairing in any phase, the mean over seats last."""
    seats = {result.seat for phase in listed for result in phase.results.get(pairing, [])}
    return sorted(seats, key=lambda seat: (seat == BOTH_SEATS, seat))


def result_at(phase: Phase, pairing: Pairing, seat: int) -> MatchResult | None:
    return next((r for r in phase.results.get(pairing, []) if r.seat == seat), None)


# Several runs side by side.


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
COLORS = {
    **{"win": figures.BLUE, "draw": figures.GREY, "loss": figures.ORANGE, "optimal": figures.GREEN},
    **{"value_lost": figures.PURPLE, "forfeit": figures.AMBER, "illegal": figures.BROWN},
}
HOW = {"optimal": "optimal moves", "value_lost": "value lost per move", "forfeit": "forfeits", "illegal": "illegal"}
"""How games were played, where that was measured: shares, and a value that is 1 from a win to a draw."""
EXACT = "Exact: every possible reply of the opponent was tried."


def curve_of(data: ReportedRun, pairing: Pairing) -> list[RecordedMatch]:
    return [
        match
        for match in data.numbers.matches
        if (match.result.opponent, match.result.exact) == pairing and match.phase in DURING
    ]


def strength_figures(runs: Runs) -> list[Figure]:
    """One plot for each opponent and seat: a line per measure, or per run, and then the reader selects the measure."""
    listed: list[Figure] = []
    for pairing in all_pairings(runs):
        curves = [curve_of(run, pairing) for run in runs]
        for seat in sorted({match.result.seat for curve in curves for match in curve}):
            own = [[match for match in curve if match.result.seat == seat] for curve in curves]
            listed.append(_strength_figure(runs, len(listed), pairing, seat, own))
    return listed


def _strength_figure(
    runs: Runs, number: int, pairing: Pairing, seat: int, curves: Sequence[list[RecordedMatch]]
) -> Figure:
    opponent, exact = pairing
    title = f"Against {opponent_name(*pairing)}, {seat_name(seat)}" if opponent else "On held-out tasks"
    names = {"win": "wins", "draw": "draws", "loss": "losses"} if opponent else {"win": "solved", "loss": "not solved"}
    last = {name: max((getattr(curve[-1].result, name) for curve in curves if curve), default=0.0) for name in names}
    for name, word in HOW.items():  # those that are zero throughout would lie below others
        measured = [getattr(match.result, name) for curve in curves for match in curve]
        if any(measured) or (name == "optimal" and {*measured} - {None}):
            names[name] = word
    first = "draw" if last.get("draw", 0.0) > last["win"] else "win"  # a draw is the best result against perfect play
    order = [first, *(name for name in names if name != first)]
    several = len(runs) > 1
    traces = []
    for choice, name in enumerate(order):
        for run, curve in enumerate(curves):
            look = (figures.label_of(runs, run), figures.color_of(run)) if several else (names[name], COLORS[name])
            for trace in _run_traces(curve, name, *look):
                chosen = {"meta": {**trace.get("meta", {}), "choice": choice}, "visible": choice == 0}
                traces.append({**trace, **chosen} if several else trace)
    axis, games = {**figures.PERCENT, "range": [-0.03, 1.03]}, "games" if opponent else "tasks"
    spec = {"data": traces, "layout": figures.layout(runs, f"share of {games}", axis)}
    most = max(match.result.episodes for curve in curves for match in curve)
    how = f"Each point: {count(most)} {games}; alike ones count once. Shaded: 95 % intervals (Wilson)."
    choices = tuple(names[name] for name in order) if several else ()
    return Figure(f"strength-{number}", title, EXACT if exact else how, spec, choices)


def _run_traces(curve: Sequence[RecordedMatch], name: str, label: str, color: str) -> list[dict[str, Any]]:
    """A line of shares, where they were measured, with their 95 % intervals unless they are exact."""
    curve = [match for match in curve if getattr(match.result, name) is not None]
    if not curve:
        return []
    rated = name in OUTCOMES
    shares = [match.result.share(name) if rated else (getattr(match.result, name),) * 3 for match in curve]
    points = [(match.step, share) for match, (share, _, _) in zip(curve, shares, strict=True)]
    group: dict[str, Any] = {"legendgroup": f"{label} {color} {name}"}
    own = figures.line(label, points, color, mode="lines+markers", hovertemplate="%{y:.2%}", **group)
    if not rated or curve[0].result.exact:
        return [own]
    low, high = ([(match.step, ends[side]) for match, ends in zip(curve, shares, strict=True)] for side in (1, 2))
    sides = {
        "array": figures.finite(most - share for share, _, most in shares),
        "arrayminus": figures.finite(share - least for share, least, _ in shares),
    }
    own["error_y"] = {"type": "data", "symmetric": False, "visible": False, **sides}
    area = {"fill": "toself", "fillcolor": figures.faint(color, 0.15), "hoverinfo": "skip", "showlegend": False}
    shade = figures.line(label, [*low, *reversed(high)], color, {"width": 0}, mode="lines", meta=figures.AGAIN, **area)
    return [shade | group, own]
