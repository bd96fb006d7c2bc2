"""Draws values as text: numbers, sparklines, and line plots in braille (2 x 4 dots per cell) or ASCII."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from statistics import fmean

import numpy as np
from rich.console import Console, ConsoleOptions
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from earl.cli.text import one_line
from earl.formats import short

DIM = "bright_black"
GOOD, WARN, BAD = "green", "yellow", "red"
PALETTE = ("cyan", "green", "magenta", "yellow", "blue", "white", "red")
"""Of the 16 colours that every terminal has, so that the user's theme applies."""


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


@dataclass(frozen=True, slots=True)
class Sparkline:
    """Values in one line, scaled to `bounds`, else to their minimum and maximum.

    A value that is not finite is a blank; values that share a character are averaged.
    """

    values: Sequence[float]
    color: str = PALETTE[0]
    bounds: tuple[float, float] | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(self.drawn(options.max_width, options.ascii_only), self.color)

    def drawn(self, width: int, ascii_only: bool = False) -> str:
        parts = np.array_split(np.array(self.values, float), max(1, min(len(self.values), width)))
        finite = [part[np.isfinite(part)] for part in parts]
        means = [float(part.mean()) if len(part) else math.nan for part in finite]
        known = [mean for mean in means if math.isfinite(mean)]
        if not known or width < 1:
            return ""
        signs = "_.-=+*#@" if ascii_only else "▁▂▃▄▅▆▇█"
        low, high = self.bounds or (min(known), max(known))
        scale = 8 / (high - low) if high - low > 1e-12 * max(1.0, abs(low)) else 0.0
        return "".join(" " if math.isnan(m) else signs[min(7, max(0, int((m - low) * scale)))] for m in means)


BRAILLE = 0x2800
_DOT_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # [column of the cell][row of the cell]


@dataclass(frozen=True, slots=True)
class Curve:
    mark: str
    """One character, drawn at the end of the curve, and for the whole curve in ASCII."""
    label: str
    points: Sequence[tuple[float, float]]
    """In order of x. A value that is not finite is a gap."""
    color: str
    peak: bool = False
    """Whether points in one column are reduced to their maximum; else to their mean."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The range that is drawn: left < right, low < high."""

    left: float
    right: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over steps, in at most `height` lines.

    By default the y axis has the range of the curves and 0, and the x axis ends at their last step.
    """

    curves: Sequence[Curve]
    height: int
    bounds: tuple[float, float] | None = None
    until: float = 0.0
    """The least end of the x axis, or its end where the curves are longer, as a forecast may be."""
    shown: Callable[[float], str] = short
    legend: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self.lines(options.max_width, options.ascii_only)

    def lines(self, width: int, ascii_only: bool = False) -> list[Text]:
        frame, rows = self._frame(), self.height - 1 - self.legend
        if frame is None:
            return [Text("nothing recorded yet", DIM)]
        if rows < 2 or width < 16:
            return []
        spread = (frame.high - frame.low) / (rows - 1)
        labels = {row: self.shown(frame.high - row * spread) for row in (0, rows // 2, rows - 1)}
        gutter = max(map(len, labels.values()))
        across = width - gutter - 1
        named = [Text(f"{curve.mark} {curve.label}", curve.color) for curve in self.curves]
        lines = [Text("  ").join(named)] if self.legend else []
        for row, cells in enumerate(raster(self.curves, frame, across, rows, ascii_only)):
            wall = "|" if ascii_only else "┤" if row in labels else "│"
            runs = [("".join(sign for sign, _ in run), color) for color, run in groupby(cells, itemgetter(1))]
            lines.append(Text.assemble((f"{labels.get(row, ''):>{gutter}}{wall}", DIM), *runs))
        first, last = f"{frame.left:.0f}", f"{frame.right:.0f}"
        axis = f"{'':{gutter + 1}}{first}{'step':^{max(0, across - len(first) - len(last))}}{last}"
        return [*lines, Text(axis[:width], DIM)]

    def _frame(self) -> Frame | None:
        points = [p for curve in self.curves for p in curve.points if math.isfinite(p[0]) and math.isfinite(p[1])]
        if not points:
            return None
        left, right = min(x for x, _ in points), max(x for x, _ in points)
        low, high = self.bounds or (min(0.0, *(y for _, y in points)), max(0.0, *(y for _, y in points)))
        if high - low < 1e-9 * max(1.0, abs(low), abs(high)):
            high = low + 1.0
        return Frame(left, max(self.until or right, left + 1), low, high)


Cell = tuple[str, str]
"""A character and its colour."""


def raster(curves: Sequence[Curve], frame: Frame, columns: int, rows: int, ascii_only: bool) -> list[list[Cell]]:
    """`rows` lines of `columns` cells, the top one first; later curves cover earlier ones, marks cover curves."""
    across, down = (1, 1) if ascii_only else (2, 4)
    bits: defaultdict[tuple[int, int], int] = defaultdict(int)
    signs: dict[tuple[int, int], Cell] = {}
    marks: dict[tuple[int, int], Cell] = {}
    for curve in curves:
        place = None
        for x, y in _dots(curve, frame, columns * across, rows * down):
            place = rows - 1 - y // down, x // across
            bits[place] |= _DOT_BITS[x % 2][3 - y % 4]
            signs[place] = curve.mark if ascii_only else chr(BRAILLE + bits[place]), curve.color
        if place:
            marks[place] = curve.mark, curve.color
    signs |= marks
    return [[signs.get((row, column), (" ", "")) for column in range(columns)] for row in range(rows)]


def _dots(curve: Curve, frame: Frame, width: int, height: int) -> Iterator[tuple[int, int]]:
    """The dots of a curve from left to right, without holes but for its gaps; (0, 0) is the lower left one."""
    for finite, run in groupby(curve.points, lambda point: math.isfinite(point[0]) and math.isfinite(point[1])):
        merged: defaultdict[int, list[float]] = defaultdict(list)
        for x, y in run if finite else ():
            merged[round((x - frame.left) / (frame.right - frame.left) * (width - 1))].append(y)
        if not merged:
            continue
        values = np.array([max(same) if curve.peak else fmean(same) for same in merged.values()])
        places = np.arange(max(0, min(merged)), min(width - 1, max(merged)) + 1)
        with np.errstate(over="ignore"):  # of very large numbers, which are clipped
            values = np.clip((values - frame.low) / (frame.high - frame.low), -9.0, 9.0)
        heights = np.interp(places, np.array([*merged], float), values)
        ys = np.rint(np.clip(heights, -1.0, 2.0) * (height - 1)).astype(int).tolist()
        for x, before, y in zip(places.tolist(), [*ys[:1], *ys], ys, strict=False):
            for dot in range(min(before + 1, y), max(before - 1, y) + 1):
                if 0 <= dot < height:
                    yield x, dot
