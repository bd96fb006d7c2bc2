"""Formats for a page: escaped and shortened text, numbers whose rounding does not mislead, and packed data."""

import base64
import gzip
import hashlib
import json
import unicodedata
from datetime import datetime
from functools import lru_cache
from typing import Any


def pack(value: Any) -> str:
    """A value as JSON, gzip and base64, so that no string in it can end a script element."""
    return squeeze(json.dumps(value, allow_nan=False, separators=(",", ":")))


def squeeze(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def script_hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@lru_cache(maxsize=1)
def plotly() -> tuple[str, str]:
    """plotly.js, packed, and its hash: 4.8 MB of script in 1.9 MB of page, unpacked by the browser in some 50 ms."""
    from plotly.offline import get_plotlyjs  # slow to import

    script = get_plotlyjs()
    return squeeze(script), script_hash(script)


NARROW_SPACE = "\N{NARROW NO-BREAK SPACE}"
_NAMED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that are invisible or affect the text around them: controls, direction marks, zero-width and
unassigned characters, line and paragraph separators.
"""
_COMMON = {"\0": "NUL", "\a": "BEL", "\b": "BS", "\t": "TAB", "\r": "CR", "\x1b": "ESC", "\x7f": "DEL"}


def visible(text: str) -> str:
    """Replace every invisible character by a visible name such as ⟨ESC⟩ or ⟨U+202E⟩; newlines stay."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(map(_visible_character, text))


def _visible_character(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in _NAMED:
        return character
    return f"⟨{_COMMON.get(character) or f'U+{ord(character):04X}'}⟩"


def shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = limit * 3 // 4
    tail = limit - head
    return f"{text[:head]} […{len(text) - limit:,} characters left out…] {text[len(text) - tail :]}"


def shown(text: str, limit: int = 400) -> str:
    """Untrusted text, shortened and visible; the template has to escape it."""
    return visible(shorten(text, limit))


def shown_line(text: str, limit: int = 400) -> str:
    return shown(text, limit).replace("\n", "⟨LF⟩")


def nowrap(text: str) -> str:
    """A number and its unit, kept in one line."""
    return text.replace(" ", NARROW_SPACE)


def count(value: float) -> str:
    return f"{value:,.0f}".replace(",", NARROW_SPACE)


def moment(time: float) -> str:
    return datetime.fromtimestamp(time).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
