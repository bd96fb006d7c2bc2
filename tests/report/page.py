"""A written page, taken apart with Python's own HTML parser."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from earl import reports
from earl.runs.folder import RunFolder


class Page(HTMLParser):
    """The elements and texts of a page."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(self.source)
        self.close()
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, f"unbalanced </{tag}>"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("script", "style"):
            self.scripts.append(data)
        else:
            self.texts.append(data)

    def packed(self, name: str) -> Any:
        """The data that stands compressed in a script element."""
        found = re.search(rf'<script type="text/plain" id="{name}">([^<]*)</script>', self.source)
        assert found, name
        return json.loads(gzip.decompress(base64.b64decode(found[1])))

    @property
    def text(self) -> str:
        """All that a reader sees, with spaces as plain ones."""
        return re.sub(r"\s+", " ", "".join(self.texts))

    def count(self, tag: str, **attributes: str) -> int:
        return sum(name == tag and attributes.items() <= found.items() for name, found in self.tags)


def write(folder: RunFolder) -> Page:
    path = reports.write(folder)
    assert path == folder.report
    assert not [leftover for leftover in folder.path.iterdir() if leftover.name.endswith(".tmp")]
    return Page(path)


def section(page: Page, name: str) -> str:
    """The text of one section."""
    found = re.search(rf'<section id="{name}"[^>]*>(.*?)</section>', page.source, re.DOTALL)
    assert found
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", found[1]))
