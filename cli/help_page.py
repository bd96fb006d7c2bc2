"""Generates docs/cli.md from the text of --help: `python -m earl.cli.help_page > docs/cli.md`."""

from collections.abc import Iterator

import click

from earl.cli.main import cli

WIDTH = 88
INTRODUCTION = """# The command line

Written by `make docs` from what `--help` says. Results go to stdout, progress and errors to stderr. Exit codes: 0 done,
1 a check found something, 2 something to mend in what was asked for (the line names the value, the rule and the cure),
130 stopped by Ctrl-C or SIGTERM, 137 ended by force because it did not stop within the grace period.
"""


def page() -> str:
    sections = [f"## `{path}`\n\n```text\n{text.rstrip()}\n```\n" for path, text in _helps(cli, "earl", None)]
    return "\n".join([INTRODUCTION, *sections])


def _helps(command: click.Command, path: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    context = click.Context(
        command, info_name=path.split()[-1], parent=parent, terminal_width=WIDTH, **command.context_settings
    )
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _helps(below, f"{path} {name}", context)


if __name__ == "__main__":
    click.echo(page(), nl=False)
