"""`earl plan`: what a job would take on a cluster that is not here."""

from pathlib import Path
from typing import Any

import click

from earl.cli.options import print_json
from earl.cli.planning.options import planning_options


@click.command()
@click.argument("env", required=False)
@planning_options
def command(env: str | None, dispatch: bool, columns: str | None, html: Path | None, as_json: bool, **given: Any) -> None:
    """Say what a job would take on a cluster, without it."""
    from earl.cli.planning import asking
    from earl.cli.planning.show import show
    from earl.planner.plan import plan

    asked = asking.questions(asking.options(env, **given))
    plans = [plan(one) for one in asked]
    for one in plans:
        show(one)
