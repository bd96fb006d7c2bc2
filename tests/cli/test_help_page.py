"""docs/cli.md is what --help says."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from earl.cli.main import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def page() -> Callable[[], str]:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    return generate.command_line


def test_the_page_is_up_to_date(page: Callable[[], str]) -> None:
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == page(), "stale: run `make docs`"


def test_every_command_has_a_section(page: Callable[[], str]) -> None:
    for name in COMMANDS:
        assert f"## `earl {name}`" in page()
    assert "## `earl envs check`" in page()
