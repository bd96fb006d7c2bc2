"""Nothing that a model or an environment wrote steers the terminal."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.cli import text
from earl.cli.text import clean, one_line, table


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        ("plain é 漢 ✓", "plain é 漢 ✓"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1Hgone", "gone"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP+q544e\x1b\\device", "device"),
        ("\x1bcreset", "reset"),
        ("\x1b", ""),
        ("\x1b]never closed", ""),
        ("back\b\b\b\rover", "backover"),
        ("bell\x07 null\x00 delete\x7f", "bell null delete"),
        ("c1 \x9b31m\x85", "c1 31m"),
        ("\u202edrow\u202c \u2066isolate\u2069 \u200fmark\u061c", "drow isolate mark"),
        ("zero\u200bwidth\ufeff\u00ad", "zerowidth"),
        ("tag\U000e0041", "tag"),
        ("lone \ud800", "lone "),
        ("lines\nand\ttabs", "lines\nand\ttabs"),
        ("separator\u2028s", "separator s"),
        ("[bold]markup[/bold] :boom:", "[bold]markup[/bold] :boom:"),
    ],
)
def test_clean(hostile: str, harmless: str) -> None:
    assert clean(hostile) == harmless


@given(st.text())
def test_clean_text_holds_no_control_character_and_stays_clean(anything: str) -> None:
    result = clean(anything)
    assert all(character in "\n\t" or character.isprintable() or character.isspace() for character in result)
    assert not set(result) & {"\x1b", "\r", "\x9b", "\u202e"}
    assert clean(result) == result


def test_one_line() -> None:
    assert one_line("a\n\n  b\tc \x1b[1m") == "a b c"


def test_a_console_takes_strings_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(text.sys, "stdout", out)
    text.console().print("[red]not red[/red] :boom: 12")
    assert out.getvalue() == "[red]not red[/red] :boom: 12\n"


def test_a_table_cleans_its_cells() -> None:
    drawn = table(("name",), [["\x1b[2Jhost\u202e 1"]])
    assert [*drawn.columns[0].cells] == ["host 1"]
