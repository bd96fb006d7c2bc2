"""What is read of a run's database as a whole."""

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


def test_a_step_more_and_a_stage_more_of_the_last_one(database: Path) -> None:
    with Store(database) as store:
        store.record_step(2, {}, {"checkpoint": 0.5})  # as training does once the checkpoint is written
        store.record_step(3, {"reward": 0.3, "entropy": 1.0}, {"rollout": 2.0}, [WIN])
        store.event(3, "best", "the best so far")
    after = read_numbers(database)
    assert after.metrics == {"reward": [(1, 0.1), (2, 0.2), (3, 0.3)], "entropy": [(3, 1.0)]}
    assert after.timings == {"rollout": [(1, 1.0), (2, 1.0), (3, 2.0)], "checkpoint": [(2, 0.5)]}
    assert [event.kind for event in after.events] == ["start", "best"]
    assert (after.last_step, [match.result for match in after.matches]) == (3, [WIN])


def test_a_run_that_began_anew(database: Path) -> None:
    with Store(database) as store:
        store.forget_after(-1)
    assert read_numbers(database) == Numbers()


def test_what_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(EarlError, match="wait for its first"):
        read_numbers(tmp_path / "run.db")
    (tmp_path / "run.db").write_bytes(b"not a database" * 100)
    with pytest.raises(EarlError, match="is damaged"):
        read_numbers(tmp_path / "run.db")
