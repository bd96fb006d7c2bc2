"""`earl report`: writes the HTML page of one or several runs, and their tables as files."""

from pathlib import Path

import click

from earl.cli.options import declared, print_json
from earl.cli.text import clean


@declared("report")
def command(
    run: tuple[str, ...], out: Path | None, folder: Path | None, formats: tuple[str, ...], root: Path, as_json: bool
) -> None:
    from earl import reports
    from earl.cli.players import need_run

    folders = [need_run(root, name) for name in dict.fromkeys(run)]
    page = reports.write(*folders, out=out)
    tables = reports.write_tables(*folders, to=folder, formats=formats) if folder else []
    if as_json:
        return print_json({"report": str(page), "tables": [str(path) for path in tables]})
    if folder:
        click.echo(f"{len(tables)} files in {clean(folder)}", err=True)
    return click.echo(clean(page))
