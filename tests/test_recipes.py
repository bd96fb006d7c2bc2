"""The recipes that earl brings: short, explained in their first line, and accepted by the preflight."""

from pathlib import Path

import pytest

from earl.preflight import preflight
from earl.recipe import build, load_toml

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "configs").glob("[!_]*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_short_and_sound(path: Path, tmp_path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 40
    assert lines[0].startswith("# ")
    assert "CPU" in lines[0]  # the first line names the hardware
    config = build(load_toml(path))
    assert config.env.name == path.stem
    assert preflight(config, tmp_path).config.env == config.env


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.toml")), ids=lambda path: path.stem)
def test_an_example_of_the_docs_is_sound(path: Path, tmp_path: Path) -> None:
    config = build(load_toml(path))
    assert preflight(config, tmp_path).config.env == config.env
