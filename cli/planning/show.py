"""A plan in the terminal."""

from itertools import pairwise

import click

from earl.cli.planning.tables import map_table, rollout_table, switch_lines, uncertain
from earl.cli.text import console, one_line
from earl.planner.plan import Plan


def show(plan: Plan) -> None:
    """Print it whole."""
    asked, screen = plan.asked, console()
    click.echo("\n".join(_head(plan)))
    click.echo("\nRollout: tokens per GPU and second by responses that one copy of the engine is given at once")
    screen.print(rollout_table(plan))
    for before, after in pairwise(asked.tps):
        click.echo("Speed-up, (TGS(b) - TGS(a)) / TGS(a): above 0 the larger split is ahead")
        screen.print(map_table(plan, before, after))
    click.echo("Choice")
    click.echo("\n".join(f"  {line}" for line in switch_lines(plan)))
    click.echo(f"  {uncertain(plan.choices)} of {len(plan.choices)} are uncertain")


def _head(plan: Plan) -> list[str]:
    asked = plan.asked
    cluster = asked.cluster
    return [
        f"{one_line(asked.model)} on {cluster.hosts:,} x {cluster.gpus_per_host} "
        f"{cluster.device.kind if cluster.device else ''}: predicted by a model fitted to published tables, "
        "nothing was measured",
    ]
