"""Numbers are read while a run goes on: what is new is added, what was dropped is gone."""

from pathlib import Path

import pytest

from earl.errors import EarlError
from earl.matches import MatchResult
from earl.runs.store import Numbers, Store, read_numbers

WIN = MatchResult("tictactoe", "random", 0, False, 10, 1.0, 0.0, 0.0, 0.0, 0.0)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two steps of a run."""
    path = tmp_path / "run.db"
    with Store(path) as store:
        store.event(0, "start", "started")
        store.record_step(1, {"reward": 0.1}, {"rollout": 1.0})
        store.record_step(2, {"reward": 0.2}, {"rollout": 1.0})
    return path


def both_ways(database: Path, before: Numbers) -> Numbers:
    """What is read on top of what was known; it must be what a fresh reader sees."""
    after = read_numbers(database, before)
    assert after == read_numbers(database)
    return after


def test_a_step_more_and_a_stage_more_of_the_last_one(database: Path) -> None:
    before = read_numbers(database)
    assert (before.last_step, before.metrics) == (2, {"reward": [(1, 0.1), (2, 0.2)]})
    with Store(database) as store:
        store.record_step(2, {}, {"checkpoint": 0.5})  # as training does once the checkpoint is written
        store.record_step(3, {"reward": 0.3, "entropy": 1.0}, {"rollout": 2.0}, [WIN])
        store.event(3, "best", "the best so far")
    after = both_ways(database, before)
    assert after.metrics == {"reward": [(1, 0.1), (2, 0.2), (3, 0.3)], "entropy": [(3, 1.0)]}
    assert after.timings == {"rollout": [(1, 1.0), (2, 1.0), (3, 2.0)], "checkpoint": [(2, 0.5)]}
    assert [event.kind for event in after.events] == ["start", "best"]
    assert before.metrics == {"reward": [(1, 0.1), (2, 0.2)]}  # the earlier value stays as it was


def test_nothing_new(database: Path) -> None:
    before = read_numbers(database)
    assert both_ways(database, before) == before


def test_only_what_is_new_is_read(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    read = Store.metrics

    def noted(self: Store, since: int = 0) -> object:
        asked.append(since)
        return read(self, since=since)

    monkeypatch.setattr(Store, "metrics", noted)
    read_numbers(database, read_numbers(database))
    assert asked == [0, 2]  # from the last step on, which may have got more


def test_a_resumed_run_drops_steps_and_does_them_again(database: Path) -> None:
    before = read_numbers(database)
    with Store(database) as store:
        store.forget_after(1)
    dropped = both_ways(database, before)
    assert (dropped.last_step, dropped.metrics) == (1, {"reward": [(1, 0.1)]})
    with Store(database) as store:  # and when the same number of steps has been done before anybody looked
        store.event(1, "resume", "resumed")
        store.record_step(2, {"entropy": 0.7}, {})
    again = both_ways(database, before)
    assert again.metrics == {"reward": [(1, 0.1)], "entropy": [(2, 0.7)]}
    assert again.timings == {"rollout": [(1, 1.0)]}


def test_a_run_that_began_anew(database: Path) -> None:
    before = read_numbers(database)
    with Store(database) as store:
        store.forget_after(-1)
    assert both_ways(database, before) == Numbers()


def test_what_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(EarlError, match="wait for its first"):
        read_numbers(tmp_path / "run.db")
    (tmp_path / "run.db").write_bytes(b"not a database" * 100)
    with pytest.raises(EarlError, match="is damaged"):
        read_numbers(tmp_path / "run.db")
