"""Lays out the live view: a header, as many panels as fit, and a footer with keys.

A panel's function gets the run and its height, and returns what stands below its heading.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, groupby, islice
from textwrap import wrap

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.layout import Layout
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from earl.cli.live import now
from earl.cli.live.canvas import (
    BAD,
    DIM,
    GOOD,
    PALETTE,
    WARN,
    Curve,
    Plot,
    Sparkline,
    bar,
    columns,
    safe,
)
from earl.cli.live.now import WARNINGS, Forecast, Points, RunNow, forecasts
from earl.formats import duration, percent, short, size
from earl.matches import by_opponent, mean_over_seats
from earl.runs.summary import FINAL, tool_use

STYLES = {**dict.fromkeys(("training", "warm start", "last evaluation", "finished"), GOOD), "starting": ""}
"""By phase; others are warnings."""


def header(run: RunNow, width: int) -> list[RenderableType]:
    """One line each."""
    doing = told = now.phase(run)
    if run.state == "finished":
        told = next((safe(event.message) for event in reversed(run.numbers.events) if event.kind == "finish"), doing)
    elif doing == "stopped":
        told = "stopped; earl train --resume goes on"
    ago = "" if run.state == "finished" else f"  last change {duration(max(1, int(run.time - run.changed)))} ago"
    env = f"  {safe(run.config.env.name)}" if run.config else ""
    first = Text.assemble((safe(run.name), "bold"), env, (f"  {told}", STYLES.get(doing, WARN)), (ago, DIM))
    return [first, _progress(run), *_alerts(run, width)]


def _progress(run: RunNow) -> RenderableType:
    if run.steps is None:
        return Text(f"step {run.step}")
    done = run.step / run.steps if run.steps else 1.0
    told, left = f"step {run.step}/{run.steps}", now.seconds_left(run)
    after = percent(done)
    after += f", {duration(now.pace(run))} per step" if not math.isnan(now.pace(run)) else ""
    after += f", about {duration(left)} left" if left > 0 else ""
    line = columns(len(told), 0, len(after))
    line.add_row(told, bar(done, GOOD), after)
    return line


def _alerts(run: RunNow, width: int) -> list[Text]:
    alerts = [Text(f"problem: {safe(problem)}", BAD) for problem in run.problems[:1]]
    if now.silence(run):
        alerts.insert(0, Text(f"nothing was written for {duration(now.silence(run))}: the run is slow or stuck", BAD))
    for event in [event for event in reversed(run.numbers.events) if event.kind in WARNINGS][:1]:
        told = f"{event.kind} at step {event.step}: {safe(event.message)}"
        alerts += [Text(part, WARN) for part in wrap(told, max(8, width))[:2]]
    return alerts


Drawn = list[RenderableType]
NOTHING: Drawn = [Text("nothing recorded yet", DIM)]
LEAST_PLOT = 6
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


def strength(run: RunNow, height: int) -> Drawn:
    step, phase, results = now.evaluation(run)
    if not results:
        return [Text("not evaluated yet", DIM)]
    curves = {
        opponent: Curve(chr(ord("a") + number % 26), "", points, PALETTE[number % len(PALETTE)])
        for number, (opponent, points) in enumerate(now.score_curves(run.numbers.matches).items())
    }
    means = [mean_over_seats(seats) for seats in list(by_opponent(results).values())[: max(1, height - 4)]]
    names = {"win": "win", "draw": "draw", "loss": "loss"} if means[0].opponent else {"win": "solved"}
    names["illegal"] = "illegal"
    table = columns(0, *[-8] * len(names))
    table.add_row("best weights:" if phase == FINAL else f"at step {step}:", *names.values(), style=DIM)
    for mean in means:
        curve = curves.get(mean.opponent, Curve(" ", "", (), ""))
        shares = [(percent(getattr(mean, name)), BAD if name == "illegal" and mean.illegal else "") for name in names]
        opponent = Text(f"{curve.mark} {safe(mean.opponent) or 'held-out tasks'}", curve.color)
        table.add_row(opponent, *(Text(*share) for share in shares))
    drawn = [curves[mean.opponent] for mean in means if mean.opponent in curves]
    return [Plot(drawn, height - table.row_count, (0.0, 1.0), run.step, "{:.0%}".format, legend=False), table]


def signals(run: RunNow, height: int) -> Drawn:
    """A plot of the reward (of the imitation loss in the warm start), and sparklines of the other metrics."""
    warm = "" if run.series("reward") else "warm_start/"
    name, label = ("warm_start/loss", "loss of imitation") if warm else ("reward", "reward")
    shown = [metric for metric in SIGNALS if run.series(warm + metric) and warm + metric != name]
    table = columns(17, -8, 0)
    for metric in shown[: max(2, height - LEAST_PLOT - 4)]:
        title, form = SIGNALS[metric]
        values = [value for _, value in run.series(warm + metric)]
        table.add_row(title, form(values[-1]), Sparkline(values))
    curve = Curve("a", f"{label} {short(run.last(name))}", run.series(name), PALETTE[0])
    return [Plot([curve], height - table.row_count, until=run.step), table]


COURSE = 200


def stages(run: RunNow, height: int) -> Drawn:
    found = now.stage_table(run)
    if not found:
        return NOTHING
    whole = sum(mean for _, _, mean in found) or 1.0
    table = columns(16, -12, -12, -8, 0)
    table.add_row("stage", "last", "per step", "part", style=DIM)
    for number, (stage, last, mean) in enumerate(found[: max(1, height - 2)]):
        color = PALETTE[number % len(PALETTE)]
        times = [duration(value).replace("µ", "u") for value in (last, mean)]  # for terminals without UTF-8
        table.add_row(Text(safe(stage), color), *times, percent(mean / whole), bar(mean / whole, color))
    seconds = dict(now.step_seconds(run, COURSE))
    tokens = [(value, seconds[step]) for step, value in run.series("tokens")[-10:] if seconds.get(step)]
    rate = f", {short(sum(n for n, _ in tokens) / sum(s for _, s in tokens))} tokens/s" if tokens else ""
    told = f"{duration(now.pace(run))} per step{rate}"
    course = columns(len(told) + 1, 0)
    course.add_row(told, Sparkline([*seconds.values()]))
    return [table, course, *_tools(run)]


def _tools(run: RunNow) -> Drawn:
    """One line about the last step's calls."""
    use = tool_use({name: points[-1:] for name, points in run.numbers.metrics.items()})
    told = [
        f"{safe(tool)} {short(own.get('calls', 0))} calls, wait {duration(own.get('queue_seconds', 0))}, "
        f"run {duration(own.get('run_seconds', 0))}"
        for tool, own in use.items()
    ]
    cores = run.last("tool_core_use")
    told += [] if math.isnan(cores) else [f"cores {percent(cores)} in use"]
    return [Text(f"tools: {'; '.join(told)}".replace("µ", "u"), no_wrap=True)] if use else []


def events(run: RunNow, height: int) -> Drawn:
    """Read problems first, then events, the latest first; repeated events are merged, warnings wrapped."""
    table = columns(17, 0)
    alike = groupby(reversed(run.numbers.events), key=lambda event: (event.kind, event.message))
    for (kind, message), same in islice(alike, height):
        event, *others = same
        times = f" x{len(others) + 1}" if others else ""
        warning = kind in WARNINGS
        told = Text(f"{safe(kind)}{times}: {safe(message)[:300]}", WARN if warning else "", no_wrap=not warning)
        clock = datetime.fromtimestamp(event.time).strftime("%H:%M" if run.time - event.time < 12 * 3600 else "%d %b")
        table.add_row(Text(f"{clock} step {event.step}", DIM), told)
    problems = [Text(f"problem: {safe(problem)}", BAD) for problem in run.problems]
    return [*problems, table] if problems or table.row_count else [Text("nothing has happened yet", DIM)]


MARKS = {"p50": ("a", "cyan"), "p95": ("b", "green"), "p99": ("c", "yellow"), "max": ("d", "magenta")}
FAR = 3.0
"""A limit this many times above the longest context would flatten the curves, so it is only written in words."""
AHEAD = 1.35
"""Largest end of the axis for a forecast, relative to the steps done."""
MEMORY = {"memory/kv_bytes": "KV cache", "memory/activation_bytes": "activations"}


def context(run: RunNow, height: int) -> Drawn:
    found = now.quantiles(run)
    if not found:
        return [Text("nothing recorded yet: contexts are measured from the first step of RL on", DIM)]
    told = [*_truncated(run), *_forecasts(run), *_memory(run)][: max(1, height - LEAST_PLOT)]
    longest = max((value for points in found.values() for _, value in points if math.isfinite(value)), default=0.0)
    limit, top, curves = run.series("context/limit"), longest, []
    if limit:
        near = limit[-1][1] <= FAR * longest
        top = max(longest, *(value for _, value in limit)) if near else longest
        label = f"limit {short(limit[-1][1])}{'' if near else ', above'}"
        curves.append(Curve("=", label, limit if near else (), BAD))
    for name, points in found.items():
        mark, color = MARKS[name]
        curves.append(Curve(mark, f"{name} {short(points[-1][1])}", points, color, peak=name == "max"))
    until: float = run.step
    if (ahead := _ahead(run, found, limit)) is not None:
        curves.append(ahead)
        until = min(ahead.points[-1][0], AHEAD * run.step)
    return [Plot(curves, height - len(told), (0.0, 1.05 * top), until), *told]


def _ahead(run: RunNow, found: dict[str, Points], limit: Points) -> Curve | None:
    """A line from the last context to the forecast's median step at the limit, for the highest quantile with one."""
    for name, (_, median, _) in reversed(forecasts(run).items()):
        points = found.get(name)
        if points and limit and run.step < median < math.inf:
            return Curve("~", f"forecast {name}", [points[-1], (median, limit[-1][1])], MARKS[name][1])
    return None


def _forecasts(run: RunNow) -> list[Text]:
    """When each quantile reaches the limit, the highest quantile first; unlikely ones share a line."""
    coming = {name: own for name, own in reversed(forecasts(run).items()) if math.isfinite(own[0])}
    lines = [_forecast(run, name, own) for name, own in coming.items() if math.isfinite(own[1])]
    if unlikely := [name for name, own in coming.items() if not math.isfinite(own[1])]:
        first = min(coming[name][0] for name in unlikely)
        lines.append(Text(f"{', '.join(unlikely)}: the limit from step {first:.0f} on, but more likely not", DIM))
    if lines:
        return lines
    told = "the limit is not forecast to be reached" if forecasts(run) else "no forecast"
    mean = short(run.last("context/window/mean"))
    return [Text(f"{told}; longest context per episode: {mean} tokens on average", DIM)]


def _forecast(run: RunNow, name: str, forecast: Forecast) -> Text:
    """Example: p95 reaches the limit at step 340 (80%: 310 to 400)."""
    early, median, late = forecast
    if median <= run.step:
        return Text(f"{name} has reached the limit", WARN)
    interval = f"(80%: {early:.0f} to {f'{late:.0f}' if math.isfinite(late) else 'never'})"
    within = run.steps is None or early <= run.steps
    return Text(f"{name} reaches the limit at step {median:.0f} {interval}", WARN if within else DIM)


def _truncated(run: RunNow) -> list[Text]:
    told = ", ".join(f"{percent(share)} {cause}" for cause, share in now.truncation(run).items())
    return [Text(f"cut off: {told}", BAD)] if told else []


def _memory(run: RunNow) -> list[Text]:
    told = ", ".join(f"{name} {size(run.last(metric))}" for metric, name in MEMORY.items() if run.last(metric) > 0)
    return [Text(f"memory implied: {told}", DIM)] if told else []


def written_by(run: RunNow, height: int) -> Drawn:
    del height
    found = now.authors(run)
    if not found:
        return NOTHING
    totals: defaultdict[int, float] = defaultdict(float)
    for step, value in chain(*found.values()):
        totals[step] += value
    last = {name: points[-1][1] for name, points in found.items()}
    total = sum(last.values()) or 1.0
    table = columns(13, -8, -8, 0, 0)
    table.add_row("author", "tokens", "share", "", "course", style=DIM)
    for number, (name, points) in enumerate(found.items()):
        color, share = PALETTE[number % len(PALETTE)], last[name] / total
        shares = [value / totals[step] if totals[step] else math.nan for step, value in points]
        course = Sparkline(shares, color, (0.0, 1.0))
        table.add_row(Text(name, color), short(last[name]), percent(share), bar(share, color), course)
    sums = [totals[step] for step in sorted(totals)]
    table.add_row("all", short(sums[-1]), "", "", Sparkline(sums, ""))
    return [table]


@dataclass(frozen=True, slots=True)
class Panel:
    name: str
    title: str
    draw: Callable[[RunNow, int], Drawn]
    ratio: int = 3
    """Its share of the height; plots gain more by height than tables."""


PANELS = (
    Panel("strength", "Strength: wins + half the draws, or tasks solved", strength),
    Panel("training", "Training", signals),
    Panel("context", "Context in tokens", context),
    Panel("authors", "Tokens by author", written_by, 2),
    Panel("time", "Time of a step", stages, 2),
    Panel("events", "Events", events, 2),
)
WIDTH, HEIGHT = 58, 10
GAP = 2


@dataclass(frozen=True, slots=True)
class PanelGrid:
    columns: int
    pages: tuple[tuple[int, ...], ...]


def arrange(width: int, height: int, count: int) -> PanelGrid:
    """Choose the grid for a terminal: as many readable panels per page as fit."""
    columns = min(3, max(1, (width + GAP) // (WIDTH + GAP)))
    most = max(1, height // HEIGHT) * columns
    num_pages = math.ceil(count / most)
    size = math.ceil(count / num_pages)
    pages = tuple(tuple(range(first, min(first + size, count))) for first in range(0, count, size))
    return PanelGrid(min(columns, size), pages)


def draw(run: RunNow, width: int, height: int, page: int = 0) -> Layout:
    """Fills a terminal of `height` lines of `width` columns. `page` wraps around."""
    head = header(run, width)[: max(1, height - 1)]
    grid = arrange(width, max(0, height - len(head) - 1), len(PANELS))
    page %= len(grid.pages)
    whole = Layout()
    whole.split_column(
        Layout(_cropped(head), size=len(head)),
        body(run, grid.pages[page], grid.columns),
        Layout(_cropped([_footer(grid, page, width)]), size=1),
    )
    return whole


def _cropped(lines: Sequence[RenderableType]) -> RenderableType:
    table = columns(0)
    for line in lines:
        table.add_row(line)
    return table


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A panel in its place of the layout, which determines its height."""

    run: RunNow
    panel: Panel

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        height, rule = options.height or 1, "-" if options.ascii_only else "─"
        heading = Text.assemble((f"{rule} ", DIM), (self.panel.title, "bold"), (f" {rule * options.max_width}", DIM))
        drawn = Group(heading, *self.panel.draw(self.run, height - 1))
        return console.render(drawn, options.update(no_wrap=True, overflow="crop"))


def body(run: RunNow, shown: Sequence[int], columns: int) -> Layout:
    """The panels `shown`, row by row; panels of an incomplete last row are wider."""
    rows = []
    for first in range(0, len(shown), columns):
        panels = [PANELS[number] for number in shown[first : first + columns]]
        row = Layout(ratio=max(panel.ratio for panel in panels))
        row.split_row(*(Padding(_Drawn(run, each), (0, int(each is not panels[-1]), 0, 0)) for each in panels))
        rows.append(row)
    whole = Layout()
    whole.split_column(*rows)
    return whole


def _footer(grid: PanelGrid, page: int, width: int) -> Text:
    quit_ = Text.assemble(("q", "bold"), (" quit", DIM))
    if len(grid.pages) == 1:
        return quit_
    names = [", ".join(PANELS[panel].name for panel in panels) for panels in grid.pages]
    tabs = [Text(f" {number + 1} {name} ", "reverse" if number == page else DIM) for number, name in enumerate(names)]
    if sum(map(len, tabs)) + len(tabs) > width - 12:
        tabs = [Text(f" {page + 1}/{len(names)} {names[page]} ", "reverse")]
    return Text.assemble(quit_, "  ", ("Tab", "bold"), " ", Text(" ").join(tabs))
