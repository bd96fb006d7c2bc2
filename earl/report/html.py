"""Words and numbers for a page: hostile text made visible and short, fractions that never lie by rounding."""

import base64
import gzip
import hashlib
import json
import math
import unicodedata
from datetime import datetime
from functools import lru_cache
from typing import Any

# Data inside a page: compressed, and in letters that mean nothing to HTML.


def pack(value: Any) -> str:
    """A value as JSON, gzip and base64. Whatever its strings hold, nothing in it can end a script element."""
    return squeeze(json.dumps(value, allow_nan=False, separators=(",", ":")))


def squeeze(text: str) -> str:
    """Text as gzip in base64, which browsers unpack by themselves."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def script_hash(script: str) -> str:
    """A script's name in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


class Library:
    """plotly.js, packed: 4.8 MB of script in 1.9 MB of page, unpacked by the browser in some 50 ms."""

    def __init__(self, script: str) -> None:
        self.hash = script_hash(script)
        self.packed = squeeze(script)


@lru_cache(maxsize=1)
def plotly() -> Library:
    """The plotting library that the installed plotly brings."""
    from plotly.offline import get_plotlyjs  # slow to import, and needed here only

    return Library(get_plotlyjs())


THIN = "\N{NARROW NO-BREAK SPACE}"
_NAMED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that draw nothing, or that move the text around them: controls, direction marks,
zero-width and unassigned characters, line and paragraph separators."""
_COMMON = {"\0": "NUL", "\a": "BEL", "\b": "BS", "\t": "TAB", "\r": "CR", "\x1b": "ESC", "\x7f": "DEL"}


def visible(text: str) -> str:
    """The text with every character that draws nothing replaced by a sign that does; newlines stay.

    Example:
        >>> visible("a\\x1b[31m\\u202eb")
        'a⟨ESC⟩[31m⟨U+202E⟩b'
    """
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(map(_visible_character, text))


def _visible_character(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in _NAMED:
        return character
    return f"⟨{_COMMON.get(character) or f'U+{ord(character):04X}'}⟩"


def shorten(text: str, limit: int) -> str:
    """At most about `limit` characters: the beginning and the end, and how much was left out between them."""
    if len(text) <= limit:
        return text
    head = limit * 3 // 4
    tail = limit - head
    return f"{text[:head]} […{len(text) - limit:,} characters left out…] {text[len(text) - tail :]}"


def shown(text: str, limit: int = 400) -> str:
    """Text of unknown origin, short and visible; escaping is the template's part."""
    return visible(shorten(text, limit))


def shown_line(text: str, limit: int = 400) -> str:
    """`shown` on one line."""
    return shown(text, limit).replace("\n", "⟨LF⟩")


def percent(fraction: float) -> str:
    """A fraction of 1 in per cent. Only an exact 0 is shown as 0 and only an exact 1 as 100.

    Example:
        >>> [percent(x).replace(THIN, " ") for x in (0, 0.00001, 0.003, 0.888, 0.9999, 1)]
        ['0 %', '<0.01 %', '0.30 %', '88.8 %', '99.99 %', '100 %']
    """
    return "–" if math.isnan(fraction) else f"{percent_digits(fraction)}{THIN}%"


def percent_digits(fraction: float) -> str:
    """`percent` without its sign."""
    rest = 1 - fraction
    if abs(fraction) < 1e-9 or abs(rest) < 1e-9:  # sums of exact probabilities miss 0 and 1 by rounding
        return "0" if rest > 0.5 else "100"
    if fraction < 5e-5:
        return "<0.01"
    if rest < 5e-5:
        return ">99.99"
    return f"{100 * fraction:.1f}" if 0.01 <= fraction <= 0.99 else f"{100 * fraction:.2f}"


def probability(value: float) -> str:
    """A probability in per cent. No model is certain, so neither 0 nor 100 is ever shown."""
    return percent(min(max(value, 1e-8), 1 - 1e-8))


def count(value: float) -> str:
    """A whole number with thousands apart."""
    return f"{value:,.0f}".replace(",", THIN)


def number(value: float) -> str:
    """A number with four significant digits."""
    return "–" if math.isnan(value) else f"{value:.4g}"


def seconds(value: float) -> str:
    """A duration in the unit that suits it.

    Example:
        >>> [seconds(x).replace(THIN, " ") for x in (0.0042, 3.21, 754, 7300)]
        ['4.2 ms', '3.21 s', '12 min 34 s', '2 h 1 min']
    """
    if value < 1:
        return f"{1000 * value:.3g}{THIN}ms"
    if value < 100:
        return f"{value:.3g}{THIN}s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 100:
        return f"{minutes}{THIN}min {rest}{THIN}s"
    return f"{minutes // 60}{THIN}h {minutes % 60}{THIN}min"


def moment(time: float) -> str:
    """A time of day, in the local zone, for times in seconds since the epoch."""
    return datetime.fromtimestamp(time).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
