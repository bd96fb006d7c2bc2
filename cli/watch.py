"""`earl watch`: shows the live view of a run."""

import os
import sys
from io import TextIOWrapper
from pathlib import Path

import click

from earl.cli.options import json_option, print_json, runs_option


@click.command()
@click.argument("run")
@runs_option
@click.option("--once", is_flag=True, help="Print what there is and end, as is done where stdout is no terminal.")
@json_option
def command(run: str, root: Path, once: bool, as_json: bool) -> None:
    """Watch a run in the terminal.

    RUN is a name in --runs or a path: strength by opponent, reward, the growth of contexts with its limit and
    forecast, tokens by author, stage times, events. q or Ctrl-C leaves; the training goes on. Of a run that has ended
    the last state is shown.
    """
    from earl.cli.live import screen
    from earl.cli.live.context import as_object
    from earl.cli.live.now import Reader
    from earl.cli.players import need_run
    from earl.cli.text import console

    if os.environ.get("TERM") == "linux" and isinstance(sys.stdout, TextIOWrapper):  # the console's font has no braille
        sys.stdout.reconfigure(encoding="ascii", errors="replace")
    reader, out = Reader(need_run(root, run)), console()
    if as_json:
        print_json(as_object(reader.read()))
    elif once or not sys.stdout.isatty() or out.is_dumb_terminal:
        screen.snapshot(reader.read(), out)
    else:
        screen.watch(reader, out)
