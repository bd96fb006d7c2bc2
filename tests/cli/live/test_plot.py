"""Data in, lines of text out."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.cli.live.canvas import Curve, Frame, Span, bar, fit, plot, raster, row_of, sparkline, ticks


def drawn(points: Sequence[tuple[float, float]], columns: int, rows: int, ascii_only: bool, **more: bool) -> list[str]:
    cells = raster([Curve("a", "", points, "", **more)], Frame(0, 3, 0, 3), columns, rows, ascii_only)
    return ["".join(character for character, _ in row) for row in cells]


def text(lines: Sequence[Sequence[Span]]) -> list[str]:
    return ["".join(part for part, _ in line) for line in lines]


def test_a_diagonal_in_letters() -> None:
    # 4 x 4 cells for 0 … 3 in both directions: one cell for each whole number
    assert drawn([(0, 0), (3, 3)], 4, 4, True) == ["   a", "  a ", " a  ", "a   "]


def test_a_diagonal_in_braille() -> None:
    # 2 x 1 cells are 4 x 4 dots. Left cell: dots 7 (column 0, lowest) and 6 (column 1, one higher): 0x40 + 0x20.
    # Right cell: dots 2 (column 0, second from above) and 4 (column 1, top): 0x02 + 0x08.
    assert drawn([(0, 0), (3, 3)], 2, 1, False) == [chr(0x2860) + chr(0x280A)]


def test_a_steep_line_has_no_holes() -> None:
    assert drawn([(0, 0), (1, 3)], 4, 4, True) == [" a  ", " a  ", "a   ", "a   "]


def test_a_gap_where_a_value_is_not_finite() -> None:
    points = [(0, 1), (1, math.nan), (2, math.inf), (3, 1)]
    assert drawn(points, 4, 4, True)[2] == "a  a"


def test_points_in_one_column_are_drawn_by_mean_or_peak() -> None:
    points = [(0, 0.0), (0.1, 2.0), (0.2, 1.0)]  # mean 1, peak 2
    assert [row[0] for row in drawn(points, 4, 4, True)] == [" ", " ", "a", " "]
    assert [row[0] for row in drawn(points, 4, 4, True, peak=True)] == [" ", "a", " ", " "]


def test_what_lies_outside_is_not_drawn() -> None:
    assert drawn([(0, 9), (3, 9)], 4, 4, True) == ["    "] * 4
    assert drawn([(0, 0), (3, 1e300)], 4, 4, True)[3][0] == "a"


def test_a_dashed_line() -> None:
    assert drawn([(0, 0), (3, 0)], 8, 1, True, dashed=True) == ["aa  aa  "]


def test_a_later_curve_lies_on_top() -> None:
    curves = [Curve(mark, "", [(0, 1), (3, 1)], "") for mark in "ab"]
    assert raster(curves, Frame(0, 3, 0, 1), 2, 1, True) == [[("b", 1), ("b", 1)]]


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [(0, 1, 2, [0, 0.5, 1]), (0, 120, 3, [0, 50, 100]), (-0.1, 0.05, 3, [-0.1, -0.05, 0, 0.05]), (0, 7, 1, [0])],
)
def test_round_numbers(low: float, high: float, count: int, expected: list[float]) -> None:
    assert ticks(low, high, count) == pytest.approx(expected)


def test_a_whole_plot() -> None:
    curve = Curve("a", "reward 1", [(1, 0.0), (11, 1.0)], "cyan")
    lines = plot([curve], 20, 6, ascii_only=True)
    assert text(lines) == [
        "a reward 1",
        "1|             aaaa",  # 16 cells, and the mark at the end of the curve
        " |        aaaaa   ",
        " |   aaaaa        ",
        "0|aaa             ",
        "  1    step 6   11",
    ]
    assert {style for line in lines for part, style in line if "a" in part} == {"cyan"}


def test_nothing_to_plot() -> None:
    assert text(plot([Curve("a", "x", [(1, math.nan)], "")], 40, 8)) == ["nothing recorded yet"]
    assert plot([Curve("a", "x", [(1, 1.0)], "")], 10, 8) == []  # too narrow for axes


points = st.lists(st.tuples(st.integers(0, 5000), st.floats(width=32)), max_size=60).map(sorted)


@given(points, st.integers(1, 120), st.integers(1, 40), st.booleans())
def test_a_plot_never_leaves_its_rectangle(
    points: list[tuple[int, float]], width: int, height: int, ascii_only: bool
) -> None:
    curves = [Curve("a", "one", points, ""), Curve("b", "two", points[::2], "", peak=True, dashed=True)]
    lines = text(plot(curves, width, height, ascii_only=ascii_only))
    if lines != ["nothing recorded yet"]:
        assert len(lines) in (0, height)
        assert all(len(line) <= width for line in lines)
    if ascii_only:
        assert all(line.isascii() for line in lines)


def test_a_course_in_one_line() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 4, 4], 2, ascii_only=True) == "_@"  # means 0 and 4
    assert sparkline([1, math.nan, 1], 3) == "▁ ▁"
    assert sparkline([0.5], 4, bounds=(0, 1)) == "▅"
    assert sparkline([], 4) == sparkline([math.nan], 4) == sparkline([1.0], 0) == ""


def test_a_share_as_a_bar() -> None:
    assert [bar(share, 4) for share in (0, 0.5, 1, 7, math.nan)] == ["░░░░", "██░░", "████", "████", "░░░░"]
    assert bar(0.25, 4, ascii_only=True) == "#..."


@given(st.lists(st.tuples(st.text(max_size=8), st.just("red")), max_size=5), st.integers(0, 30))
def test_a_line_fits_exactly(line: list[Span], width: int) -> None:
    from rich.cells import cell_len

    clean = [(part.replace("\n", ""), style) for part, style in line]
    assert sum(cell_len(part) for part, _ in fit(clean, width)) == width


def test_a_value_that_overflows_the_frame_is_outside_of_it() -> None:
    assert row_of(1.7e308, Frame(0, 1, 0, 1e-300), 10) is None
    assert row_of(1.7e308, Frame(0, 1, -1.7e308, 1.7e308), 10) is None  # the height itself is infinite
