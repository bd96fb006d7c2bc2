"""Draws numbers in the terminal: sparklines, and line plots in braille (2 x 4 dots per cell) or ASCII."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions
from rich.text import Text

from earl.formats import short

DIM = "bright_black"
MOST = 1e300
"""Larger values are not drawn: their sums and differences may be infinite."""
BRAILLE = 0x2800
_DOT_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # [column of the cell][row of the cell]


@dataclass(frozen=True, slots=True)
class Sparkline:
    """Values in one line, scaled to their minimum and maximum; those that share a character are averaged."""

    values: Sequence[float]
    color: str = "cyan"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(self.drawn(options.max_width, options.ascii_only), self.color)

    def drawn(self, width: int, ascii_only: bool = False) -> str:
        known = [value for value in self.values if abs(value) < MOST]
        if not known or width < 1:
            return ""
        means = np.array([part.mean() for part in np.array_split(known, min(len(known), width))])
        spread = means.max() - means.min()
        heights = (means - means.min()) / spread * 8 if spread > 1e-12 * abs(means).max() else np.zeros(len(means))
        signs = "_.-=+*#@" if ascii_only else "▁▂▃▄▅▆▇█"
        return "".join(signs[min(7, int(height))] for height in heights)


@dataclass(frozen=True, slots=True)
class Curve:
    mark: str
    """One character, drawn at the end of the curve, and for the whole curve in ASCII."""
    label: str
    points: Sequence[tuple[float, float]]
    """In order of x."""
    color: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over steps, in at most `height` lines. By default the y axis has the range of the curves and 0."""

    curves: Sequence[Curve]
    height: int
    bounds: tuple[float, float] | None = None
    until: float = 0.0
    """The least end of the x axis."""
    shown: Callable[[float], str] = short

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self.lines(options.max_width, options.ascii_only)

    def lines(self, width: int, ascii_only: bool = False) -> list[Text]:
        known = [(curve, [p for p in curve.points if abs(p[1]) < MOST]) for curve in self.curves]
        drawn = [(curve, np.array(points)) for curve, points in known if points]
        if not drawn:
            return [Text("nothing recorded yet", DIM)]
        labels = [Text(f"{curve.mark} {curve.label}", curve.color) for curve in self.curves if curve.label]
        rows = self.height - 1 - bool(labels)
        if rows < 2 or width < 16:
            return []
        least, most = self._frame(np.concatenate([points for _, points in drawn]))
        values = np.linspace(most[1], least[1], rows)
        ticks = {row: self.shown(values[row]) for row in (0, rows // 2, rows - 1)}
        gutter = max(map(len, ticks.values()))
        across = width - gutter - 1
        lines = [Text("  ").join(labels)] if labels else []
        scaled = [(curve, (points - least) / (most - least)) for curve, points in drawn]
        for row, cells in enumerate(raster(scaled, across, rows, ascii_only)):
            wall = "|" if ascii_only else "┤" if row in ticks else "│"
            runs = [("".join(sign for sign, _ in run), color) for color, run in groupby(cells, itemgetter(1))]
            lines.append(Text.assemble((f"{ticks.get(row, ''):>{gutter}}{wall}", DIM), *runs))
        first, last = f"{least[0]:.0f}", f"{most[0]:.0f}"
        axis = f"{'':{gutter + 1}}{first}{'step':^{max(0, across - len(first) - len(last))}}{last}"
        return [*lines, Text(axis[:width], DIM)]

    def _frame(self, points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The lower left and the upper right corner of what is drawn."""
        least, most = points.min(0), points.max(0)
        least[1], most[1] = self.bounds or (min(0.0, least[1]), max(0.0, most[1]))
        if most[1] - least[1] < 1e-9 * max(1.0, *np.abs((least[1], most[1]))):
            most[1] = least[1] + 1.0
        most[0] = max(self.until, most[0], least[0] + 1)
        return least, most


Cell = tuple[str, str]
"""A character and its colour."""


def raster(
    curves: Sequence[tuple[Curve, NDArray[np.float64]]], columns: int, rows: int, ascii_only: bool
) -> list[list[Cell]]:
    """`rows` lines of `columns` cells, the top one first, of curves whose points [N, 2] are shares of width and height;
    later curves cover earlier ones, marks cover curves."""
    across, down = (1, 1) if ascii_only else (2, 4)
    bits = np.zeros((rows, columns), int)
    signs: dict[tuple[int, int], Cell] = {}
    marks: dict[tuple[int, int], Cell] = {}
    for curve, points in curves:
        place = None
        for x, y in _dots(points, columns * across, rows * down):
            place = rows - 1 - y // down, x // across
            bits[place] |= _DOT_BITS[x % 2][3 - y % 4]
            signs[place] = curve.mark if ascii_only else chr(BRAILLE + bits[place]), curve.color
        if place:
            marks[place] = curve.mark, curve.color
    signs |= marks
    return [[signs.get((row, column), (" ", "")) for column in range(columns)] for row in range(rows)]


def _dots(points: NDArray[np.float64], width: int, height: int) -> Iterator[tuple[int, int]]:
    """The dots of a curve from left to right, without holes; (0, 0) is the lower left one. Those outside are left out,
    points in one column are averaged."""
    columns = np.rint(points[:, 0] * (width - 1)).astype(int)
    ys = np.clip(points[:, 1], -9.0, 9.0)
    known, first = np.unique(columns, return_index=True)
    means = np.add.reduceat(ys, first) / np.diff([*first, len(ys)])
    places = np.arange(known[0], known[-1] + 1)
    heights = np.rint(np.interp(places, known, means) * (height - 1)).astype(int).clip(-1, height).tolist()
    for x, before, y in zip(places.tolist(), [heights[0], *heights], heights, strict=False):
        for dot in range(min(before + 1, y), max(before - 1, y) + 1):
            if 0 <= dot < height:
                yield x, dot
