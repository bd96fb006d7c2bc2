"""Styled lines of exact width, which panels are made of, and short formats for numbers."""

import math
from collections.abc import Sequence
from textwrap import wrap

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from earl.cli.text import one_line


def short(value: float) -> str:
    """A number in three digits, such as 0.25, 72, 1.5k, 2M."""
    if not math.isfinite(value):
        return "-"
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """A fraction in per cent, such as <0.1%, 12.3%, >99.9%; only exact 0 and 1 are shown as 0 and 100."""
    if not math.isfinite(share):
        return "-"
    if abs(share) < 1e-9 or abs(1 - share) < 1e-9:  # sums of exact probabilities miss 0 and 1 by rounding
        return f"{share:.0%}"
    return "<0.1%" if share < 5e-4 else ">99.9%" if share > 0.9995 else f"{share:.1%}"


def whole_percent(share: float) -> str:
    return f"{share:.0%}"


def duration(seconds: float) -> str:
    """A time in its natural units, such as 4.2ms, 3.21s, 1m 15s, 2d 7h."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 1:
        return f"{1000 * seconds:.3g}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes}m {int(seconds) % 60}s"
    hours = minutes // 60
    return f"{hours}h {minutes % 60}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def size(num_bytes: float) -> str:
    for limit, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= limit:
            return f"{num_bytes / limit:.3g} {unit}"
    return f"{num_bytes:.0f} B"


Span = tuple[str, str]
"""Text and its style; "" is the terminal's default."""
Line = Sequence[Span]

DIM = "bright_black"
GOOD, WARN, BAD = "green", "yellow", "red"
PALETTE = ("cyan", "green", "magenta", "yellow", "blue", "white", "red")
"""Of the 16 colours that every terminal has, so that the user's theme applies."""


def fit(line: Line, width: int) -> list[Span]:
    """Cut or pad a line to exactly `width` columns. Wide characters count as two."""
    fitted: list[Span] = []
    left = width
    for text, style in line:
        size = min(cell_len(text), left)
        fitted.append((set_cell_size(text, size), style))
        left -= size
    return [*fitted, (" " * left, "")] if left else fitted


def column(text: str, width: int, right: bool = False) -> str:
    blank = " " * max(0, width - cell_len(text))
    return set_cell_size(blank + text if right else text + blank, max(0, width))


def safe(text: str) -> str:
    """Make untrusted text safe to print: one line, no control sequences, at most 1000 characters."""
    return one_line(text[:1000])


def wrapped(text: str, width: int, most: int) -> list[str]:
    """At most `most` lines; the last one may be too long, and is cut when drawn."""
    lines = wrap(text, max(8, width)) if most > 1 else [text]
    return [*lines[: most - 1], " ".join(lines[most - 1 :])] if len(lines) > most else lines


def heading(title: str, width: int, ascii_only: bool) -> list[Span]:
    rule = "-" if ascii_only else "─"
    return fit([(f"{rule} ", DIM), (title, "bold"), (f" {rule * width}", DIM)], width)


def to_text(lines: Sequence[Line]) -> Text:
    return Text("\n", no_wrap=True, overflow="crop", end="").join(Text.assemble(*line) for line in lines)
