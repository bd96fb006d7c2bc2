"""`earl runs`: lists the runs."""

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from earl.cli.options import declared, print_json


@declared("runs")
def command(root: Path, as_json: bool) -> None:
    from earl.runs.folder import RunFolder, listing
    from earl.runs.storage import storage

    if not root.is_dir() and root != Path("runs"):
        raise click.UsageError(f"--runs {str(root)!r} is no folder.")
    with storage(root):
        folders: list[RunFolder] = listing(root)
    rows = sorted(map(_row, folders), key=lambda row: row.get("started") or "9999")  # not begun, or damaged: last
    if as_json:
        print_json(rows)
    elif rows:
        _print(rows)
    else:
        click.echo(f"no runs in {root} yet; start one with: earl train tictactoe", err=True)


def _row(folder: Any) -> dict[str, Any]:
    from earl.cli.match_tables import as_objects, in_short
    from earl.errors import EarlError
    from earl.runs.summary import summarize

    try:
        run = summarize(folder)
        state = run.state
    except EarlError as error:
        return {"run": folder.name, "state": "damaged", "problem": str(error)}
    results = [match.result for match in run.last_evaluation]
    return {
        "run": folder.name,
        "path": str(folder.path),
        "env": run.config.env.name if run.config else None,
        "step": run.step,
        "steps": run.steps,
        "state": state,
        "evaluation": as_objects(results),
        "in_short": in_short(results),
        "started": _time(run.started) if run.started else None,
        "changed": _time(run.changed),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _print(rows: list[dict[str, Any]]) -> None:
    from earl.cli.text import one_line, print_table

    shown = []
    for row in rows:
        name = row["run"] if row["run"].isprintable() else repr(row["run"])
        if row["state"] == "damaged":
            cells = [name, "", "", "damaged", row["problem"], ""]
        else:
            when = row["changed"][:16].replace("T", " ")
            cells = [name, row["env"], f"{row['step']}/{row['steps']}", row["state"], row["in_short"], when]
        shown.append(map(one_line, cells))
    print_table(("run", "env", "step", "state", "last evaluation", "when"), shown)
