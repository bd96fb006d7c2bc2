"""Curves as characters: braille dots (2 x 4 in a cell), or one letter per cell where the terminal knows ASCII only."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

Point = tuple[float, float]
Cell = tuple[str, int | None]
"""A character and the number of the curve that drew it; None where it is blank."""

BRAILLE = 0x2800
_DOT_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # [column of the cell][row of the cell]


@dataclass(frozen=True, slots=True)
class Curve:
    """What is drawn in one colour.

    Example:
        Curve("a", "p50", [(1, 60.0), (2, 61.0)], "cyan")
    """

    mark: str
    """One character: it stands at the end of the curve, and for the curve itself in ASCII."""
    label: str
    points: Sequence[Point]
    """In order of x. A value that is not finite is a gap."""
    color: str
    peak: bool = False
    """Whether points that share a column are drawn by the largest of them; else by their mean."""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """The part of the plane that is drawn: left < right, low < high."""

    left: float
    right: float
    low: float
    high: float


def raster(curves: Sequence[Curve], frame: Frame, columns: int, rows: int, ascii_only: bool) -> list[list[Cell]]:
    """`rows` lines of `columns` cells, the top one first; a later curve is drawn over an earlier one."""
    across, down = (1, 1) if ascii_only else (2, 4)
    bits = [[0] * columns for _ in range(rows)]
    owners: list[list[int | None]] = [[None] * columns for _ in range(rows)]
    for number, curve in enumerate(curves):
        for x, y in _dots(curve, frame, columns * across, rows * down):
            column, row = x // across, rows - 1 - y // down
            bits[row][column] |= _DOT_BITS[x % 2][3 - y % 4]
            owners[row][column] = number
    return [
        [_cell(curves, bits[row][column], owners[row][column], ascii_only) for column in range(columns)]
        for row in range(rows)
    ]


def _cell(curves: Sequence[Curve], bits: int, owner: int | None, ascii_only: bool) -> Cell:
    if owner is None:
        return " ", None
    return (curves[owner].mark if ascii_only else chr(BRAILLE + bits)), owner


def row_of(y: float, frame: Frame, rows: int) -> int | None:
    """The row of a value, 0 is the top one; None outside the frame."""
    place = _place(y, frame.low, frame.high, rows)
    return rows - 1 - place if 0 <= place < rows else None


def _place(value: float, low: float, high: float, size: int) -> int:
    """The index in 0 … size - 1 of a value from `low` to `high`; outside of that, an index outside."""
    return math.floor((value - low) / (high - low) * (size - 1) + 0.5)


def _dots(curve: Curve, frame: Frame, width: int, height: int) -> Iterator[tuple[int, int]]:
    """The dots of a curve, counted from the lower left, none outside of the canvas."""
    for run in _unbroken(curve.points):
        corners = _merged(run, frame, width, curve.peak)
        places = [(x, _place(y, frame.low, frame.high, height)) for x, y in corners]
        for x, y in _joined(places, height):
            if 0 <= x < width and 0 <= y < height and not (curve.dashed and x // 2 % 2):
                yield x, y


def _unbroken(points: Sequence[Point]) -> Iterator[list[Point]]:
    """The stretches of finite points."""
    run: list[Point] = []
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y):
            run.append((x, y))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _merged(run: Sequence[Point], frame: Frame, width: int, peak: bool) -> list[tuple[int, float]]:
    """One value for each column that has points."""
    columns: dict[int, list[float]] = {}
    for x, y in run:
        columns.setdefault(_place(x, frame.left, frame.right, width), []).append(y)
    return [(column, max(values) if peak else fmean(values)) for column, values in columns.items()]


def _joined(places: Sequence[tuple[int, int]], height: int) -> Iterator[tuple[int, int]]:
    """The places and straight lines between them. A line that leaves the canvas is followed one height beyond."""
    yield from places[:1]
    for (x0, y0), (x1, y1) in pairwise(places):
        y0, y1 = (min(max(y, -height), 2 * height) for y in (y0, y1))
        count = max(abs(x1 - x0), abs(y1 - y0))
        for part in range(1, count + 1):
            yield x0 + round((x1 - x0) * part / count), y0 + round((y1 - y0) * part / count)
