"""Polling a run that goes on, is killed, is resumed, is damaged, is gone."""

import os
import shutil
from pathlib import Path

import pytest

from earl.cli.watch import read_run
from earl.errors import EarlError
from earl.matches import MatchResult
from earl.recipe import build, dump
from earl.runs.folder import RunFolder, create
from earl.runs.store import Store

WIN = MatchResult("tictactoe", "random", 0, False, 10, 1.0, 0.0, 0.0, 0.0, 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create(tmp_path, "a", dump(build({"env": {"name": "tictactoe"}, "run": {"steps": 9}})))


def test_a_run_from_its_birth_to_its_end(folder: RunFolder) -> None:
    run = born = read_run(folder)
    assert (born.state, born.numbers.last_step, born.steps, born.problems) == ("stopped", None, 9, [])
    folder.lock.write_text(f"{os.getpid()}\n")
    run = read_run(folder, run)
    assert run.state == "running"
    with Store(folder.database) as store:
        store.record_step(1, {"reward": 0.5}, {})
        run = read_run(folder, run)
        assert run.series("reward") == [(1, 0.5)]  # while the writer holds it open
        store.record_step(2, {"reward": 0.6}, {})
        run = read_run(folder, run)
        assert run.series("reward") == [(1, 0.5), (2, 0.6)]
        folder.lock.write_text("999999999\n")  # killed
        run = read_run(folder, run)
        assert run.state == "stopped"
    with Store(folder.database) as store:  # resumed
        store.forget_after(1)
        store.event(1, "resume", "resumed")
        run = read_run(folder, run)
        assert run.series("reward") == [(1, 0.5)]
        store.record_step(9, {}, {}, [WIN], "final")
    ended = read_run(folder, run)
    assert (ended.state, ended.step) == ("finished", 1)


def test_an_unchanged_run_is_not_read_again(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(folder.database) as store:
        store.record_step(1, {"reward": 0.5}, {})
    first = read_run(folder)

    def never(*_: object) -> None:
        raise AssertionError("nothing has changed")

    monkeypatch.setattr(Store, "__init__", never)
    assert read_run(folder, first).numbers is first.numbers


def test_reading_changes_no_number(folder: RunFolder) -> None:
    with Store(folder.database) as store:
        store.record_step(1, {"reward": 0.5}, {})
    before = folder.database.read_bytes()
    read_run(folder)
    assert folder.database.read_bytes() == before
    assert not folder.lock.exists()


def test_what_was_read_stays_when_the_database_is_damaged(folder: RunFolder) -> None:
    with Store(folder.database) as store:
        store.record_step(1, {"reward": 0.5}, {})
    read = read_run(folder)
    folder.database.write_bytes(b"damaged" * 1000)
    damaged = read_run(folder, read)
    assert damaged.series("reward") == [(1, 0.5)]
    assert "is damaged" in damaged.problems[0]


def test_a_recipe_that_cannot_be_read(folder: RunFolder) -> None:
    folder.config.write_text("[env]\nnme = 1\n")
    run = read_run(folder)
    assert (run.config, run.steps) == (None, None)
    assert "unknown key" in run.problems[0]


def test_a_run_that_was_removed(folder: RunFolder) -> None:
    shutil.rmtree(folder.path)
    with pytest.raises(EarlError, match="'a' is gone"):
        read_run(folder)
