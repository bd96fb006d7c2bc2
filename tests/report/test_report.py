"""Whole pages: taken apart with Python's own HTML parser."""

import base64
import hashlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from earl import report
from earl.errors import EarlError
from earl.matches import MatchResult
from earl.runs.folder import RunFolder
from earl.runs.store import Store

SECTIONS = ["results", "strength", "training", "context", "time", "recipe", "events", "episodes"]
MISSING = "not recorded yet"


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

    @property
    def text(self) -> str:
        """All that a reader sees, with spaces as plain ones."""
        return re.sub(r"\s+", " ", "".join(self.texts))

    def count(self, tag: str, **attributes: str) -> int:
        return sum(name == tag and attributes.items() <= found.items() for name, found in self.tags)


def write(folder: RunFolder) -> Page:
    path = report.write(folder)
    assert path == folder.report
    assert not [leftover for leftover in folder.path.iterdir() if leftover.name.endswith(".tmp")]
    return Page(path)


def section(page: Page, name: str) -> str:
    """The text of one section."""
    found = re.search(rf'<section id="{name}">(.*?)</section>', page.source, re.DOTALL)
    assert found
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", found[1]))


def test_a_finished_run_has_every_section_filled(runs: Any) -> None:
    page = write(runs.run())
    assert [found["id"] for tag, found in page.tags if tag == "section"] == SECTIONS
    assert MISSING not in page.text
    for words in ("Run demo", "tictactoe", "30 parameters, qwen3, 1 layer, width 6", "finished", "60 of 60"):
        assert words in page.text
    assert "weights of step 60" in section(page, "results")
    assert "teacher = &#34;perfect&#34;" in page.source
    assert "all steps done" in section(page, "events")
    assert page.count("details", **{"class": "episode"}) == 12
    # 2 opponents + 6 of training + 3 of context + 1 of time; hidden: episodes, kl_to_sampler, learning_rate, tokens
    assert page.count("div", **{"class": "plot"}) == 12 + 4
    assert page.source.count("data-table=") == 12 + 4


def test_sampled_results_have_intervals_and_exact_ones_leaves(runs: Any) -> None:
    sampled = section(write(runs.run(name="sampled")), "results")
    assert "400 games" in sampled and "95 % interval" in sampled
    # 0.9 of 400 games: 0.867 to 0.926 by Wilson
    assert "86.7 to 92.6" in sampled
    exact = section(write(runs.run(name="exact", exact=True)), "results")
    assert "exact: 400 leaves" in exact and "95 % interval" not in exact
    assert "both seats" in exact


def test_the_phases_stand_side_by_side(runs: Any) -> None:
    text = section(write(runs.run()), "results")
    assert text.index("At the start") < text.index("After warm start") < text.index("Final")


def test_a_tool_task_is_solved_or_not(runs: Any) -> None:
    folder = runs.empty()
    with Store(folder.database) as store:
        result = MatchResult("arithmetic", "", 0, False, 200, 0.9, 0.0, 0.1, 0.0, 0.0)
        store.record_step(0, {}, {}, [result], "start")
        store.record_step(60, {"reward": 0.9}, {}, [result], "final")
    text = section(write(folder), "results")
    assert "Solved" in text and "Not solved" in text and "held-out tasks" in text and "200 tasks" in text
    assert "Draw" not in text and "Seat" not in text
    assert "On held-out tasks" in write(folder).text


def test_a_run_in_progress(runs: Any) -> None:
    page = write(runs.run(until=45, final=False))
    assert "not finished: in reinforcement learning" in page.text
    assert "45 of 60" in page.text
    assert "Latest, not final" in section(page, "results") and "step 40" in section(page, "results")


def test_a_run_stopped_in_the_warm_start(runs: Any) -> None:
    page = write(runs.run(until=6, final=False))
    assert "not finished: in the warm start" in page.text
    assert "before training" in page.text
    for name in ("results", "training", "context", "episodes"):
        assert MISSING in section(page, name)


def test_a_run_that_has_only_its_recipe(runs: Any) -> None:
    page = write(runs.empty())
    assert "no step recorded yet" in page.text
    for name in set(SECTIONS) - {"recipe", "events"}:
        assert MISSING in section(page, name)
    assert page.count("div", **{"class": "plot"}) == 0


def test_what_cannot_be_read_is_told_and_the_rest_is_shown(runs: Any) -> None:
    folder = runs.run()
    damaged = folder.trajectories / "step-000070.parquet"
    damaged.write_bytes(b"not parquet")
    folder.database.write_bytes(b"not a database" * 100)
    folder.database.with_name("run.db-wal").unlink(missing_ok=True)
    next(folder.checkpoints.glob("*/tokenizer.json")).write_text("{")
    page = write(folder)
    assert page.text.count("Could not be read") == 3
    assert "step-000070.parquet" in page.text and "is damaged" in page.text
    assert "tokenizer.json cannot be read" in page.text
    assert "⟨token " in section(page, "episodes"), "episodes are shown by their numbers"


def test_a_recipe_of_another_version_is_told(runs: Any) -> None:
    page = write(runs.empty(recipe='[env]\nname = "tictactoe"\n[future]\nkey = 1\n'))
    assert "unknown key 'future'" in page.text
    assert "key = 1" in section(page, "recipe")


def test_hostile_text_stays_text(runs: Any, hostile_texts: list[str]) -> None:
    page = write(runs.hostile(hostile_texts))
    assert page.count("script") == 3, "the figures, the library and the page's own"
    loading = {"img", "iframe", "object", "embed", "form", "input", "base", "audio", "video", "source", "frame", "math"}
    assert not {tag for tag, _ in page.tags} & loading
    assert not [name for _, found in page.tags for name in found if name.startswith("on")]
    assert "<script>window.harmed = 1</script>" in page.text, "shown as it is"
    assert "{{ 7 * 7 }}" in page.text
    unseen = set("\x00\x07\x1b\x7f\x85\u200b\u200e\u202e\u2028\u2029\u2066\ufeff\r\t")
    assert not unseen & set(page.source)
    for sign in ("⟨U+202E⟩", "⟨ESC⟩[31m", "⟨NUL⟩", "⟨DEL⟩", "⟨U+2028⟩", "⟨CR⟩"):
        assert sign in page.text
    assert "é 漢 😀" in re.sub(r"<[^>]*>", "", page.source), "text of several bytes per character is whole"
    assert max(map(len, page.texts)) < 20_000, "a line of 1 MB was shortened"


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


def test_the_page_stays_small(runs: Any, make_episode: Any) -> None:
    folder = runs.run()
    empty = len(write(runs.empty(name="empty")).source)
    exchange = ("board " * 400, "<think>" + "thought " * 500 + "</think>move")
    long = [make_episode([exchange] * 40, seat=seat % 2, logprob=-1.0 / seat) for seat in range(1, 13)]
    short = [make_episode([(f"{number}", "5")]) for number in range(188)]
    runs.episodes(folder, 100, long + short)
    size = report.write(folder).stat().st_size
    assert empty < 2_500_000
    assert size < 6_000_000


def test_the_same_run_gives_the_same_page_but_for_the_time(runs: Any) -> None:
    folder = runs.run()
    first, second = (re.sub(r"Written by earl, [^.]*", "", write(folder).source) for _ in range(2))
    assert first == second


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_refuses(runs: Any) -> None:
    folder = runs.empty()
    folder.path.chmod(0o500)
    with pytest.raises(EarlError, match="refused"):
        report.write(folder)


def test_a_folder_that_has_vanished(runs: Any) -> None:
    with pytest.raises(EarlError, match="vanished"):
        report.write(RunFolder(runs.root / "nowhere"))


def test_a_report_needs_no_torch(runs: Any) -> None:
    folder = runs.run()
    script = (
        "import sys; from pathlib import Path; from earl import report; from earl.runs.folder import RunFolder\n"
        f"report.write(RunFolder(Path({str(folder.path)!r})))\n"
        "print(sorted({'torch', 'transformers', 'ray', 'vllm'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
