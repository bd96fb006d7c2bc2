"""Data inside a page: compressed, and in letters that mean nothing to HTML."""

import base64
import gzip
import hashlib
import json
from functools import lru_cache
from typing import Any


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
