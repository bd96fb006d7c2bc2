"""Draws values as text: sparklines, bars and line plots, in braille (2 x 4 dots per cell) or ASCII."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean
from textwrap import wrap

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from earl.cli.text import one_line


def short(value: float) -> str:
    """A number in three digits, such as 0.25, 72, 1.5k, 2M."""
    if not math.isfinite(value):
        return "-"
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """A fraction in per cent, such as <0.1%, 12.3%, >99.9%; only exact 0 and 1 are shown as 0 and 100."""
    if not math.isfinite(share):
        return "-"
    if abs(share) < 1e-9 or abs(1 - share) < 1e-9:  # sums of exact probabilities miss 0 and 1 by rounding
        return f"{share:.0%}"
    return "<0.1%" if share < 5e-4 else ">99.9%" if share > 0.9995 else f"{share:.1%}"


def whole_percent(share: float) -> str:
    return f"{share:.0%}"


def duration(seconds: float) -> str:
    """A time in its natural units, such as 4.2ms, 3.21s, 1m 15s, 2d 7h."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 1:
        return f"{1000 * seconds:.3g}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes}m {int(seconds) % 60}s"
    hours = minutes // 60
    return f"{hours}h {minutes % 60}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def size(num_bytes: float) -> str:
    for limit, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= limit:
            return f"{num_bytes / limit:.3g} {unit}"
    return f"{num_bytes:.0f} B"


Span = tuple[str, str]
"""Text and its style; "" is the terminal's default."""
Line = Sequence[Span]

DIM = "bright_black"
GOOD, WARN, BAD = "green", "yellow", "red"
PALETTE = ("cyan", "green", "magenta", "yellow", "blue", "white", "red")
"""Of the 16 colours that every terminal has, so that the user's theme applies."""


def fit(line: Line, width: int) -> list[Span]:
    """Cut or pad a line to exactly `width` columns. Wide characters count as two."""
    fitted: list[Span] = []
    left = width
    for text, style in line:
        size = min(cell_len(text), left)
        fitted.append((set_cell_size(text, size), style))
        left -= size
    return [*fitted, (" " * left, "")] if left else fitted


def column(text: str, width: int, right: bool = False) -> str:
    blank = " " * max(0, width - cell_len(text))
    return set_cell_size(blank + text if right else text + blank, max(0, width))


def safe(text: str) -> str:
    """Make untrusted text safe to print: one line, no control sequences, at most 1000 characters."""
    return one_line(text[:1000])


def wrapped(text: str, width: int, most: int) -> list[str]:
    """At most `most` lines; the last one may be too long, and is cut when drawn."""
    lines = wrap(text, max(8, width)) if most > 1 else [text]
    return [*lines[: most - 1], " ".join(lines[most - 1 :])] if len(lines) > most else lines


def heading(title: str, width: int, ascii_only: bool) -> list[Span]:
    rule = "-" if ascii_only else "─"
    return fit([(f"{rule} ", DIM), (title, "bold"), (f" {rule * width}", DIM)], width)


def to_text(lines: Sequence[Line]) -> Text:
    return Text("\n", no_wrap=True, overflow="crop", end="").join(Text.assemble(*line) for line in lines)


_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN = "_.-=+*#@"


def sparkline(
    values: Sequence[float], width: int, ascii_only: bool = False, bounds: tuple[float, float] | None = None
) -> str:
    """Draw values in at most `width` characters, scaled to `bounds`, else to their minimum and maximum.

    A value that is not finite is a blank; values that share a character are averaged.
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
    full, rest = ("#", ".") if ascii_only else ("█", "░")
    done = round(min(max(share, 0.0), 1.0) * width) if math.isfinite(share) else 0
    return full * done + rest * (width - done)


Point = tuple[float, float]
Cell = tuple[str, int | None]
"""A character and the index of its curve; None for a blank."""

BRAILLE = 0x2800
_DOT_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # [column of the cell][row of the cell]


@dataclass(frozen=True, slots=True)
class Curve:
    mark: str
    """One character, drawn at the end of the curve, and for the whole curve in ASCII."""
    label: str
    points: Sequence[Point]
    """In order of x. A value that is not finite is a gap."""
    color: str
    peak: bool = False
    """Whether points in one column are reduced to their maximum; else to their mean."""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """The range that is drawn: left < right, low < high."""

    left: float
    right: float
    low: float
    high: float


def raster(curves: Sequence[Curve], frame: Frame, columns: int, rows: int, ascii_only: bool) -> list[list[Cell]]:
    """`rows` lines of `columns` cells, the top one first; later curves cover earlier ones."""
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
    """The row of a value, 0 at the top; None outside the frame."""
    place = _place(y, frame.low, frame.high, rows)
    return rows - 1 - place if 0 <= place < rows else None


def _place(value: float, low: float, high: float, size: int) -> int:
    """The index of a value among `size` steps from `low` to `high`; out of range if the value is."""
    place = (value - low) / (high - low) * (size - 1) + 0.5
    if not math.isfinite(place):  # overflow of very large numbers
        return size if place > 0 else -1
    return math.floor(place)


def _dots(curve: Curve, frame: Frame, width: int, height: int) -> Iterator[tuple[int, int]]:
    for finite, run in groupby(curve.points, lambda point: math.isfinite(point[0]) and math.isfinite(point[1])):
        corners = _merged(run, frame, width, curve.peak) if finite else []
        places = [(x, _place(y, frame.low, frame.high, height)) for x, y in corners]
        for x, y in _joined(places, width, height):
            if 0 <= x < width and 0 <= y < height and not (curve.dashed and x // 2 % 2):
                yield x, y


def _merged(run: Iterable[Point], frame: Frame, width: int, peak: bool) -> list[tuple[int, float]]:
    columns: dict[int, list[float]] = {}
    for x, y in run:
        columns.setdefault(_place(x, frame.left, frame.right, width), []).append(y)
    return [(column, max(values) if peak else fmean(values)) for column, values in columns.items()]


def _joined(places: Sequence[tuple[int, int]], width: int, height: int) -> Iterator[tuple[int, int]]:
    """The points and straight lines between them, up to the right edge, clamped one height above and below."""
    yield from places[:1]
    for (x0, y0), (x1, y1) in pairwise(places):
        y0, y1 = (min(max(y, -height), 2 * height) for y in (y0, y1))
        count = max(abs(x1 - x0), abs(y1 - y0))
        for part in range(1, count + 1):
            x = x0 + round((x1 - x0) * part / count)
            if x >= width:  # a forecast may end quadrillions of steps ahead
                break
            yield x, y0 + round((y1 - y0) * part / count)


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
    """Draw curves over steps, in at most `height` lines of `width` characters. `shown` formats a value.

    By default the y axis has the range of the curves and 0, and the x axis ends at their last step.
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
    named = [(f"{curve.mark} {curve.label}  ", curve.color) for curve in curves]
    while sum(len(text) for text, _ in named) > width + 2:
        named.pop()
    lines: list[list[Span]] = [[*named[:-1], *((text.rstrip(), color) for text, color in named[-1:])]] if legend else []
    colors: dict[int | None, str] = {None: "", **{number: curve.color for number, curve in enumerate(curves)}}
    for row, cells in enumerate(raster(curves, frame, columns, rows, ascii_only)):
        wall = "|" if ascii_only else "┤" if row in labels else "│"
        ends = [(curves[number].mark, curves[number].color) for number in marks.get(row, ())]
        runs = [("".join(sign for sign, _ in run), colors[key]) for key, run in groupby(cells, lambda cell: cell[1])]
        lines.append([(f"{labels.get(row, ''):>{gutter}}{wall}", DIM), *runs, *ends])
    return [*lines, [(f"{'':{gutter + 1}}{_steps(frame, columns)}", DIM)]]


def ticks(low: float, high: float, count: int) -> list[float]:
    """At most `count` + 1 multiples of 1, 2 or 5 times a power of ten, from `low` to `high`."""
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
    found = {}
    for value in ticks(frame.low, frame.high, max(1, rows // 3)):
        row = row_of(value, frame, rows)
        if row is not None:
            found[row] = shown(value)
    return found or {rows - 1: shown(frame.low)}


def _marks(curves: Sequence[Curve], frame: Frame, rows: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, curve in enumerate(curves):
        last = next((y for _, y in reversed(curve.points) if math.isfinite(y)), math.nan)
        row = None if math.isnan(last) else row_of(last, frame, rows)
        if row is not None:
            found.setdefault(row, []).append(number)
    return found


def _steps(frame: Frame, columns: int) -> str:
    first, last = f"{frame.left:.0f}", f"{frame.right:.0f}"
    middle = f"step {(frame.left + frame.right) / 2:.0f}" if frame.right - frame.left > 1 else "step"
    room = columns - len(first) - len(last)
    if room < len(middle) + 2:
        return f"{first}{last:>{max(1, columns - len(first))}}"
    before = columns // 2 - len(middle) // 2 - len(first)
    return f"{first}{'':{before}}{middle}{last:>{room - before - len(middle) + len(last)}}"
