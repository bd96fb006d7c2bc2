"""The live view's event loop: reads the run about once a second, draws changes, handles keys and resizing."""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.live import Live
from rich.text import Text

from earl.cli.live.now import RunNow, read_run
from earl.cli.live.page import PANELS, arrange, body, draw, header
from earl.runs.folder import RunFolder

_ACTIONS = {
    "quit": ("q", "Q", "\x03", "\x04", ""),
    "next": ("\t", " ", "n", "\x1b[C", "\x1b[B", "\x1bOC", "\x1b[6~"),
    "previous": ("p", "\x1b[D", "\x1b[A", "\x1bOD", "\x1b[5~", "\x1b[Z"),
    **{str(number): (str(number),) for number in range(1, 10)},
}
KEYS = {key: action for action, keys in _ACTIONS.items() for key in keys}
"""Input bytes -> action; none: the terminal is closed. Other keys are ignored."""


@contextmanager
def keyboard() -> Iterator[Callable[[float], str | None]]:
    """Gives a function that waits so many seconds for a key and returns its action, or only sleeps without a terminal.

    Keys are not echoed, and Ctrl-C is a key. SIGTERM acts like SIGINT, which works even if it was ignored at the
    start, as it is for a script's background jobs.
    """
    descriptor = sys.stdin.fileno() if sys.stdin.isatty() else None

    def wait(seconds: float) -> str | None:
        if not select.select([] if descriptor is None else [descriptor], [], [], seconds)[0]:
            return None
        return KEYS.get(os.read(sys.stdin.fileno(), 64).decode(errors="replace"))  # an arrow is one read of three bytes

    handlers = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    before = None if descriptor is None else termios.tcgetattr(descriptor)
    try:
        if descriptor is not None:
            tty.setcbreak(descriptor, termios.TCSADRAIN)
            mode = termios.tcgetattr(descriptor)
            mode[3] &= ~termios.ISIG
            termios.tcsetattr(descriptor, termios.TCSADRAIN, mode)
        yield wait
    finally:
        if descriptor is not None and before is not None:
            termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


REFRESH_SECONDS = 1.0
RESIZE_SECONDS = 0.2
"""How soon a new size of the terminal is seen."""
LOAD = 0.1
"""Largest share of a CPU for the view: if reading a long run is slow, it refreshes less often."""
SNAPSHOT_PANEL = 13


def watch(folder: RunFolder, console: Console) -> RunNow:
    """Show the run until q or Ctrl-C is pressed; return the last state read. The training is not affected."""
    run, page, live = read_run(folder), 0, Live(console=console, screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), keyboard() as wait, live:
        due, shown, pressed = time.monotonic(), None, None
        while pressed != "quit":
            page, began = turned(page, pressed), time.monotonic()
            if began >= due:
                run = read_run(folder, run)
            size = console.size
            if began >= due or (size, page) != shown:
                live.update(draw(run, *size, page), refresh=True)
                shown = size, page
            if began >= due:
                due = began + max(REFRESH_SECONDS, (time.monotonic() - began) / LOAD)
            pressed = wait(min(RESIZE_SECONDS, max(0.0, due - time.monotonic())))
    return run


def turned(page: int, pressed: str | None) -> int:
    if pressed is not None and pressed.isdigit():
        return int(pressed) - 1
    return page + (pressed == "next") - (pressed == "previous")


def snapshot(run: RunNow, console: Console) -> None:
    """Print all panels, without blanks at the ends of lines."""
    columns = arrange(console.width, SNAPSHOT_PANEL * len(PANELS), len(PANELS)).columns
    panels = body(run, range(len(PANELS)), columns)
    for line in header(run, console.width):
        console.print(line, no_wrap=True, overflow="crop")
    height = SNAPSHOT_PANEL * -(-len(PANELS) // columns)
    lines = console.render_lines(panels, console.options.update_height(height))
    texts = [Text.assemble(*((part.text, part.style or "") for part in line)) for line in lines]
    for text in texts:
        text.rstrip()
    shown = Text("\n").join(texts)
    shown.rstrip()
    console.print(shown, no_wrap=True, overflow="crop")
