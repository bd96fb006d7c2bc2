"""The panels about contexts (growth towards the limit, tokens by author), stage times and events."""

import math
from datetime import datetime
from itertools import groupby, islice

from earl.cli.live.canvas import (
    BAD,
    DIM,
    PALETTE,
    WARN,
    Curve,
    Line,
    bar,
    column,
    duration,
    fit,
    percent,
    plot,
    safe,
    short,
    size,
    sparkline,
    whole_percent,
    wrapped,
)
from earl.cli.live.context import ShownForecast, authors, bands, forecasts, level, limits, truncation
from earl.cli.live.now import WARNINGS, Points, RunNow, evaluation, pace, score_curves, stage_table, step_seconds
from earl.cli.match_tables import by_opponent
from earl.matches import MatchResult, mean_over_seats
from earl.runs.summary import FINAL

LEAST_PLOT = 6
BESIDE = 38
"""Columns of a table of results beside its plot."""
SIGNALS = {
    "illegal_replies": ("illegal replies", percent),
    "zero_variance_groups": ("groups all alike", percent),
    "turns": ("turns", short),
    "entropy": ("entropy", short),
    "loss": ("loss", short),
    "grad_norm": ("gradient norm", short),
    "learning_rate": ("learning rate", short),
    "kl_to_sampler": ("KL to sampler", short),
}
WARM_SIGNALS = {
    "warm_start/entropy": ("entropy", short),
    "warm_start/grad_norm": ("gradient norm", short),
    "warm_start/learning_rate": ("learning rate", short),
}


def strength_title(run: RunNow) -> str:
    tasks = any(not match.result.opponent for match in run.numbers.matches[:1])
    return "Strength: share of tasks solved" if tasks else "Strength: wins + half the draws, by opponent"


def strength(run: RunNow, width: int, height: int, ascii_only: bool) -> list[Line]:
    step, phase, results = evaluation(run)
    if not results:
        return [[("not evaluated yet", DIM)]]
    groups = by_opponent(results)
    curves = {
        opponent: Curve(chr(ord("a") + number % 26), "", points, PALETTE[number % len(PALETTE)])
        for number, (opponent, points) in enumerate(score_curves(run.numbers.matches).items())
    }
    when = "best weights:" if phase == FINAL else f"at step {step}:"
    low = height - len(groups) - 1 < LEAST_PLOT  # then the table goes beside the plot
    across = BESIDE if low else width
    table = [_result_head(when, groups[0][0], across, low)]
    table += [_result(mean_over_seats(seats), curves.get(seats[0].opponent), across, low) for seats in groups]
    drawn = plot(
        [*curves.values()],
        width - BESIDE - 2 if low else width,
        height if low else height - len(table),
        ascii_only=ascii_only,
        bounds=(0.0, 1.0),
        until=run.step,
        shown=whole_percent,
        legend=False,
    )
    if not low or not drawn:
        return [*drawn, *table]
    right = [*table, *[[]] * len(drawn)]
    return [[*fit(line, width - BESIDE), *right[number]] for number, line in enumerate(drawn)]


def _shares(mean: MatchResult, low: bool) -> dict[str, float]:
    shares = {"win": mean.win, "draw": mean.draw, "loss": mean.loss} if mean.opponent else {"solved": mean.win}
    return shares if low and mean.opponent else {**shares, "illegal": mean.illegal}


def _result_head(when: str, first: MatchResult, width: int, low: bool) -> Line:
    names = _shares(first, low)
    return [(column(when, width - 8 * len(names)), DIM), *((f"{name:>8}", DIM) for name in names)]


def _result(mean: MatchResult, curve: Curve | None, width: int, low: bool) -> Line:
    shares = _shares(mean, low)
    mark, color = (curve.mark, curve.color) if curve else (" ", "")
    name = column(f"{mark} {safe(mean.opponent) or 'held-out tasks'}", width - 8 * len(shares))
    cells = [(f"{percent(share):>8}", BAD if key == "illegal" and share else "") for key, share in shares.items()]
    return [(name, color), *cells]


def signals(run: RunNow, width: int, height: int, ascii_only: bool) -> list[Line]:
    """A plot of the reward (of the imitation loss in the warm start), and sparklines of the other metrics."""
    warm = not run.series("reward")
    name, label = ("warm_start/loss", "loss of imitation") if warm else ("reward", "reward")
    rows = [
        (title, shown(run.last(metric)), [value for _, value in run.series(metric)])
        for metric, (title, shown) in (WARM_SIGNALS if warm else SIGNALS).items()
        if run.series(metric)
    ]
    rows = rows[: max(2, height - LEAST_PLOT - 4)]
    curve = Curve("a", f"{label} {short(run.last(name))}", run.series(name), PALETTE[0])
    drawn = plot([curve], width, height - len(rows), ascii_only=ascii_only, until=run.step)
    small: list[Line] = [
        [(column(title, 17), ""), (f"{number:>8}  ", ""), (sparkline(values, width - 27, ascii_only), PALETTE[0])]
        for title, number, values in rows
    ]
    return [*drawn, *small] if height - len(rows) >= LEAST_PLOT else small


HEAD = 18
COURSE = 200
WRAPPED = 3


def stages(run: RunNow, width: int, height: int, ascii_only: bool) -> list[Line]:
    table = stage_table(run)
    if not table:
        return [[("nothing recorded yet", DIM)]]
    whole = sum(mean for _, _, mean in table) or 1.0
    wide = max(4, width - 50)
    lines: list[Line] = [[(f"{column('stage', 16)}{'last':>10}{'per step':>10}{'part':>9}", DIM)]]
    for number, (stage, last, mean) in enumerate(table[: max(1, height - 2)]):
        color = PALETTE[number % len(PALETTE)]
        cells = f"{duration(last):>10}{duration(mean):>10}{percent(mean / whole):>9}  "
        lines.append([(column(safe(stage), 16), color), (cells, ""), (bar(mean / whole, wide, ascii_only), color)])
    return [*lines, _step_line(run, width, ascii_only)][:height]


def _step_line(run: RunNow, width: int, ascii_only: bool) -> Line:
    seconds = dict(step_seconds(run, COURSE))
    tokens = [(value, seconds[step]) for step, value in run.series("tokens")[-10:] if seconds.get(step)]
    rate = f", {short(sum(n for n, _ in tokens) / sum(s for _, s in tokens))} tokens/s" if tokens else ""
    told = f"{duration(pace(run))} per step{rate}  "
    return [(told, ""), (sparkline([s for _, s in seconds.items()], width - len(told), ascii_only), PALETTE[0])]


def events(run: RunNow, width: int, height: int, ascii_only: bool) -> list[Line]:
    """Read problems first, then events, the latest first; repeated events are merged."""
    del ascii_only
    lines: list[Line] = [[(column(f"problem: {safe(problem)}", width), BAD)] for problem in run.problems]
    alike = groupby(reversed(run.numbers.events), key=lambda event: (event.kind, event.message))
    for (kind, message), same in islice(alike, height):
        event, *others = same
        style = WARN if kind in WARNINGS else ""
        times = f" x{len(others) + 1}" if others else ""
        head = f"{_clock(event.time, run.time)} step {event.step}"
        told = f"{safe(kind)}{times}: {safe(message)}"
        most = WRAPPED if kind in WARNINGS else 1
        for number, part in enumerate(wrapped(told, width - HEAD, most)):
            lines.append([(column("" if number else head, HEAD), DIM), (part, style)])
    return lines[:height] or [[("nothing has happened yet", DIM)]]


def _clock(time: float, now: float) -> str:
    return datetime.fromtimestamp(time).strftime("%H:%M" if now - time < 12 * 3600 else "%d %b")


MARKS = {"p50": ("a", "cyan"), "p95": ("b", "green"), "p99": ("c", "yellow"), "max": ("d", "magenta")}
FAR = 3.0
"""A limit this many times above the longest context would flatten the curves, so it is only written in words."""
AHEAD = 0.35
"""Largest share of the axis for a forecast, relative to the steps done."""
MEMORY = {"memory/kv_bytes": "KV cache", "memory/activation_bytes": "activations"}


def context(run: RunNow, width: int, height: int, ascii_only: bool) -> list[Line]:
    found = bands(run)
    if not found:
        return [[("nothing recorded yet: contexts are measured from the first step of RL on", DIM)]]
    told = [*_truncation_lines(run), *_forecast_lines(run), *_memory_lines(run)][: max(1, height - LEAST_PLOT - 2)]
    longest = max((value for points in found.values() for _, value in points if math.isfinite(value)), default=0.0)
    limit, ahead = limits(run), _ahead(run, found)
    near = bool(limit) and limit[-1][1] <= FAR * longest
    curves = [
        *([Curve("=", f"limit {short(limit[-1][1])}", limit, BAD, dashed=True)] if near else []),
        *(
            Curve(MARKS[name][0], f"{name} {short(points[-1][1])}", points, MARKS[name][1], peak=name == "max")
            for name, points in found.items()
        ),
        *([ahead] if ahead else []),
    ]
    until = max(run.step, min(ahead.points[-1][0], run.step * (1 + AHEAD))) if ahead else run.step
    top = 1.05 * max(longest, *(value for _, value in limit)) if near else 1.05 * longest
    lines = plot(curves, width, height - len(told), ascii_only=ascii_only, bounds=(0.0, top), until=until)
    if limit and not near and lines:
        lines[0] = [*lines[0], (f"  limit {short(limit[-1][1])}, above", BAD)]
    return [*lines, *told]


def _ahead(run: RunNow, found: dict[str, Points]) -> Curve | None:
    """A line from the last context to the forecast's median step at the limit, for the highest quantile with one."""
    limit = limits(run)
    for forecast in reversed(forecasts(run)):
        points = found.get(forecast.quantile)
        if points and limit and run.step < forecast.median < math.inf:
            end = (forecast.median, limit[-1][1])
            return Curve("~", f"forecast {forecast.quantile}", [points[-1], end], MARKS[forecast.quantile][1])
    return None


def _forecast_lines(run: RunNow) -> list[Line]:
    """When each quantile reaches the limit, the highest quantile first; unlikely ones share a line."""
    coming = [forecast for forecast in reversed(forecasts(run)) if math.isfinite(forecast.early)]
    lines: list[Line] = [_forecast_line(run, forecast) for forecast in coming if math.isfinite(forecast.median)]
    unlikely = [forecast for forecast in coming if not math.isfinite(forecast.median)]
    if unlikely:
        names, first = ", ".join(f.quantile for f in unlikely), min(f.early for f in unlikely)
        lines.append([(f"{names}: the limit from step {first:.0f} on, but more likely not", DIM)])
    return lines or [[(_quiet(run), DIM)]]


def _quiet(run: RunNow) -> str:
    measured = level(run)
    what = "longest context per episode" if measured == "window" else "episode"
    told = "the limit is not forecast to be reached" if forecasts(run) else "no forecast"
    return f"{told}; {what}: {short(run.last(f'context/{measured}/mean'))} tokens on average"


def _forecast_line(run: RunNow, forecast: ShownForecast) -> Line:
    """Example: p95 reaches the limit at step 340 (80%: 310 to 400)."""
    if forecast.median <= run.step:
        return [(f"{forecast.quantile} has reached the limit", WARN)]
    late = f"{forecast.late:.0f}" if math.isfinite(forecast.late) else "never"
    interval = f"(80%: {forecast.early:.0f} to {late})"
    within = run.steps is None or forecast.early <= run.steps
    return [
        (f"{forecast.quantile} reaches the limit at step {forecast.median:.0f} {interval}", WARN if within else DIM)
    ]


def _truncation_lines(run: RunNow) -> list[Line]:
    causes = truncation(run)
    if not causes:
        return []
    told = ", ".join(f"{percent(share)} {cause}" for cause, share in causes.items())
    return [[(f"cut off: {told}", BAD)]]


def _memory_lines(run: RunNow) -> list[Line]:
    told = [f"{name} {size(run.last(metric))}" for metric, name in MEMORY.items() if run.last(metric) > 0]
    return [[(f"memory implied: {', '.join(told)}", DIM)]] if told else []


def written_by(run: RunNow, width: int, height: int, ascii_only: bool) -> list[Line]:
    found = authors(run)
    if not found:
        return [[("nothing recorded yet", DIM)]]
    last = {name: points[-1][1] for name, points in found.items()}
    total, totals = sum(last.values()) or 1.0, _totals(found)
    wide = max(4, min(30, (width - 32) // 2))
    head = f"{column('author', 13)}{'tokens':>8}{'share':>8}  {column('', wide)}  course"
    lines: list[Line] = [[(column(head, width), DIM)]]
    for number, (name, points) in enumerate(found.items()):
        color, share = PALETTE[number % len(PALETTE)], last[name] / total
        numbers = f"{short(last[name]):>8}{percent(share):>8}  "
        shares = [value / totals[step] if totals[step] else math.nan for step, value in points]
        course = sparkline(shares, width - 33 - wide, ascii_only, (0.0, 1.0))
        lines.append([(column(name, 13), color), (numbers, ""), (f"{bar(share, wide, ascii_only)}  {course}", color)])
    sums = list(totals.values())
    told = f"{column('all', 13)}{short(sums[-1]):>8}  {'':{wide + 8}}  "
    return [*lines, [(told + sparkline(sums, width - 33 - wide, ascii_only), "")]][:height]


def _totals(found: dict[str, Points]) -> dict[int, float]:
    totals: dict[int, float] = {}
    for points in found.values():
        for step, value in points:
            totals[step] = totals.get(step, 0.0) + value
    return totals
