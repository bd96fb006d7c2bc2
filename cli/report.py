"""`earl report`: writes the HTML page of one or several runs, and their tables as files."""

from pathlib import Path

import click

from earl.cli.options import json_option, print_json, runs_option
from earl.cli.text import clean


@click.command()
@click.argument("run", nargs=-1, required=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="The page to write.")
@click.option(
    "--export",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write every table of the report into this folder as well.",
)
@click.option(
    "--format",
    "formats",
    type=click.Choice(["csv", "parquet"]),
    multiple=True,
    default=["csv", "parquet"],
    show_default=True,
    help="What --export writes; may be repeated.",
)
@runs_option
@json_option
def command(
    run: tuple[str, ...], out: Path | None, folder: Path | None, formats: tuple[str, ...], root: Path, as_json: bool
) -> None:
    """Write a run's report anew, or that of several runs side by side.

    RUN is a name in --runs or a path. The page holds all that it needs and opens offline; its path is printed. The
    page of one run lies in its folder, that of several beside the first. A run that is still going on is not
    disturbed.
    """
    from earl import report
    from earl.cli.players import need_run

    folders = [need_run(root, name) for name in dict.fromkeys(run)]
    page = report.write(*folders, out=out)
    tables = report.write_tables(*folders, to=folder, formats=formats) if folder else []
    if as_json:
        return print_json({"report": str(page), "tables": [str(path) for path in tables]})
    if folder:
        click.echo(f"{len(tables)} files in {clean(folder)}", err=True)
    return click.echo(clean(page))
