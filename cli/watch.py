"""`earl watch`: shows a run as it goes on. run folder ─▶ read_run (polls) ─▶ panels ─▶ the terminal."""

import os
import sys
import time
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path

from rich.console import Console
from rich.live import Live

from earl.cli.options import declared, print_json
from earl.cli.panels import as_object, draw, snapshot
from earl.cli.text import CLOSED, console, keyboard
from earl.errors import EarlError
from earl.runs.folder import RunFolder, open_run
from earl.runs.summary import StoredRun

LOAD = 0.1
"""Largest share of a CPU for the view: if reading a long run is slow, it refreshes less often."""


@declared("watch")
def command(run: str, root: Path, once: bool, as_json: bool) -> None:
    if os.environ.get("TERM") == "linux" and isinstance(sys.stdout, TextIOWrapper):  # the console's font has no braille
        sys.stdout.reconfigure(encoding="ascii", errors="replace")
    folder, out = open_run(root, run), console()
    if as_json:
        print_json(as_object(read_run(folder)))
    elif once or not sys.stdout.isatty() or out.is_dumb_terminal:
        snapshot(read_run(folder), out)
    else:
        watch(folder, out)


def read_run(folder: RunFolder, before: StoredRun | None = None) -> StoredRun:
    """The run as it is now. Raises EarlError if the folder is gone."""
    if not folder.config.is_file():
        raise EarlError(
            f"run {folder.name!r} is gone from {folder.path}: a run that fails before its first checkpoint is removed; "
            "its own terminal says why"
        )
    return StoredRun(folder, before)


def watch(folder: RunFolder, out: Console) -> None:
    """Show the run until q or Ctrl-C is pressed. The training is not affected."""
    run, page, due, shown, pressed = read_run(folder), 0, 0.0, None, ""
    with suppress(KeyboardInterrupt), keyboard() as wait, Live(console=out, screen=True, auto_refresh=False) as live:
        while pressed not in ("q", "Q", CLOSED):
            page, began = page + (pressed in ("\t", " ")), time.monotonic()
            if began >= due:
                run = read_run(folder, run)
            if began >= due or (out.size, page) != shown:
                live.update(draw(run, *out.size, page), refresh=True)
                shown = out.size, page
            if began >= due:
                due = began + max(1.0, (time.monotonic() - began) / LOAD)
            pressed = wait(min(0.2, max(0.0, due - time.monotonic())))
