"""`earl audit`: checks the stored episodes of a run."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from earl.cli.options import declared, print_json
from earl.cli.text import clean, console, one_line, print_table

if TYPE_CHECKING:
    from earl.audit.findings import Audit, Finding, Verdict

SHOWN = 20
FOUND = 1
"""Exit code if there are findings."""


@declared("audit")
def command(run: str, step: int | None, root: Path, as_json: bool) -> int:
    from earl.runs.folder import open_run

    folder = open_run(root, run)

    from earl.audit import audit  # imports torch, which a wrong name does not need

    with console(stderr=True).status("reading") as status:  # shows nothing if stderr is no terminal
        said = audit(folder, step, status.update)
    if as_json:
        print_json(_object(said))
    else:
        _print(said)
    return FOUND if said.findings else 0


def _print(said: "Audit") -> None:
    rows = [(verdict.check, verdict.question, _result(verdict)) for verdict in said.verdicts]
    print_table(("check", "asks whether", "result"), rows)
    for finding in said.findings[:SHOWN]:
        click.echo(clean(f"{finding.fault}: {where(finding)}: {one_line(finding.message)}"))
    if len(said.findings) > SHOWN:
        click.echo(f"… and {len(said.findings) - SHOWN} more; --json prints all")
    for noted in said.idle[:SHOWN]:
        click.echo(one_line(f"warning: {noted}"))
    counted = f"{said.episodes:,} episodes in {said.files} files"
    verdict = f"{len(said.findings)} findings" if said.findings else "nothing wrong"
    click.echo(clean(f"{said.run}: {verdict} in {counted}"))


def _result(verdict: "Verdict") -> str:
    count = len(verdict.findings)
    result = {"failed": f"{count} finding{'s' * (count > 1)}", "partly": "passed in part"}
    lines = [result.get(verdict.state, verdict.state)]
    lines += [f"{one_line(reason)} ({files} of {verdict.files} files)" for reason, files in verdict.unchecked.items()]
    return "\n".join(lines)


def where(finding: "Finding") -> str:
    """The place of a finding, such as "step 60, episode 3, turn 1, token 41"."""
    names = ("step", "episode", "turn", "token")
    places = [f"{name} {value}" for name in names if (value := getattr(finding, name)) is not None]
    return ", ".join(places) or "run"


def _object(said: "Audit") -> dict[str, Any]:
    return {
        "run": said.run,
        "passed": not said.findings,
        "files": said.files,
        "episodes": said.episodes,
        "checks": [{"check": one.check, "state": one.state, "not_checked": one.unchecked} for one in said.verdicts],
        "findings": [asdict(finding) for finding in said.findings],
        "warnings": [*said.idle],
    }
