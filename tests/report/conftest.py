"""What the tests of the report need."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from earl.trajectory import Trajectory
from tests.report.builder import Builder
from tests.report.played import byte_tokenizer, episode


@pytest.fixture
def runs(tmp_path: Path) -> Builder:
    return Builder(tmp_path / "runs")


@pytest.fixture
def make_episode() -> Callable[..., Trajectory]:
    """Episodes in bytes: any text can stand in them."""
    return lambda exchanges, **fields: episode(lambda t: byte_tokenizer().encode(t).ids, exchanges, **fields)


@pytest.fixture
def bytewise() -> Any:
    return byte_tokenizer()


@pytest.fixture
def hostile_texts() -> list[str]:
    """What a model may write to harm a reader."""
    return [
        "<script>window.harmed = 1</script>",
        "</script><script>window.harmed = 2</script>",
        "<img src=https://example.com/x.png onerror='window.harmed = 3'>",
        '" onmouseover="window.harmed = 4" x="',
        "{{ 7 * 7 }}{% include '/etc/passwd' %}",
        "<!-- <!--<script> --!> ]]> </style></title></pre>",
        "right \u202e to left \u2066 isolate \u200b zero \ufeff width",
        "\x1b[31mred\x1b[0m \x07bell \x00nul \x7fdel \x85next",
        "line\u2028separator\u2029paragraph\r\nreturn\ttab",
        '<a href="javascript:window.harmed = 5">click</a>',
        "é 漢 \U0001f600 \u0301\u0301\u0301 ‎",
        "x" * 1_000_000,
    ]
