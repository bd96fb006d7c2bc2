"""What a model writes harms no reader: it stays text, and a page runs and asks for nothing but its own."""

import base64
import hashlib
import re
from typing import Any

import pytest

from tests.report.page import write

pytestmark = pytest.mark.slow


def test_hostile_text_stays_text(runs: Any, hostile_texts: list[str]) -> None:
    page = write(runs.hostile(hostile_texts))
    assert page.count("script") == 4, "the figures, the library, the episodes and the page's own"
    loading = {"img", "iframe", "object", "embed", "form", "base", "audio", "video", "source", "frame", "math"}
    assert not {tag for tag, _ in page.tags} & loading
    assert not [name for _, found in page.tags for name in found if name.startswith("on")]
    assert "<script>window.harmed = 1</script>" in page.text, "shown as it is"
    assert "{{ 7 * 7 }}" in page.text
    unseen = set("\x00\x07\x1b\x7f\x85\u200b\u200e\u202e\u2028\u2029\u2066\ufeff\r\t")
    episodes = page.packed("stored")
    told = "".join(strings(episodes))
    for sign in ("⟨U+202E⟩", "⟨ESC⟩", "⟨NUL⟩", "⟨DEL⟩", "⟨U+2028⟩", "⟨CR⟩"):
        assert sign in page.text and sign in told
    assert (
        not unseen & set(page.source)
        and not unseen & set(told)
        and not unseen & set("".join(strings(page.packed("figures"))))
    )
    assert "é 漢 😀" in told, "text of several bytes per character is whole"
    assert max(map(len, page.texts)) < 20_000 and max(map(len, strings(episodes))) < 100_000, "1 MB was shortened"
    assert "characters left out" in told
    assert any(turn["reply"].get("cut") for found in episodes["episodes"] for turn in found["turns"])


def strings(value: Any) -> list[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        return [value]
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for item in inner for text in strings(item)]


def test_the_page_refers_to_nothing_outside(runs: Any, hostile_texts: list[str]) -> None:
    for folder in (runs.run(), runs.hostile(hostile_texts)):
        page = write(folder)
        for _, found in page.tags:
            for name in ("href", "src", "action", "data", "poster", "srcset", "xlink:href"):
                if value := found.get(name):
                    assert value.startswith("#") or value == "data:,", value
        assert not re.search(r"url\(|@import", "".join(page.scripts[:1]), re.IGNORECASE)
        assert not re.search(r"\b(fetch|XMLHttpRequest|import|WebSocket|sendBeacon)\b *\(", page.scripts[-1])


def test_only_the_scripts_of_the_page_may_run(runs: Any) -> None:
    page = write(runs.run())
    policy = next(found["content"] or "" for tag, found in page.tags if found.get("http-equiv"))
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    own = base64.b64encode(hashlib.sha256(page.scripts[-1].encode()).digest()).decode()
    assert f"'sha256-{own}'" in policy
