"""Data in, lines of text out."""

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from earl.cli.plot import Curve, Plot, Sparkline, raster


def drawn(points: Sequence[tuple[float, float]], columns: int, rows: int, ascii_only: bool) -> list[str]:
    """Points from 0 to 3 in both directions."""
    cells = raster([(Curve("a", "", (), ""), np.array(points) / 3)], columns, rows, ascii_only)
    return ["".join(character for character, _ in row) for row in cells]


def test_a_diagonal_in_letters() -> None:
    # 4 x 4 cells for 0 … 3 in both directions: one cell for each whole number
    assert drawn([(0, 0), (3, 3)], 4, 4, True) == ["   a", "  a ", " a  ", "a   "]


def test_a_diagonal_in_braille() -> None:
    # 3 x 1 cells are 6 x 4 dots, so one dot is 0.6 wide: the heights 0, 0.6, 1.2, 1.8, 2.4, 3 are drawn in the rows
    # 0, 1, 1, 2, 2, 3. Left cell: dots 7 (column 0, lowest) and 6 (column 1, one higher): 0x40 + 0x20. Middle cell:
    # dots 3 and 5, of the rows 1 and 2: 0x04 + 0x10. The right cell holds the mark.
    assert drawn([(0, 0), (3, 3)], 3, 1, False) == [chr(0x2860) + chr(0x2814) + "a"]


def test_a_steep_line_has_no_holes() -> None:
    assert drawn([(0, 0), (1, 3)], 4, 4, True) == [" a  ", " a  ", " a  ", "a   "]


def test_points_in_one_column_are_drawn_by_their_mean() -> None:
    points = [(0, 0.0), (0.1, 2.0), (0.2, 1.0)]  # mean 1
    assert [row[0] for row in drawn(points, 4, 4, True)] == [" ", " ", "a", " "]


def test_what_lies_outside_is_not_drawn() -> None:
    assert drawn([(0, 9), (3, 9)], 4, 4, True) == ["    "] * 4
    assert drawn([(0, 0), (3, 1e300)], 4, 4, True)[3][0] == "a"


def test_a_later_curve_lies_on_top() -> None:
    points = np.array([(0, 1), (1, 1)])
    curves = [(Curve(mark, "", (), color), points) for mark, color in (("a", "blue"), ("b", "red"))]
    assert raster(curves, 2, 1, True) == [[("b", "red"), ("b", "red")]]


def test_a_whole_plot() -> None:
    lines = Plot([Curve("a", "reward 1", [(1, 0.0), (11, 1.0)], "cyan")], 6).lines(20, ascii_only=True)
    assert [line.plain for line in lines] == [
        "a reward 1",
        "    1|           aaa",  # 14 cells
        "     |       aaaa   ",
        "0.333|   aaaa       ",
        "    0|aaa           ",
        "      1   step    11",
    ]
    assert {span.style for line in lines[:-1] for span in line.spans if "a" in line.plain[span.start : span.end]} == {
        "cyan"
    }


def test_nothing_to_plot() -> None:
    nothing = Plot([Curve("a", "x", [(1, math.nan)], "")], 8)
    assert [line.plain for line in nothing.lines(40)] == ["nothing recorded yet"]
    assert Plot([Curve("a", "x", [(1, 1.0)], "")], 8).lines(10) == []  # too narrow for axes


points = st.lists(st.tuples(st.integers(0, 5000), st.floats(width=32)), max_size=60).map(sorted)


@given(points, st.integers(1, 120), st.integers(1, 40), st.booleans())
@example([(1000, 1.5e16)], 16, 14, False)
@example([(0, 1e23)], 16, 4, False)
def test_a_plot_never_leaves_its_rectangle(
    points: list[tuple[int, float]], width: int, height: int, ascii_only: bool
) -> None:
    curves = [Curve("a", "one", points, ""), Curve("b", "two", points[::2], "")]
    lines = [line.plain for line in Plot(curves, height).lines(width, ascii_only)]
    if lines != ["nothing recorded yet"]:
        assert len(lines) in (0, height)
        assert all(len(line) <= width for line in lines)
    if ascii_only:
        assert all(line.isascii() for line in lines)


def test_a_value_that_is_not_finite_is_left_out() -> None:
    points = [(0, 0.0), (1, math.nan), (2, math.inf), (3, 1.7e308), (4, 1.0)]
    assert Plot([Curve("a", "x", points, "")], 6).lines(20) == Plot(
        [Curve("a", "x", [*points[:1], points[4]], "")], 6
    ).lines(20)


def test_a_course_in_one_line() -> None:
    assert Sparkline([0, 1, 2, 3, 4, 5, 6, 7]).drawn(8) == "▁▂▃▄▅▆▇█"
    assert Sparkline([0, 0, 4, 4]).drawn(2, ascii_only=True) == "_@"  # means 0 and 4
    assert Sparkline([1, math.nan, 1]).drawn(3) == "▁▁"
    assert Sparkline([]).drawn(4) == Sparkline([math.nan]).drawn(4) == Sparkline([1.0]).drawn(0) == ""
