"""docs/cli.md is what --help says."""

from pathlib import Path

from earl.cli.help_page import page
from earl.cli.main import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == page(), "stale: run `make docs`"


def test_every_command_has_a_section() -> None:
    for name in COMMANDS:
        assert f"## `earl {name}`" in page()
    assert "## `earl envs check`" in page()
