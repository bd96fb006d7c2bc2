"""Curves as characters: braille dots (2 x 4 in a cell), or one letter per cell where the terminal knows ASCII only."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from earl.cli.live.spans import DIM, Span, short

# A number or a course in one line of characters.

_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN = "_.-=+*#@"


def sparkline(
    values: Sequence[float], width: int, ascii_only: bool = False, bounds: tuple[float, float] | None = None
) -> str:
    """The course of some values, from their least to their largest or within bounds, in at most `width` characters.

    A value that is not finite is a blank; many values in one place are drawn by their mean.

    Example:
        >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8)
        '▁▂▃▄▅▆▇█'
    """
    places = _means(values, width)
    finite = [value for value in places if math.isfinite(value)]
    if not finite:
        return ""
    signs = _PLAIN if ascii_only else _BLOCKS
    low, high = bounds or (min(finite), max(finite))
    spread = high - low
    if spread <= 1e-12 * max(1.0, abs(low)):
        return "".join(signs[0] if math.isfinite(value) else " " for value in places)
    return "".join(
        signs[min(7, max(0, int((value - low) / spread * 8)))] if math.isfinite(value) else " " for value in places
    )


def _means(values: Sequence[float], width: int) -> list[float]:
    count = min(len(values), max(0, width))
    parts = [values[len(values) * place // count : len(values) * (place + 1) // count] for place in range(count)]
    finite = [[value for value in part if math.isfinite(value)] for part in parts]
    return [fmean(part) if part else math.nan for part in finite]


def bar(share: float, width: int, ascii_only: bool = False) -> str:
    """A share of 1 as a bar of `width` characters.

    Example:
        >>> bar(0.5, 4)
        '██░░'
    """
    full, rest = ("#", ".") if ascii_only else ("█", "░")
    done = round(min(max(share, 0.0), 1.0) * width) if math.isfinite(share) else 0
    return full * done + rest * (width - done)


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
    place = (value - low) / (high - low) * (size - 1) + 0.5
    if not math.isfinite(place):  # of numbers close to the largest there are
        return size if place > 0 else -1
    return math.floor(place)


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


# A line plot in a rectangle of characters: axes with round numbers, a legend, a mark at the end of each curve.


def plot(
    curves: Sequence[Curve],
    width: int,
    height: int,
    *,
    ascii_only: bool = False,
    bounds: tuple[float, float] | None = None,
    until: float | None = None,
    shown: Callable[[float], str] | None = None,
    legend: bool = True,
) -> list[list[Span]]:
    """Curves over steps as `height` lines of at most `width` characters; fewer lines when nothing is finite.

    Args:
        bounds: least and largest value that are drawn; absent: what the curves need, 0 included.
        until: the last step of the axis; absent: that of the curves.
        shown: how a value of the y axis is written.
        legend: whether the first line says which mark is which curve.
    """
    frame = _frame(curves, bounds, until)
    if frame is None:
        return [[("nothing recorded yet", DIM)]]
    rows = height - 1 - legend
    if rows < 2 or width < 16:
        return []
    labels = _labels(frame, rows, shown or short)
    gutter = max(map(len, labels.values()))
    marks = _marks(curves, frame, rows)
    columns = width - gutter - 2 - max(map(len, marks.values()), default=0)
    lines = [_legend(curves, width)] if legend else []
    for row, cells in enumerate(raster(curves, frame, columns, rows, ascii_only)):
        wall = "|" if ascii_only else "┤" if row in labels else "│"
        ends = [(curves[number].mark, curves[number].color) for number in marks.get(row, ())]
        lines.append([(f"{labels.get(row, ''):>{gutter}}{wall}", DIM), *_runs(cells, curves), *ends])
    return [*lines, [(f"{'':{gutter + 1}}{_steps(frame, columns)}", DIM)]]


def ticks(low: float, high: float, count: int) -> list[float]:
    """At most `count` + 1 round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`."""
    least = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(least))
    gap = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    first, last = math.ceil(low / gap - 1e-9), math.floor(high / gap + 1e-9)
    return [number * gap for number in range(first, last + 1)]


def _frame(curves: Sequence[Curve], bounds: tuple[float, float] | None, until: float | None) -> Frame | None:
    points = [(x, y) for curve in curves for x, y in curve.points if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return None
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = bounds or (min(0.0, *(y for _, y in points)), max(0.0, *(y for _, y in points)))
    if high - low < 1e-9 * max(1.0, abs(low), abs(high)):
        high = low + 1.0
    return Frame(left, max(right if until is None else until, left + 1), low, high)


def _labels(frame: Frame, rows: int, shown: Callable[[float], str]) -> dict[int, str]:
    """The numbers of the y axis by row."""
    found = {}
    for value in ticks(frame.low, frame.high, max(1, rows // 3)):
        row = row_of(value, frame, rows)
        if row is not None:
            found[row] = shown(value)
    return found or {rows - 1: shown(frame.low)}


def _marks(curves: Sequence[Curve], frame: Frame, rows: int) -> dict[int, list[int]]:
    """The curves that end in each row, by number."""
    found: dict[int, list[int]] = {}
    for number, curve in enumerate(curves):
        last = next((y for _, y in reversed(curve.points) if math.isfinite(y)), math.nan)
        row = None if math.isnan(last) else row_of(last, frame, rows)
        if row is not None:
            found.setdefault(row, []).append(number)
    return found


def _legend(curves: Sequence[Curve], width: int) -> list[Span]:
    """Mark and label of every curve that fits."""
    spans: list[Span] = []
    for curve in curves:
        text = f"{curve.mark} {curve.label}"
        if sum(len(shown) for shown, _ in spans) + len(text) > width:
            break
        spans += [(text, curve.color), ("  ", "")]
    return spans[:-1]


def _runs(cells: Sequence[Cell], curves: Sequence[Curve]) -> Iterator[Span]:
    """Neighbouring cells of one curve taken together."""
    text, owner = "", None
    for character, number in cells:
        if number != owner and text:
            yield text, "" if owner is None else curves[owner].color
            text = ""
        text, owner = text + character, number
    yield text, "" if owner is None else curves[owner].color


def _steps(frame: Frame, columns: int) -> str:
    """The x axis: first, middle and last step."""
    first, last = f"{frame.left:.0f}", f"{frame.right:.0f}"
    middle = f"step {(frame.left + frame.right) / 2:.0f}" if frame.right - frame.left > 1 else "step"
    room = columns - len(first) - len(last)
    if room < len(middle) + 2:
        return f"{first}{last:>{max(1, columns - len(first))}}"
    before = columns // 2 - len(middle) // 2 - len(first)
    return f"{first}{'':{before}}{middle}{last:>{room - before - len(middle) + len(last)}}"
