"""Lays out the live view: a header, as many panels as fit, and a footer with keys."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.layout import Layout
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from earl.cli.live import growth
from earl.cli.live.canvas import BAD, DIM, GOOD, WARN, bar, columns, duration, percent, safe
from earl.cli.live.now import WARNINGS, RunNow, pace, phase, seconds_left, silence

STYLES = {**dict.fromkeys(("training", "warm start", "last evaluation", "finished"), GOOD), "starting": ""}
"""By phase; others are warnings."""


def header(run: RunNow, width: int) -> list[RenderableType]:
    """One line each."""
    doing = told = phase(run)
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
    told, left = f"step {run.step}/{run.steps}", seconds_left(run)
    after = percent(done)
    after += f", {duration(pace(run))} per step" if not math.isnan(pace(run)) else ""
    after += f", about {duration(left)} left" if left > 0 else ""
    line = columns(len(told), 0, len(after))
    line.add_row(told, bar(done, GOOD), after)
    return line


def _alerts(run: RunNow, width: int) -> list[Text]:
    alerts = [Text(f"problem: {safe(problem)}", BAD) for problem in run.problems[:1]]
    if silence(run):
        alerts.insert(0, Text(f"nothing was written for {duration(silence(run))}: the run is slow or stuck", BAD))
    for event in [event for event in reversed(run.numbers.events) if event.kind in WARNINGS][:1]:
        told = f"{event.kind} at step {event.step}: {safe(event.message)}"
        alerts += [Text(part, WARN) for part in wrap(told, max(8, width))[:2]]
    return alerts


@dataclass(frozen=True, slots=True)
class Panel:
    name: str
    title: str
    draw: Callable[[RunNow, int], growth.Drawn]
    ratio: int = 3
    """Its share of the height; plots gain more by height than tables."""


PANELS = (
    Panel("strength", "Strength: wins + half the draws, or tasks solved", growth.strength),
    Panel("training", "Training", growth.signals),
    Panel("context", "Context in tokens", growth.context),
    Panel("authors", "Tokens by author", growth.written_by, 2),
    Panel("time", "Time of a step", growth.stages, 2),
    Panel("events", "Events", growth.events, 2),
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
