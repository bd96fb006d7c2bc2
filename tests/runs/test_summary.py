"""Where a run stands, and which of its checkpoints is meant."""

import os
from pathlib import Path

import pytest

from earl.errors import EarlError
from earl.matches import MatchResult
from earl.recipe import build, dump
from earl.runs import checkpoint
from earl.runs.folder import RunFolder, create
from earl.runs.store import Store
from earl.runs.summary import FINAL, chosen_checkpoint, summarize, tool_use


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create(tmp_path, "a", dump(build({"env": {"name": "tictactoe"}, "run": {"steps": 9}})))


def result(win: float) -> MatchResult:
    return MatchResult("tictactoe", "random", 0, False, 10, win, 0.0, 1 - win, 0.0, 0.0)


def test_a_run_from_its_birth_to_its_end(folder: RunFolder) -> None:
    born = summarize(folder)
    assert (born.step, born.state, born.last_evaluation, born.steps) == (0, "stopped", [], 9)
    folder.lock.write_text(f"{os.getpid()}\n")
    with Store(folder.database) as store:
        store.record_step(3, {"reward": 0.0}, {}, [result(0.5)])
        store.record_step(5, {"reward": 0.0}, {}, [result(0.75)])
        store.record_step(6, {"reward": 0.0}, {})
        going = summarize(folder)
        assert (going.step, going.state, [match.result.win for match in going.last_evaluation]) == (
            6,
            "running",
            [0.75],
        )
        assert going.changed >= born.changed
        store.record_step(9, {}, {}, [result(0.9)])
        store.record_step(9, {}, {}, [result(0.8)], FINAL)
    ended = summarize(folder)
    assert (ended.step, ended.state, [match.result.win for match in ended.last_evaluation]) == (6, "finished", [0.8])


@pytest.mark.parametrize("holder", ["", "999999999", "-1", "nobody", "9" * 40])
def test_a_run_whose_process_is_gone_is_stopped(folder: RunFolder, holder: str) -> None:
    folder.lock.write_text(holder)
    assert summarize(folder).state == "stopped"


def test_the_checkpoint_that_is_meant(folder: RunFolder) -> None:
    with pytest.raises(EarlError, match="run 'a' has no checkpoint yet"):
        chosen_checkpoint(folder)
    for step in (2, 4, 10):
        checkpoint.save(folder.checkpoints, step, lambda path: None, {"best_step": min(step, 4)})
    meant = {which: chosen_checkpoint(folder, which).step for which in ("best", "last", "2", "0010")}
    assert meant == {"best": 4, "last": 10, "2": 2, "0010": 10}
    with pytest.raises(EarlError, match="keeps no checkpoint of step 3; kept are the steps 2, 4, 10"):
        chosen_checkpoint(folder, "3")
    for odd in ("first", "-1", "²", ""):
        with pytest.raises(EarlError, match="neither 'best', 'last' nor a step"):
            chosen_checkpoint(folder, odd)


def test_a_lock_that_holds_digits_without_end_holds_nobody(tmp_path):
    folder = create(tmp_path, "a", "[env]\nname = 'tictactoe'\n")
    folder.lock.write_text("9" * 5000)
    assert summarize(folder).state == "stopped"


def test_the_last_evaluation_is_of_one_step_and_one_phase(folder: RunFolder) -> None:
    with Store(folder.database) as store:
        # A database of somebody else may name phases that earl does not know; they are not taken together.
        for phase in ("final?", "train?"):
            store.record_step(3, {}, {}, [result(0.5)], phase)
        assert [match.phase for match in summarize(folder).last_evaluation] == ["train?"]
        for step in (3, 4):
            store.record_step(step, {}, {}, [result(0.5)], FINAL)
        store.record_step(5, {}, {}, [result(0.5)])
    assert [(match.step, match.phase) for match in summarize(folder).last_evaluation] == [(4, FINAL)]


def test_calls_of_tools_are_added_up_and_their_seconds_weighed_by_calls():
    metrics = {
        "tool/python/calls": [(1, 2.0), (2, 6.0)],
        "tool/python/timeouts": [(2, 1.0)],
        "tool/python/queue_seconds": [(1, 0.1), (2, 0.5)],  # (2 x 0.1 + 6 x 0.5) / 8
        "tool/python/run_seconds": [(1, 1.0), (2, 2.0)],
        "tool_core_use": [(1, 0.4)],
    }
    counts = {"calls": 8.0, "timeouts": 1.0, "queue_seconds": 0.4, "run_seconds": 1.75}
    assert tool_use(metrics) == {"python": pytest.approx(counts)}
    assert tool_use({"reward": [(1, 1.0)]}) == {}
