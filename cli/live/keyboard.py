"""Keys as they are pressed, and sizes as they change, for as long as the view has the terminal."""

import os
import select
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

KEYS = {
    "q": "quit",
    "Q": "quit",
    "\x04": "quit",
    "\x1a": "suspend",
    "\t": "next",
    " ": "next",
    "n": "next",
    "p": "previous",
    "\x1b[C": "next",
    "\x1b[B": "next",
    "\x1bOC": "next",
    "\x1b[6~": "next",
    "\x1b[D": "previous",
    "\x1b[A": "previous",
    "\x1bOD": "previous",
    "\x1b[5~": "previous",
    "\x1b[Z": "previous",
    **{str(number): str(number) for number in range(1, 10)},
}
"""What arrives for a key -> what it means. Any other key means nothing."""


class Keyboard:
    """Waits for keys on a terminal, or just waits where stdin is none."""

    def __init__(self, descriptor: int | None, resized: int) -> None:
        self._descriptor, self._resized = descriptor, resized

    def wait(self, seconds: float) -> str | None:
        """The meaning of the next key; "resize" when the terminal changed its size; None when the time is up."""
        watched = [self._resized, *([] if self._descriptor is None else [self._descriptor])]
        ready, _, _ = select.select(watched, [], [], seconds)
        if self._resized in ready:
            os.read(self._resized, 4096)
            return "resize"
        if self._descriptor is None or self._descriptor not in ready:
            return None
        pressed = os.read(self._descriptor, 64)  # an arrow is one read of three bytes
        return KEYS.get(pressed.decode(errors="replace"), "other") if pressed else "quit"  # the terminal is gone


@contextmanager
def keyboard() -> Iterator[Keyboard]:
    """Take the keyboard: no echo, no waiting for Return; Ctrl-Z comes as a key. Given back whatever happens."""
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
    """A terminal mode without lines and echo; Ctrl-C stays a signal."""
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
    mode[6][termios.VSUSP] = b"\0"
    return mode


@contextmanager
def _wakeups() -> Iterator[int]:
    """A descriptor that can be read whenever the terminal has changed its size; SIGTERM ends like Ctrl-C.

    Ctrl-C is heard even where it was ignored when the process began, as it is by whatever a script starts with `&`.
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
