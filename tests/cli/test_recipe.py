"""`earl recipe`, the whole recipe of a dry run, and what a shell completes."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from earl.recipe import build, load_toml


def test_the_whole_recipe_is_shown_and_reads_back(earl: Callable, tmp_path: Path) -> None:
    said = earl("recipe", "show", "connect4", "--set", "run.seed=7")
    shown = build(tomllib.loads(said.out))
    assert (shown.env.name, shown.run.seed, shown.rollout.group_size) == ("connect4", 7, 16)
    assert earl("recipe", "show", "connect4", "--set", "run.seed=7", "--json").json["run"]["seed"] == 7
    dry = earl("train", "connect4", "--dry-run", "-v", "--set", "run.seed=7")
    assert said.out.partition("[model]")[2].splitlines()[1] in dry.out
    assert "[placement]" in dry.out and dry.out.endswith("nothing was written\n")
    assert "--verbose is read with --dry-run alone" in earl("train", "connect4", "--verbose").err


@pytest.mark.slow
def test_keys_are_found_by_a_word_of_their_name_or_meaning(earl: Callable) -> None:
    said = earl("recipe", "keys", "entropy").out
    assert said.startswith("algorithm.entropy = 0.0\n    Weight of the entropy bonus over action tokens.")
    assert "learner.decay_from" in said
    whole = earl("recipe", "keys", "--json").json
    assert len(whole) > 100
    assert all(row["meaning"] for row in whole)
    assert "no key has 'entroby'" in earl("recipe", "keys", "entroby").err


def test_a_new_recipe_trains_as_the_packaged_one_and_is_never_written_over(earl: Callable, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    said = earl("recipe", "new", "connect4", file)
    assert said.out == f"{file}; then: earl train connect4 --config {file}\n"
    assert build(load_toml(file)) == build(tomllib.loads(earl("recipe", "show", "connect4").out))
    before = file.read_bytes()
    again = earl("recipe", "new", "tictactoe", file)
    assert (again.code, file.read_bytes()) == (2, before)
    assert "is here already; name another file" in again.err
    assert earl("recipe", "new", "tictacto", tmp_path / "b.toml").code == 2
    assert not (tmp_path / "b.toml").exists()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("earl train tic", ["tictactoe"]),
        ("earl train tictactoe --set rollout.ep", ["rollout.episodes="]),
        ("earl eval done --opponent h", ["heuristic"]),
        ("earl watch do", ["done"]),
        ("earl train tictactoe --placement emb", ["embedded"]),
        ("earl rec", ["recipe"]),
    ],
)
def test_what_a_shell_completes(trained: Path, line: str, offered: list[str]) -> None:
    asked = {"_EARL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    said = subprocess.run(
        [sys.executable, "-m", "earl.cli.main"],
        cwd=trained.parents[1],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert [found.partition(",")[2] for found in said.stdout.splitlines()] == offered
