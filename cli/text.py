"""Sanitises text for the terminal. Every string from a model, an environment or a file must pass through here."""

import re
import sys
import unicodedata
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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


def table(columns: Iterable[str], rows: Iterable["Iterable[str | Text]"], right: Collection[str] = ()) -> "Table":
    """A table of cleaned cells, the columns named in `right` flush right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        drawn.add_column(name, justify="right" if name in right else "left", min_width=max(map(len, name.split("\n"))))
    for row in rows:
        drawn.add_row(*(clean(cell) if isinstance(cell, str) else cell for cell in row))
    return drawn


def _harmless(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Zl", "Zp"):
        return " "
    # Cc control, Cf format (direction, zero width, tags), Cs surrogates, Co private, Cn unassigned
    return "" if category.startswith("C") and character not in _KEPT else character
