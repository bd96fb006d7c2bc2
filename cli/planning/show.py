"""A plan in the terminal, as JSON, or as a page."""

from collections.abc import Sequence
from pathlib import Path

import click

from earl.cli import transfers as tables_of_transfers
from earl.cli.options import print_json
from earl.cli.text import clean, console, one_line
from earl.planner.plan import Plan, plan
from earl.planner.question import Question
from earl.planner.sheet import sheet
from earl.planner.spoken import Grid
from earl.planner.step_grids import comparison_grid


def transfers(planned: tables_of_transfers.Planned, as_json: bool) -> None:
    """Print what dispatch alone would take."""
    if as_json:
        print_json(planned.as_object)
    else:
        tables_of_transfers.show(planned)


def plans(asked: Sequence[Question], price: float | None, page: Path | None, as_json: bool) -> None:
    """Plan for every cluster and print it, several side by side at the end.

    Args:
        price: of a GPU-hour; None: no cost is said.
        page: where to write the plan as HTML, too.
    """
    found = [plan(one) for one in asked]
    if page:
        from earl.report.planning import write

        write(page, found, price)
    if as_json:
        objects = [one.as_object(price) for one in found]
        return print_json(objects[0] if len(objects) == 1 else {"plans": objects})
    for one in found:
        _show(one, price)
    if len(found) > 1:
        _print(comparison_grid(found, price))
    if page:
        click.echo(clean(page), err=True)
    return None


def _show(one: Plan, price: float | None) -> None:
    told = sheet(one, price)
    click.echo("\n".join(one_line(line) for line in told.head))
    for grid in told.grids:
        click.echo()
        _print(grid)
    click.echo("\nThe choice, by context")
    click.echo("\n".join(f"  {line}" for line in told.choices))
    for grid in told.step:
        click.echo()
        _print(grid)


def _print(grid: Grid) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in grid.names:
        table.add_column(name, justify="right", no_wrap=True)
    for row in grid.rows:
        table.add_row(*row)
    click.echo(grid.title)
    console().print(table)
