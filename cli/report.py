"""`earl report`: the HTML page of a run."""

from pathlib import Path

import click

from earl.cli.options import runs_option
from earl.cli.text import clean


@click.command()
@click.argument("run")
@runs_option
def command(run: str, root: Path) -> None:
    """Write a run's report anew.

    RUN is a name in --runs or a path. The page holds all that it needs and opens offline; its path is printed. A run
    that is still going on is not disturbed.
    """
    from earl import report
    from earl.cli.players import need_run

    click.echo(clean(report.write(need_run(root, run))))
