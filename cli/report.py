"""`earl report`: writes the HTML page of one or several runs."""

from pathlib import Path

import click

from earl.cli.options import declared, print_json
from earl.cli.text import clean


@declared("report")
def command(run: tuple[str, ...], out: Path | None, root: Path, as_json: bool) -> None:
    from earl import reports
    from earl.runs.folder import open_run

    page = reports.write(*(open_run(root, name) for name in dict.fromkeys(run)), out=out)
    return print_json({"report": str(page)}) if as_json else click.echo(clean(page))
