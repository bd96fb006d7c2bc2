"""A line plot in a rectangle of characters: axes with round numbers, a legend, a mark at the end of each curve."""

import math
from collections.abc import Callable, Iterator, Sequence

from earl.cli.live.canvas import Cell, Curve, Frame, raster, row_of
from earl.cli.live.spans import DIM, Span
from earl.cli.live.units import short


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
