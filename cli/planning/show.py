"""A plan in the terminal."""

from collections.abc import Sequence
from itertools import pairwise

import click

from earl.cli import transfers as tables_of_transfers
from earl.cli.options import print_json
from earl.cli.planning.tables import comparison_table, map_table, rollout_table, step_table, training_table
from earl.cli.planning.words import head, switch_lines, uncertain
from earl.cli.text import console
from earl.planner.plan import Plan, plan
from earl.planner.question import Question


def transfers(planned: tables_of_transfers.Planned, as_json: bool) -> None:
    """Print what dispatch alone would take."""
    if as_json:
        print_json(planned.as_object)
    else:
        tables_of_transfers.show(planned)


def plans(asked: Sequence[Question], price: float | None, as_json: bool) -> None:
    """Plan for every cluster and print it, several side by side at the end.

    Args:
        price: of a GPU-hour; None: no cost is said.
    """
    found = [plan(one) for one in asked]
    if as_json:
        objects = [one.as_object(price) for one in found]
        return print_json(objects[0] if len(objects) == 1 else {"plans": objects})
    for one in found:
        _show(one, price)
    if len(found) > 1:
        _compare(found, price)
    return None


def _show(plan: Plan, price: float | None) -> None:
    """Print it whole.

    Args:
        price: of a GPU-hour; None: no cost is said.
    """
    screen = console()
    click.echo("\n".join(head(plan)))
    click.echo("\nRollout: tokens per GPU and second, by responses that one copy of the engine is given at once")
    screen.print(rollout_table(plan))
    for before, after in pairwise(plan.asked.tps):
        click.echo(f"What TP {after} gains over TP {before}, (TGS(b) - TGS(a)) / TGS(a), by responses")
        screen.print(map_table(plan, before, after))
    click.echo("Learner: tokens per GPU and second; R: activations are recomputed, O: moments are in host memory")
    screen.print(training_table(plan, ("experience", "update")))
    click.echo("The choice, by context")
    click.echo("\n".join(f"  {line}" for line in [*switch_lines(plan), uncertain(plan)]))
    click.echo("\nA step, each stage in the layout that takes it the least time")
    screen.print(step_table(plan.steps, price))


def _compare(found: Sequence[Plan], price: float | None) -> None:
    """What the clusters differ in, at every context."""
    click.echo("\nThe clusters side by side")
    console().print(comparison_table(found, price))
