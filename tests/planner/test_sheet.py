"""What a plan is told in: tables of words, lines, numbers."""

import pytest

from earl.planner.plan import Plan, plan
from earl.planner.sheet import Grid, blocks, comparison_grid
from tests.planner.asked import asked


def grids(found: Plan, price: float | None = None) -> list[Grid]:
    return [block for block in blocks(found, price) if isinstance(block, Grid)]


def test_every_row_is_as_wide_as_its_table_and_every_choice_is_marked() -> None:
    found = plan(asked(tps="4,8"))
    for grid in grids(found, 2.0):
        assert {len(row) for row in grid.rows} == {len(grid.names)}
    rollout = grids(found)[0]
    marks = sum(value.endswith(" *") for row in rollout.rows for value in row)
    assert marks == 7 * 5  # contexts, that of the recipe first, x loads
    for row in rollout.rows:
        assert float(row[2]) <= 79.6  # GiB of an H100


def test_splits_that_fit_nowhere_are_lines_instead_of_rows() -> None:
    found = plan(asked())
    tables = grids(found)
    assert {row[1] for row in tables[0].rows} == {"4", "8"}
    assert [grid.title for grid in tables if "gains" in grid.title] == [
        "What TP 8 gains over TP 4, (TGS(8) - TGS(4)) / TGS(4), by responses"
    ]
    (choices,) = (block for block in blocks(found, None) if not isinstance(block, Grid))
    assert choices[0] == "The choice, by context"
    lines = [line.strip() for line in choices if "every context: out of memory" in line]
    assert [line.split(":")[0] for line in lines] == [
        "rollout, TP 1 at every context",
        "rollout, TP 2 at every context",
    ]


@pytest.mark.parametrize(("price", "names"), [(None, ("GPU-h",)), (2.0, ("GPU-h", "cost"))])
def test_a_cost_is_said_where_a_price_is(price: float | None, names: tuple[str, ...]) -> None:
    (grid,) = (one for one in grids(plan(asked(contexts="8192")), price) if one.title.startswith("A step, "))
    assert grid.names[9 - 1 :] == names
    if price:
        hours, cost = (float(value.replace(",", "")) for value in grid.rows[0][-2:])
        assert cost == pytest.approx(2 * hours, rel=0.01)


def test_clusters_side_by_side_by_context() -> None:
    both = [plan(asked(gpus, contexts="1024,8192")) for gpus in ("16x8xH100", "8xH100")]
    grid = comparison_grid(both, None)
    assert [row[:2] for row in grid.rows] == [
        ("1,024", "16x8xH100"),
        ("", "8xH100"),
        ("8,192", "16x8xH100"),
        ("", "8xH100"),
    ]
    assert grid.rows[1][2:] == ("update: no layout fits",)
