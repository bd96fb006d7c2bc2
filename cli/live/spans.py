"""Lines of coloured text that fit exactly: the material that every panel is made of."""

from collections.abc import Sequence
from textwrap import wrap

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from earl.cli.text import one_line

Span = tuple[str, str]
"""Text and its style; "" is the terminal's own."""
Line = Sequence[Span]

DIM = "bright_black"
GOOD, WARN, BAD = "green", "yellow", "red"
PALETTE = ("cyan", "green", "magenta", "yellow", "blue", "white", "red")
"""Of the 16 colours that every terminal has, so that its own theme holds."""


def fit(line: Line, width: int) -> list[Span]:
    """The line in exactly `width` columns: cut, or filled with blanks. Wide characters count as two."""
    fitted: list[Span] = []
    left = width
    for text, style in line:
        size = min(cell_len(text), left)
        fitted.append((set_cell_size(text, size), style))
        left -= size
    return [*fitted, (" " * left, "")] if left else fitted


def column(text: str, width: int, right: bool = False) -> str:
    """A text in exactly `width` columns, cut where it is too long."""
    blank = " " * max(0, width - cell_len(text))
    return set_cell_size(blank + text if right else text + blank, max(0, width))


def safe(text: str) -> str:
    """A text of unknown origin in one line that cannot steer the terminal, and no longer than a screen can show."""
    return one_line(text[:1000])


def wrapped(text: str, width: int, most: int) -> list[str]:
    """At most `most` lines of a text, the last one cut where there would be more."""
    lines = wrap(text, max(8, width)) if most > 1 else [text]
    return [*lines[: most - 1], " ".join(lines[most - 1 :])] if len(lines) > most else lines


def heading(title: str, width: int, ascii_only: bool) -> list[Span]:
    """A title in a rule across the panel."""
    rule = "-" if ascii_only else "─"
    return fit([(f"{rule} ", DIM), (title, "bold"), (f" {rule * width}", DIM)], width)


def to_text(lines: Sequence[Line]) -> Text:
    """Lines as one text for rich, which is neither wrapped nor read as markup."""
    text = Text(no_wrap=True, overflow="crop", end="")
    for number, line in enumerate(lines):
        text.append("\n" if number else "")
        for content, style in line:
            text.append(content, style or None)
    return text
