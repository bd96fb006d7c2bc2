"""Sanitises text for the terminal. Every string from a model, an environment or a file must pass through here."""

import os
import re
import select
import sys
import time
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor, screen
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)"  # titles, links, device strings, up to their terminator
    r"|\x1b[ -/]*[0-~]",
    re.DOTALL,
)
_KEPT = "\n\t"
PIPE_WIDTH = 120


def clean(text: object) -> str:
    """Remove terminal control sequences: escapes, control characters, and marks that change the text direction."""
    bare = _ESCAPES.sub("", str(text))
    return "".join(_harmless(character) for character in bare)


def one_line(text: object) -> str:
    """Clean text with each run of white space as one space."""
    return " ".join(clean(text).split())


def console(stderr: bool = False) -> "Console":
    """A console that prints strings literally: no markup, no emoji codes, no highlighting."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, markup=False, emoji=False, highlight=False, width=width)


def table(columns: Iterable[str], rows: Iterable[Iterable[object]], right: Collection[str] = ()) -> "Table":
    """A table of cleaned cells, the columns named in `right` flush right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        drawn.add_column(name, justify="right" if name in right else "left", min_width=max(map(len, name.split("\n"))))
    for row in rows:
        drawn.add_row(*(cell if isinstance(cell, Text) else clean(cell) for cell in row))
    return drawn


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]], right: Collection[str] = ()) -> None:
    console().print(table(columns, rows, right))


def _harmless(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Zl", "Zp"):
        return " "
    # Cc control, Cf format (direction, zero width, tags), Cs surrogates, Co private, Cn unassigned
    return "" if category.startswith("C") and character not in _KEPT else character


CLOSED = "\x04"
"""The key by which a person ends the input; also what is read of a terminal that is closed."""


@contextmanager
def keyboard() -> Iterator[Callable[[float | None], str]]:
    """Gives a function that waits so many seconds, or for ever, for keys, which are not echoed; it only sleeps without
    a terminal."""
    import termios
    import tty

    keys = sys.stdin.fileno() if sys.stdin.isatty() else None

    def wait(seconds: float | None) -> str:
        if keys is None or not select.select([keys], [], [], seconds)[0]:
            time.sleep(seconds or 0 if keys is None else 0)
            return ""
        return os.read(keys, 64).decode(errors="replace") or CLOSED

    if keys is None:
        yield wait
        return
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys, termios.TCSADRAIN)
        yield wait
    finally:
        termios.tcsetattr(keys, termios.TCSAFLUSH, before)
