from hypothesis import given
from hypothesis import strategies as st

from earl.reports.html import count, nowrap, shorten, shown, visible


def plain(text: str) -> str:
    return text.replace("\N{NARROW NO-BREAK SPACE}", " ")


def test_characters_that_draw_nothing_become_signs() -> None:
    assert visible("a\x1b[31m\u202eb") == "a⟨ESC⟩[31m⟨U+202E⟩b"
    assert visible("tab\tnul\x00del\x7f") == "tab⟨TAB⟩nul⟨NUL⟩del⟨DEL⟩"
    assert visible("\ud800 \ue000\u2028") == "⟨U+D800⟩ ⟨U+E000⟩⟨U+2028⟩"
    assert visible("two\nlines, é 漢 שלום") == "two\nlines, é 漢 שלום"


@given(st.text())
def test_visible_text_can_be_written_and_has_no_controls(text: str) -> None:
    seen = visible(text)
    seen.encode()
    assert not any(ord(character) < 32 and character != "\n" for character in seen)
    assert visible(seen) == seen


def test_long_text_keeps_its_ends() -> None:
    # 100 characters into 20: 15 of the beginning, 5 of the end, 80 left out
    assert shorten("a" * 50 + "b" * 50, 20) == "a" * 15 + " […80 characters left out…] " + "b" * 5
    assert shorten("short", 20) == "short"
    assert len(shown("\x00" * 1_000_000)) < 3000  # 400 of 5 characters each, and what was left out


def test_numbers_stay_in_one_line() -> None:
    assert plain(count(12958716)) == "12 958 716"
    assert nowrap("12 min 34 s") == "12 min 34 s".replace(" ", "\N{NARROW NO-BREAK SPACE}")
