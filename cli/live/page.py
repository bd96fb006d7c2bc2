"""Lays out the live view: a header, as many panels as fit, and a footer with keys."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from earl.cli.live import growth
from earl.cli.live.canvas import BAD, DIM, GOOD, WARN, Line, Span, bar, duration, fit, heading, percent, safe, wrapped
from earl.cli.live.context import authors
from earl.cli.live.now import RunNow, pace, phase, seconds_left, silence, warnings

STYLES = {
    "training": GOOD,
    "warm start": GOOD,
    "last evaluation": GOOD,
    "finished": GOOD,
    "stopped": WARN,
    "not started": WARN,
}


def header(run: RunNow, width: int, ascii_only: bool) -> list[Line]:
    env = f"  {safe(run.config.env.name)}" if run.config else ""
    doing = phase(run)
    ago = f"last change {duration(max(1, int(run.time - run.changed)))} ago"
    first: Line = [
        (safe(run.name), "bold"),
        (env, ""),
        (f"  {_told(run, doing)}", STYLES.get(doing, "")),
        ("" if run.state == "finished" else f"  {ago}", DIM),
    ]
    return [first, _progress(run, width, ascii_only), *_alerts(run, width)]


def _told(run: RunNow, doing: str) -> str:
    if run.state == "finished":
        return next((safe(event.message) for event in reversed(run.numbers.events) if event.kind == "finish"), doing)
    return f"{doing}; earl train --resume goes on" if doing == "stopped" else doing


def _progress(run: RunNow, width: int, ascii_only: bool) -> Line:
    if run.steps is None:
        return [(f"step {run.step}", "")]
    done = run.step / run.steps if run.steps else 1.0
    told = f"step {run.step}/{run.steps} "
    left = seconds_left(run)
    after = f" {percent(done)}"
    after += f", {duration(pace(run))} per step" if not math.isnan(pace(run)) else ""
    after += f", about {duration(left)} left" if left > 0 else ""
    wide = min(40, width - len(told) - len(after))
    return [(told, ""), (bar(done, wide, ascii_only) if wide > 3 else "", GOOD), (after, "")]


def _alerts(run: RunNow, width: int) -> list[Line]:
    alerts: list[Line] = []
    if silence(run):
        alerts.append([(f"nothing was written for {duration(silence(run))}: the run is slow or stuck", BAD)])
    alerts += [[(f"problem: {safe(problem)}", BAD)] for problem in run.problems[:1]]
    for event in warnings(run)[:1]:
        told = f"{event.kind} at step {event.step}: {safe(event.message)}"
        alerts += [[(part, WARN)] for part in wrapped(told, width, 2)]
    return alerts


Draw = Callable[[RunNow, int, int, bool], list[Line]]
PANELS: tuple[tuple[str, Draw], ...] = (
    ("strength", growth.strength),
    ("training", growth.signals),
    ("context", growth.context),
    ("authors", growth.written_by),
    ("time", growth.stages),
    ("events", growth.events),
)
TITLES = {
    "training": "Training",
    "context": "Context in tokens",
    "authors": "Tokens by author",
    "time": "Time of a step",
    "events": "Events",
}
NEEDS: dict[str, Callable[[RunNow], float]] = {
    "authors": lambda run: len(authors(run)) + 4,
    "time": lambda run: len(run.numbers.timings) + 4,
    "events": lambda run: min(len(run.numbers.events) + len(run.problems), 12) + 3,
}
"""Lines that tables need: heading, rows and a blank. Panels not listed are plots, which share the rest."""
LEAST = 6
"""Lines reserved for each other row of panels."""
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


def draw(run: RunNow, width: int, height: int, ascii_only: bool, page: int = 0) -> list[list[Span]]:
    """Exactly `height` lines of exactly `width` columns. `page` wraps around."""
    head = header(run, width, ascii_only)
    room = max(0, height - len(head) - 1)
    grid = arrange(width, room, len(PANELS))
    shown = grid.pages[page % len(grid.pages)]
    lines = [*head, *body(run, shown, grid.columns, width, room, ascii_only)][: height - 1]
    lines += [[]] * (height - 1 - len(lines))
    return [fit(line, width) for line in [*lines, _footer(grid, page % len(grid.pages), width)]]


def body(
    run: RunNow, shown: Sequence[int], columns: int, width: int, height: int, ascii_only: bool
) -> list[list[Span]]:
    """The panels `shown`, row by row, in exactly `height` lines; panels of an incomplete last row are wider."""
    rows = [shown[first : first + columns] for first in range(0, len(shown), columns)]
    lines: list[list[Span]] = []
    for row, tall in zip(rows, _heights(run, rows, height), strict=True):
        each = (width - GAP * (len(row) - 1)) // len(row)
        panels = [_panel(run, PANELS[panel], each, tall, ascii_only) for panel in row]
        lines += [
            [span for part in parts for span in (*part, (" " * GAP, ""))][:-1] for parts in zip(*panels, strict=True)
        ]
    return lines


def _heights(run: RunNow, rows: Sequence[Sequence[int]], height: int) -> list[int]:
    """Lines of each row: tables get what they need, plots share the rest; without plots the last row gets it."""
    wanted = [
        max(NEEDS[name](run) if name in NEEDS else math.inf for name in (PANELS[panel][0] for panel in row))
        for row in rows
    ]
    elastic = [number for number, lines in enumerate(wanted) if lines == math.inf] or [len(rows) - 1]
    heights = [0] * len(rows)
    for number, lines in enumerate(wanted):
        if number not in elastic:
            heights[number] = int(min(lines, max(0, height - sum(heights) - LEAST * (len(rows) - 1))))
    left = height - sum(heights)
    for place, number in enumerate(elastic):
        heights[number] = left * (place + 1) // len(elastic) - left * place // len(elastic)
    return heights


def _panel(run: RunNow, panel: tuple[str, Draw], width: int, height: int, ascii_only: bool) -> list[list[Span]]:
    name, drawing = panel
    title = growth.strength_title(run) if name == "strength" else TITLES[name]
    lines: list[Line] = [heading(title, width, ascii_only)]
    lines += drawing(run, width, height - 1, ascii_only) if height > 1 else []
    return [fit(line, width) for line in (lines + [[]] * height)[:height]]


def _footer(grid: PanelGrid, page: int, width: int) -> Line:
    if len(grid.pages) == 1:
        return [("q", "bold"), (" quit", DIM)]
    names = [", ".join(PANELS[panel][0] for panel in panels) for panels in grid.pages]
    tabs: list[Span] = []
    for number, name in enumerate(names):
        tabs += [(f" {number + 1} {name} ", "reverse" if number == page else DIM), (" ", "")]
    if sum(len(text) for text, _ in tabs) > width - 12:
        tabs = [(f" {page + 1}/{len(names)} {names[page]} ", "reverse")]
    return [("q", "bold"), (" quit  ", DIM), ("Tab", "bold"), (" ", ""), *tabs]
