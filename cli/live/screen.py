"""The live view's event loop: reads the run about once a second, draws changes, handles keys and resizing."""

import os
import select
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from earl.cli.live.canvas import Line, to_text
from earl.cli.live.now import Reader, RunNow
from earl.cli.live.page import PANELS, arrange, body, draw, header

_ACTIONS = {
    "quit": ("q", "Q", "\x04"),
    "suspend": ("\x1a",),
    "next": ("\t", " ", "n", "\x1b[C", "\x1b[B", "\x1bOC", "\x1b[6~"),
    "previous": ("p", "\x1b[D", "\x1b[A", "\x1bOD", "\x1b[5~", "\x1b[Z"),
    **{str(number): (str(number),) for number in range(1, 10)},
}
KEYS = {key: action for action, keys in _ACTIONS.items() for key in keys}
"""Input bytes -> action. Other keys are ignored."""


class Keyboard:
    """Waits for keys on a terminal; only sleeps if stdin is no terminal."""

    def __init__(self, descriptor: int | None, resized: int) -> None:
        self._descriptor, self._resized = descriptor, resized

    def wait(self, seconds: float) -> str | None:
        """Return the next key's action; "resize" if the terminal changed size; None on timeout."""
        watched = [self._resized, *([] if self._descriptor is None else [self._descriptor])]
        ready, _, _ = select.select(watched, [], [], seconds)
        if self._resized in ready:
            os.read(self._resized, 4096)
            return "resize"
        if self._descriptor is None or self._descriptor not in ready:
            return None
        pressed = os.read(self._descriptor, 64)  # an arrow key is one read of three bytes
        return KEYS.get(pressed.decode(errors="replace"), "other") if pressed else "quit"  # the terminal is closed


@contextmanager
def keyboard() -> Iterator[Keyboard]:
    """Set the terminal to raw input (no echo, no line buffering, Ctrl-Z as a key), and restore it at the end."""
    descriptor = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = termios.tcgetattr(descriptor) if descriptor is not None else None
    with _wakeups() as resized:
        try:
            if descriptor is not None:
                termios.tcsetattr(descriptor, termios.TCSADRAIN, _raw(termios.tcgetattr(descriptor)))
            yield Keyboard(descriptor, resized)
        finally:
            if descriptor is not None and before is not None:
                termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


def _raw(mode: list[Any]) -> list[Any]:
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
    mode[6][termios.VSUSP] = b"\0"
    return mode


@contextmanager
def _wakeups() -> Iterator[int]:
    """A descriptor that becomes readable when the terminal is resized; SIGTERM acts like Ctrl-C.

    Ctrl-C works even if SIGINT was ignored at the start, as it is for a script's background jobs.
    """
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def resized(*_: object) -> None:
        os.write(writing, b"r")

    handlers: dict[signal.Signals, Callable[..., None]] = {
        signal.SIGWINCH: resized,
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.default_int_handler,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield reading
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


REFRESH_SECONDS = 1.0
LOAD = 0.1
"""Largest share of a CPU for the view: if reading a long run is slow, it refreshes less often."""
SNAPSHOT_PANEL = 13


def watch(reader: Reader, console: Console) -> RunNow:
    """Show the run until q or Ctrl-C is pressed; return the last state read. The training is not affected."""
    run, page = reader.read(), 0
    while True:
        try:
            run, page, suspended = _session(reader, console, run, page)
        except KeyboardInterrupt:
            return run
        if not suspended:
            return run
        os.kill(os.getpid(), signal.SIGSTOP)  # continues here after the shell's `fg`


def _session(reader: Reader, console: Console, run: RunNow, page: int) -> tuple[RunNow, int, bool]:
    """Show the screen until the user leaves. Returns the last state, the page, and whether it was only suspended."""
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
    if pressed == "next":
        return page + 1
    if pressed == "previous":
        return page - 1
    if pressed is not None and pressed.isdigit():
        return int(pressed) - 1
    return page


def snapshot(run: RunNow, console: Console) -> None:
    width = console.width
    grid = arrange(width, SNAPSHOT_PANEL * len(PANELS), len(PANELS))
    rows = -(-len(PANELS) // grid.columns)
    lines: list[Line] = [*header(run, width, plain(console))]
    lines += body(run, range(len(PANELS)), grid.columns, width, SNAPSHOT_PANEL * rows, plain(console))
    kept = to_text(lines).split(allow_blank=True)
    for line in kept:
        line.rstrip()
    shown = Text("\n", no_wrap=True, overflow="crop", end="").join(kept)
    shown.rstrip()
    console.print(shown)


def plain(console: Console) -> bool:
    """Whether to draw ASCII only: no UTF-8, or the Linux console, whose font has no braille."""
    return not console.encoding.startswith("utf") or os.environ.get("TERM") == "linux"
