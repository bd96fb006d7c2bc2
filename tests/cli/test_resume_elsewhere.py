"""A run goes on elsewhere than it began: what may change, what is decided anew, and what is written down of it."""

import shutil
from pathlib import Path

import pytest

from earl.cli.recipes import differences, elsewhere
from earl.errors import EarlError
from earl.recipe import build, dump, load_toml, override
from earl.runs.store import Store

GAME = {"env": {"name": "tictactoe"}}
BEGUN = {
    **GAME,
    "placement": {"kind": "colocated", "dp": 64, "tp": 2, "samplers": 8, "gpus": "16x8xH100", "stage_seconds": 60.0},
    "sampler": {"engine": "vllm", "tp": 4, "memory_share": 0.7},
}


def changed(where: dict[str, object], *assignments: str):
    return elsewhere({section: {**table} for section, table in BEGUN.items()}, where, assignments)


def test_placed_anew_what_was_decided_is_open_again() -> None:
    config = changed({"placement.kind": None, "placement.address": None, "placement.gpus": "8xH200"})
    assert config.placement.gpus == "8xH200"
    assert config.placement.kind == "colocated"
    assert {"dp", "tp", "samplers"}.isdisjoint(config.placement.model_fields_set)
    assert {"engine", "tp"}.isdisjoint(config.sampler.model_fields_set)
    assert (config.placement.stage_seconds, config.sampler.memory_share) == (60.0, 0.7)


def test_what_is_named_is_kept() -> None:
    config = changed({"placement.kind": "disaggregated"}, "placement.dp=2", "sampler.tp=1")
    assert (config.placement.kind, config.placement.dp, config.sampler.tp) == ("disaggregated", 2, 1)
    assert "samplers" not in config.placement.model_fields_set


def test_one_setting_changes_one_setting() -> None:
    before = build(BEGUN)
    assert [*differences(before, changed({}, "placement.dp=32"))] == ["placement.dp = 32"]
    assert [*differences(before, changed({}))] == []


@pytest.mark.parametrize("assignment", ["run.steps=5", "learner.dtype=bfloat16", "model.path=x", "env.options.size=4"])
def test_nothing_else_changes(assignment: str) -> None:
    key = assignment.partition("=")[0]
    with pytest.raises(EarlError, match=r"only \[placement\] and \[sampler\] may change; leave it out") as refusal:
        changed({}, assignment)
    assert str(refusal.value).startswith(f"--set {'.'.join(key.split('.')[:2])}: ")


def stopped(trained: Path, root: Path) -> Path:
    """A copy of a finished run whose last evaluation is still to come."""
    shutil.copytree(trained, root / "again")
    for path in (root / "again").glob("run.db*"):
        path.unlink()
    return root / "again"


def test_a_dry_run_says_where_and_writes_nothing(earl, trained: Path, tmp_path: Path, everything) -> None:
    run = stopped(trained, tmp_path)
    before, recipe = everything(run), (run / "config.toml").read_text()
    plan = ["train", "--resume", "again", "--runs", tmp_path, "--dry-run", "--gpus", "2xH100"]
    said = earl(*plan, "--placement", "disaggregated", "--set", "placement.dp=1")
    assert said.code == 0, said.err
    assert "placement: disaggregated on --gpus 2xH100" in said.out
    assert (run / "config.toml").read_text() == recipe
    assert everything(run) == before


@pytest.mark.slow
def test_what_changed_is_in_the_recipe_and_among_the_events(earl, trained: Path, tmp_path: Path) -> None:
    run = stopped(trained, tmp_path)
    said = earl("train", "--resume", "again", "--runs", tmp_path, "--set", "sampler.engine=auto")
    assert said.code == 0, said.err  # `auto` is what it was before it was decided: nothing has moved
    with Store(run / "run.db", read_only=True) as store:
        assert [event for event in store.events() if event.kind == "moved"] == []
    shutil.rmtree(run)

    run = stopped(trained, tmp_path)
    open_again = dump(build(override(load_toml(run / "config.toml"), ["sampler.engine=vllm"])))
    (run / "config.toml").write_text(open_again)
    said = earl("train", "--resume", "again", "--runs", tmp_path, "--set", "sampler.engine=local")
    assert said.code == 0, said.err
    assert build(load_toml(run / "config.toml")).sampler.engine == "local"
    with Store(run / "run.db", read_only=True) as store:
        told = [event.message for event in store.events() if event.kind == "moved"]
    assert told == ["continued with sampler.engine = 'local'"]


def test_other_changes_are_refused(earl, trained: Path, tmp_path: Path) -> None:
    stopped(trained, tmp_path)
    said = earl("train", "--resume", "again", "--runs", tmp_path, "--set", "run.steps=9")
    assert said.code == 2
    assert "--set run.steps: a run is continued with its own recipe" in said.err
