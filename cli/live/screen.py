"""The view in a terminal: reads the run about once a second, draws when something changed, listens to keys."""

import os
import signal
import time

from rich.console import Console
from rich.live import Live

from earl.cli.live.head import header
from earl.cli.live.keyboard import keyboard
from earl.cli.live.now import RunNow
from earl.cli.live.page import PANELS, arrange, body, draw
from earl.cli.live.reader import Reader
from earl.cli.live.spans import Line, to_text

REFRESH_SECONDS = 1.0
LOAD = 0.1
"""Most of a processor that the view may take: where a long run makes it dear, it refreshes less often."""
SNAPSHOT_PANEL = 13
"""Lines of a panel where there is no screen to fill."""


def watch(reader: Reader, console: Console) -> RunNow:
    """Show the run until q or Ctrl-C is pressed; the training is not touched. Returns what was read last."""
    run, page = reader.read(), 0
    while True:
        try:
            run, page, suspended = _session(reader, console, run, page)
        except KeyboardInterrupt:
            return run
        if not suspended:
            return run
        os.kill(os.getpid(), signal.SIGSTOP)  # goes on here after the shell's `fg`


def _session(reader: Reader, console: Console, run: RunNow, page: int) -> tuple[RunNow, int, bool]:
    """Hold the screen until the view is left. Returns what was read last, the page, and whether to come back."""
    with keyboard() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        due = time.monotonic()
        while True:
            began = time.monotonic()
            if began >= due:
                run = reader.read()
            width, height = console.size
            live.update(to_text(draw(run, width, height, plain(console), page)), refresh=True)
            if began >= due:
                due = began + max(REFRESH_SECONDS, (time.monotonic() - began) / LOAD)
            pressed = keys.wait(max(0.0, due - time.monotonic()))
            if pressed in ("quit", "suspend"):
                return run, page, pressed == "suspend"
            page = turned(page, pressed)


def turned(page: int, pressed: str | None) -> int:
    """The page after a key."""
    if pressed == "next":
        return page + 1
    if pressed == "previous":
        return page - 1
    if pressed is not None and pressed.isdigit():
        return int(pressed) - 1
    return page


def snapshot(run: RunNow, console: Console) -> None:
    """Print all panels once, one below the other where the console is narrow."""
    width = console.width
    grid = arrange(width, SNAPSHOT_PANEL * len(PANELS), len(PANELS))
    rows = -(-len(PANELS) // grid.columns)
    lines: list[Line] = [*header(run, width, plain(console))]
    lines += body(run, range(len(PANELS)), grid.columns, width, SNAPSHOT_PANEL * rows, plain(console))
    kept = [_trimmed(line) for line in lines]
    while not kept[-1]:
        kept.pop()
    console.print(to_text(kept))


def _trimmed(line: Line) -> Line:
    """Without blanks at the end."""
    kept = list(line)
    while kept and not kept[-1][0].strip():
        kept.pop()
    return [*kept[:-1], (kept[-1][0].rstrip(), kept[-1][1])] if kept else []


def plain(console: Console) -> bool:
    """Whether only ASCII is drawn: no UTF-8, or a console of Linux itself, whose font has no braille."""
    return not console.encoding.startswith("utf") or os.environ.get("TERM") == "linux"
