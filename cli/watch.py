"""`earl watch`: shows the live view of a run."""

import os
import sys
from io import TextIOWrapper
from pathlib import Path

from earl.cli.options import declared, print_json


@declared("watch")
def command(run: str, root: Path, once: bool, as_json: bool) -> None:
    from earl.cli.live import screen
    from earl.cli.live.now import as_object, read_run
    from earl.cli.players import need_run
    from earl.cli.text import console

    if os.environ.get("TERM") == "linux" and isinstance(sys.stdout, TextIOWrapper):  # the console's font has no braille
        sys.stdout.reconfigure(encoding="ascii", errors="replace")
    folder, out = need_run(root, run), console()
    if as_json:
        print_json(as_object(read_run(folder)))
    elif once or not sys.stdout.isatty() or out.is_dumb_terminal:
        screen.snapshot(read_run(folder), out)
    else:
        screen.watch(folder, out)
