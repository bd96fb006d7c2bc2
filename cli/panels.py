"""The panels of `earl watch`: what a run's numbers come to, drawn as a header and as many panels as fit.

A panel's function gets the run and its height, and returns what stands below its heading.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import groupby, islice
from statistics import fmean
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.layout import Layout
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from earl.cli.match_tables import as_objects
from earl.cli.plot import DIM, Curve, Plot, Sparkline
from earl.cli.text import one_line
from earl.formats import duration, percent, short
from earl.matches import MatchResult, by_opponent, mean_over_seats
from earl.runs.summary import FINAL, StoredRun, tool_use
from earl.trajectory import Author

GOOD, WARN, BAD = "green", "yellow", "red"
PALETTE = ("cyan", "green", "magenta", "yellow", "blue", "white", "red")
"""Of the 16 colours that every terminal has, so that the user's theme applies."""
RECENT = 30
WARNINGS = ("forecast", "limit", "guard")
Drawn = list[RenderableType]


def phase(run: StoredRun) -> str:
    if run.state == "stopped":
        return "not started" if run.numbers.last_step is None and not run.numbers.events else "stopped"
    if run.state == "finished":
        return "finished"
    if run.numbers.last_step is None:
        return "starting"
    if run.steps is not None and run.step >= run.steps:
        return "last evaluation"
    return "warm start" if run.step < run.warm_steps else "training"


def stage_seconds(run: StoredRun) -> dict[str, float]:
    """Mean seconds of each stage over the last steps, whether they had it or not; the longest first."""
    first = max(0, run.step - RECENT)
    means = {
        stage: sum(value for step, value in points if step > first and math.isfinite(value)) / max(1, run.step - first)
        for stage, points in run.numbers.timings.items()
    }
    return dict(sorted(means.items(), key=lambda one: -one[1]))


def as_object(run: StoredRun) -> dict[str, Any]:
    """The run as JSON; NaN and infinity are null."""
    results = [match.result for match in run.last_evaluation]
    last = {name: points[-1] for name, points in sorted(run.numbers.metrics.items())}
    return {
        "run": run.name,
        "env": run.config.env.name if run.config else None,
        "state": run.state,
        "phase": phase(run),
        "step": run.step,
        "steps": run.steps,
        "changed": datetime.fromtimestamp(run.changed).astimezone().isoformat(timespec="seconds"),
        "evaluation": as_objects(results),
        "stages": stage_seconds(run),
        "metrics": {
            name: {"step": step, "value": value if math.isfinite(value) else None}
            for name, (step, value) in last.items()
        },
        "events": [asdict(event) for event in run.numbers.events[-20:]],
        "problems": run.problems,
    }


def safe(text: str) -> str:
    """Make untrusted text safe to print: one line, no control sequences, at most 1000 characters."""
    return one_line(text[:1000])


def columns(*widths: int) -> Table:
    """A table without lines: columns of these widths, flush right where negative; those of 0 share the rest."""
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    for width in widths:
        table.add_column(
            width=abs(width) or None,
            ratio=None if width else 1,
            justify="right" if width < 0 else "left",
            no_wrap=True,
            overflow="crop",
        )
    return table


def bar(share: float, color: str) -> ProgressBar:
    done = share if math.isfinite(share) else 0.0
    return ProgressBar(1.0, done, complete_style=color, finished_style=color, style=DIM)


def header(run: StoredRun) -> Drawn:
    """One line each: the run, its progress, and what is wrong with it."""
    doing = status = phase(run)
    if run.state == "finished":
        status = next((safe(event.message) for event in reversed(run.numbers.events) if event.kind == "finish"), doing)
    elif doing == "stopped":
        status = "stopped; earl train --resume goes on"
    ago = "" if run.state == "finished" else f"  last change {duration(max(1, int(time.time() - run.changed)))} ago"
    env = f"  {safe(run.config.env.name)}" if run.config else ""
    style = WARN if doing in ("stopped", "not started") else GOOD
    first = Text.assemble((safe(run.name), "bold"), env, (f"  {status}", style), (ago, DIM))
    warnings = [event for event in run.numbers.events if event.kind in WARNINGS][-1:]
    alerts = [Text(f"problem: {safe(problem)}", BAD) for problem in run.problems[:1]]
    alerts += [Text(f"{one.kind} at step {one.step}: {safe(one.message)}", WARN) for one in warnings]
    return [first, _progress(run), *alerts]


def _progress(run: StoredRun) -> RenderableType:
    if run.steps is None:
        return Text(f"step {run.step}")
    pace, done = sum(stage_seconds(run).values()), run.step / run.steps if run.steps else 1.0
    left = (run.steps - run.step) * pace if run.state == "running" else 0.0
    after = percent(done) + (f", {duration(pace)} per step" if pace else "")
    after += f", about {duration(left)} left" if left > 0 else ""
    label = f"step {run.step}/{run.steps}"
    line = columns(len(label), 0, len(after))
    line.add_row(label, bar(done, GOOD), after)
    return line


def strength(run: StoredRun, height: int) -> Drawn:
    """The score against each opponent, and the last evaluation."""
    latest = run.last_evaluation
    if not latest:
        return [Text("not evaluated yet", DIM)]
    means = [mean_over_seats(seats) for seats in by_opponent(match.result for match in latest).values()]
    means, scores = means[: max(1, height - 4)], _scores(run)
    names = {"win": "win", "draw": "draw", "loss": "loss"} if means[0].opponent else {"win": "solved"}
    names["illegal"] = "illegal"
    table, curves = columns(0, *[-8] * len(names)), []
    when = "best weights:" if latest[0].phase == FINAL else f"at step {latest[0].step}:"
    table.add_row(when, *names.values(), style=DIM)
    for number, mean in enumerate(means):
        mark, color = chr(ord("a") + number % 26), PALETTE[number % len(PALETTE)]
        curves.append(Curve(mark, "", scores.get(mean.opponent, ()), color))
        opponent = Text(f"{mark} {safe(mean.opponent) or 'held-out tasks'}", color)
        table.add_row(opponent, *(percent(getattr(mean, name)) for name in names))
    return [Plot(curves, height - table.row_count, (0.0, 1.0), run.step, "{:.0%}".format), table]


def _scores(run: StoredRun) -> dict[str, list[tuple[float, float]]]:
    """Wins and half the draws by step, averaged over seats, against each opponent ("" in tasks)."""
    cells: defaultdict[str, defaultdict[int, list[MatchResult]]] = defaultdict(lambda: defaultdict(list))
    for match in run.numbers.matches:
        if match.phase != FINAL:
            cells[match.result.opponent][match.step].append(match.result)
    return {
        name: [(step, fmean(result.win + result.draw / 2 for result in own)) for step, own in sorted(steps.items())]
        for name, steps in cells.items()
    }


SIGNALS = {
    "won": percent,
    "illegal_replies": percent,
    "zero_variance_groups": percent,
    **dict.fromkeys(("turns", "entropy", "loss", "grad_norm", "learning_rate", "kl_to_sampler"), short),
}
LEAST_PLOT = 6


def signals(run: StoredRun, height: int) -> Drawn:
    """A plot of the reward (of the imitation loss in the warm start), and sparklines of the other metrics."""
    warm = "" if run.series("reward") else "warm_start/"
    name = "warm_start/loss" if warm else "reward"
    shown = [metric for metric in SIGNALS if run.series(warm + metric) and warm + metric != name]
    table = columns(21, -8, 0)
    for metric in shown[: max(2, height - LEAST_PLOT)]:
        values = [value for _, value in run.series(warm + metric)]
        table.add_row(metric.replace("_", " "), SIGNALS[metric](values[-1]), Sparkline(values))
    curve = Curve("a", f"{name} {short(run.last(name))}", run.series(name), PALETTE[0])
    return [Plot([curve], height - table.row_count, until=run.step), table]


MARKS = {"p50": ("a", "cyan"), "p95": ("b", "green"), "p99": ("c", "yellow"), "max": ("d", "magenta")}
CAUSES = {"prompt": "no room for the next prompt", "reply": "reply hit the limit", "turn": "reply hit max_turn_tokens"}
FAR = 3.0
"""A limit this many times above the longest context would flatten the curves, so it is only written in words."""


def context(run: StoredRun, height: int) -> Drawn:
    """Quantiles of the longest context that a reply of an episode saw, their limit, and when it is reached."""
    found = {name: points for name in MARKS if (points := run.series(f"context/window/{name}"))}
    if not found:
        return [Text("nothing recorded yet: contexts are measured from the first step of RL on", DIM)]
    longest = max(value for points in found.values() for _, value in points)
    limit, curves = run.series("context/limit"), []
    if limit:
        near = limit[-1][1] <= FAR * longest
        label = f"limit {short(limit[-1][1])}{'' if near else ', above'}"
        curves.append(Curve("=", label, limit if near else (), BAD))
    for name, points in found.items():
        mark, color = MARKS[name]
        curves.append(Curve(mark, f"{name} {short(points[-1][1])}", points, color))
    lines = [*_truncated(run), *_forecasts(run)][: max(1, height - LEAST_PLOT)]
    return [Plot(curves, height - len(lines), until=run.step), *lines]


def _truncated(run: StoredRun) -> list[Text]:
    shares = {cause: run.last(f"truncation/{name}") for name, cause in CAUSES.items()}
    causes = ", ".join(f"{percent(share)} {cause}" for cause, share in shares.items() if share > 0)
    return [Text(f"cut off: {causes}", BAD)] if causes else []


def _forecasts(run: StoredRun) -> list[Text]:
    """When each quantile reaches the limit, such as: p95 reaches the limit at step 340 (80 %: 310 to 400)."""
    lines = []
    for name in ("p99", "p95", "p50"):
        early, median, late = (run.last(f"forecast/{name}/{end}") for end in ("early", "median", "late"))
        if median <= run.step:
            lines.append(f"{name} has reached the limit")
        elif median < math.inf:
            until = f"{late:.0f}" if late < math.inf else "never"
            lines.append(f"{name} reaches the limit at step {median:.0f} (80 %: {early:.0f} to {until})")
        elif early < math.inf:
            lines.append(f"{name} may reach the limit from step {early:.0f} on")
    if lines:
        return [Text(line, WARN) for line in lines]
    return [Text("the limit is not forecast to be reached", DIM)]


def authors(run: StoredRun, _height: int) -> Drawn:
    last = {author.name.lower(): run.last(f"tokens/{author.name.lower()}") for author in Author}
    return _shares("author", {name: tokens for name, tokens in last.items() if tokens > 0}, short)


def stages(run: StoredRun, height: int) -> Drawn:
    calls = _calls(run)
    seconds = dict(islice(stage_seconds(run).items(), max(1, height - 1 - len(calls))))
    return [*_shares("stage, per step", seconds, _duration), *calls]


def _calls(run: StoredRun) -> Drawn:
    """One line about the last step's calls of tools."""
    use = tool_use({name: points[-1:] for name, points in run.numbers.metrics.items()})
    parts = [
        f"{safe(tool)} {short(own.get('calls', 0))} calls, wait {_duration(own.get('queue_seconds', 0))}, "
        f"run {_duration(own.get('run_seconds', 0))}"
        for tool, own in use.items()
    ]
    cores = run.last("tool_core_use")
    parts += [] if math.isnan(cores) else [f"cores {percent(cores)} in use"]
    return [Text(f"tools: {'; '.join(parts)}")] if use else []


def _duration(seconds: float) -> str:
    return duration(seconds).replace("µ", "u")  # terminals without UTF-8


def _shares(title: str, parts: dict[str, float], shown: Callable[[float], str]) -> Drawn:
    if not parts:
        return [Text("nothing recorded yet", DIM)]
    total, table = sum(parts.values()) or 1.0, columns(17, -12, -8, 0)
    table.add_row(title, "", "share", "", style=DIM)
    for number, (name, value) in enumerate(parts.items()):
        color, share = PALETTE[number % len(PALETTE)], value / total
        table.add_row(Text(safe(name), color), shown(value), percent(share), bar(share, color))
    return [table]


def events(run: StoredRun, height: int) -> Drawn:
    """The latest first; repeated ones are merged."""
    table = columns(17, 0)
    alike = groupby(reversed(run.numbers.events), key=lambda event: (event.kind, event.message))
    for (kind, message), same in islice(alike, height):
        event, *others = same
        times = f" x{len(others) + 1}" if others else ""
        text = Text(f"{safe(kind)}{times}: {safe(message)}", WARN if kind in WARNINGS else "")
        table.add_row(Text(f"{datetime.fromtimestamp(event.time):%H:%M} step {event.step}", DIM), text)
    return [table] if table.row_count else [Text("nothing has happened yet", DIM)]


PANELS: dict[str, Callable[[StoredRun, int], Drawn]] = {
    "Strength: wins + half the draws, or tasks solved": strength,
    "Training": signals,
    "Context in tokens": context,
    "Tokens by author": authors,
    "Time of a step": stages,
    "Events": events,
}
WIDTH, HEIGHT = 60, 10
"""The least that a panel is readable in."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel in its place of the layout, which determines its height."""

    run: StoredRun
    title: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        height, rule = options.height or HEIGHT + 3, "-" if options.ascii_only else "─"
        heading = Text.assemble((f"{rule} ", DIM), (self.title, "bold"), (f" {rule * options.max_width}", DIM))
        drawn = Group(heading, *PANELS[self.title](self.run, height - 1))
        return console.render(drawn, options.update(no_wrap=True, overflow="crop"))


def pages(width: int, height: int) -> list[list[list[str]]]:
    """The titles of the panels by page and row, as many to a page as are readable there."""
    across, down = max(1, width // WIDTH), max(1, height // HEIGHT)
    titles = [*PANELS]
    rows = [titles[first : first + across] for first in range(0, len(titles), across)]
    return [rows[first : first + down] for first in range(0, len(rows), down)]


def draw(run: StoredRun, width: int, height: int, page: int = 0) -> Layout:
    """Fills a terminal of `height` lines of `width` columns. `page` wraps around."""
    head = header(run)[: max(1, height - 1)]
    found = pages(width, height - len(head) - 1)
    rows = [Layout() for _ in found[page % len(found)]]
    for row, titles in zip(rows, found[page % len(found)], strict=True):
        row.split_row(*(Layout(Panel(run, title)) for title in titles))
    keys = f"q quit{f'   Tab: page {page % len(found) + 1} of {len(found)}' if found[1:] else ''}"
    whole = Layout()
    whole.split_column(Layout(_cropped(head), size=len(head)), *rows, Layout(_cropped([Text(keys, DIM)]), size=1))
    return whole


def _cropped(lines: Sequence[RenderableType]) -> Table:
    table = columns(0)
    for line in lines:
        table.add_row(line)
    return table


def snapshot(run: StoredRun, console: Console) -> None:
    """Print all panels, one below the other."""
    console.print(_cropped(header(run)))
    for title in PANELS:
        console.print(Panel(run, title))
