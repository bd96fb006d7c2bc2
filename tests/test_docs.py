"""The documents name what there is."""

import re
import tomllib
from pathlib import Path

import pytest

from earl.config import Config

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_every_direct_dependency_has_a_line_and_no_other() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = [text for extra in project["project"]["optional-dependencies"].values() for text in extra]
    direct = project["project"]["dependencies"] + extras + project["dependency-groups"]["dev"]
    rows = re.findall(r"^\| ([\w-]+) \| .+ \| .+ \|$", (ROOT / "docs/dependencies.md").read_text(), re.MULTILINE)
    assert [row for row in rows if row != "package"] == [re.split(r"[^\w-]", text)[0] for text in direct]


def test_every_setting_of_a_recipe_is_explained() -> None:
    page = (ROOT / "docs/recipes.md").read_text()
    for name, section in Config.model_fields.items():
        table = page.split(f"## [{name}]")[1].split("## [")[0]
        assert list(section.annotation.model_fields) == re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
        assert not re.findall(r"\|  \|$", table, re.MULTILINE), f"a setting of [{name}] has no text under it"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_in_the_documents_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert not [link for link in links if not (page.parent / link).exists()]
    # `envs/games/env.py` in backquotes is a path of the repository; `envs/games/<name>.py` stands for many.
    named = re.findall(r"`((?:envs|agents|earl|cli|configs|tests|docs)/[\w./-]*)`", text)
    later = ("earl/parallel/", "earl/dispatch/")
    assert not [path for path in named if path not in later and not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_chores_in_the_documents_exist(page: Path) -> None:
    chores = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)) <= set(chores)


def test_every_attack_that_is_listed_has_a_test() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) >= 60
    assert not [(file, name) for file, name in named if f"\ndef {name}(" not in (ROOT / file).read_text()]
