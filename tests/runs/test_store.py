import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.errors import EarlError
from earl.matches import MatchResult
from earl.runs.store import RecordedDecision, RecordedMatch, Store

WON = MatchResult("tictactoe", "random", 0, False, 400, 0.9, 0.05, 0.05, 0.01, 0.0)
LOST = MatchResult("tictactoe", "perfect", 1, True, 31, 0.0, 0.0, 1.0, 0.0, 0.0)
PLAYED = replace(WON, seat=1, distinct_games=3, distinct_win=0.5, forfeit=0.1, turn_tokens=2.5, optimal=0.9)


def test_a_step_comes_back(tmp_path: Path) -> None:
    with Store(tmp_path / "run.db") as store:
        assert store.last_step() is None
        store.record_step(0, {"loss": 1.5, "reward": -1}, {"rollout": 0.25}, [WON])
        store.record_step(1, {"loss": 0.5}, {"rollout": 0.5}, [LOST], phase="eval")
        assert store.last_step() == 1
    with Store(tmp_path / "run.db", read_only=True) as store:
        assert store.metrics() == {"loss": [(0, 1.5), (1, 0.5)], "reward": [(0, -1.0)]}
        assert store.timings() == {"rollout": [(0, 0.25), (1, 0.5)]}
        assert store.matches() == [RecordedMatch(0, "train", WON), RecordedMatch(1, "eval", LOST)]


@settings(max_examples=20)
@given(values=st.lists(st.floats(allow_nan=False), max_size=20))
def test_every_float_comes_back(values: list[float]) -> None:
    with TemporaryDirectory() as folder, Store(Path(folder) / "run.db") as store:
        for step, value in enumerate(values):
            store.record_step(step, {"x": value}, {})
        back = [value for _, value in store.metrics().get("x", [])]
    assert back == values  # but for the sign of -0.0, which SQLite drops
    assert all(type(value) is float for value in back)


def test_nan_and_infinity_come_back(tmp_path: Path) -> None:
    with Store(tmp_path / "run.db") as store:
        store.record_step(
            0, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": float(np.float32("nan"))}, {"t": math.nan}
        )
        unplayed = MatchResult("tictactoe", "random", 0, False, 0, *[math.nan] * 5)
        store.record_step(0, {}, {}, [unplayed])
        values = {name: series[0][1] for name, series in store.metrics().items()}
        assert math.isnan(values["a"])
        assert (values["b"], values["c"]) == (math.inf, -math.inf)
        assert math.isnan(values["d"])
        assert math.isnan(store.timings()["t"][0][1])
        assert math.isnan(store.matches()[0].result.win)


def test_a_step_is_recorded_whole_or_not_at_all(tmp_path: Path) -> None:
    with Store(tmp_path / "run.db") as store:
        with pytest.raises(ValueError, match="could not convert"):
            store.record_step(0, {"loss": 1.0}, {"rollout": "slow"})  # type: ignore[dict-item]
        with pytest.raises(UnicodeEncodeError):  # found by SQLite after the metrics are in
            store.record_step(0, {"loss": 1.0}, {"\ud800": 1.0})
        assert store.metrics() == {}
        assert store.last_step() is None
        store.record_step(0, {"loss": 1.0}, {})  # and the store goes on
        assert store.last_step() == 0


def test_recording_again_replaces(tmp_path: Path) -> None:
    with Store(tmp_path / "run.db") as store:
        store.record_step(3, {"loss": 1.0}, {}, [WON])
        store.record_step(3, {"loss": 2.0}, {}, [WON, LOST])
        assert store.metrics() == {"loss": [(3, 2.0)]}
        assert [row.result.opponent for row in store.matches()] == ["perfect", "random"]


def test_later_steps_are_forgotten_everywhere(tmp_path: Path) -> None:
    with Store(tmp_path / "run.db") as store:
        for step in range(4):
            store.record_step(step, {"loss": step}, {"rollout": step}, [WON])
            store.event(step, "note", f"at {step}")
        store.forget_after(1)
        assert store.last_step() == 1
        assert store.metrics() == {"loss": [(0, 0.0), (1, 1.0)]}
        assert store.timings() == {"rollout": [(0, 0.0), (1, 1.0)]}
        assert [row.step for row in store.matches()] == [0, 1]
        assert [event.message for event in store.events()] == ["at 0", "at 1"]
        store.forget_after(-1)
        assert store.last_step() is None


def test_events_keep_their_order_and_text(tmp_path: Path) -> None:
    with Store(tmp_path / "run.db") as store:
        store.event(5, "resume", 'from step 5; it\'s "quoted"')
        store.event(2, "warning", "∑ of context")
        first, second = store.events()
        assert (first.step, first.kind, first.message) == (5, "resume", 'from step 5; it\'s "quoted"')
        assert second.message == "∑ of context"
        assert first.time <= second.time


def test_decisions_come_back_in_their_order_and_are_forgotten_with_their_steps(tmp_path: Path) -> None:
    first = RecordedDecision(1, "update", "dp4 tp1", None, "first", "the cheapest", '{"step": 1}')
    again = RecordedDecision(1, "update", "dp2 tp2", "dp4 tp1", "forced", "it ran out of memory", '{"step": 1}')
    later = RecordedDecision(2, "rollout", "2 x tp2", None, "first", "'quoted' \u2028", "{}")
    with Store(tmp_path / "run.db") as store:
        for decision in (first, again, later):
            store.decision(decision)
        assert store.decisions() == [first, again, later]
        store.forget_after(1)
        assert store.decisions() == [first, again]


def test_a_database_of_format_3_has_results_without_measures_until_it_is_written_again(tmp_path: Path) -> None:
    with Store(tmp_path / "run.db") as store:
        store.record_step(0, {}, {}, [PLAYED])
        assert store.matches()[0].result == PLAYED
    with closing(sqlite3.connect(tmp_path / "run.db")) as connection:
        connection.execute("DROP TABLE measures")
        connection.execute("PRAGMA user_version = 3")
        connection.commit()
    with Store(tmp_path / "run.db", read_only=True) as store:
        assert store.matches()[0].result == replace(WON, seat=1)
    with Store(tmp_path / "run.db") as store:
        store.record_step(1, {}, {}, [PLAYED])
        assert [match.result for match in store.matches()] == [replace(WON, seat=1), PLAYED]


def test_a_database_of_format_2_has_no_decisions_until_it_is_written_again(tmp_path: Path) -> None:
    with Store(tmp_path / "run.db") as store:
        store.record_step(0, {"loss": 1.0}, {})
    with sqlite3.connect(tmp_path / "run.db") as connection:
        connection.execute("DROP TABLE decisions")
        connection.execute("DROP TABLE measures")
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with Store(tmp_path / "run.db", read_only=True) as store:
        assert store.decisions() == []
    with Store(tmp_path / "run.db") as store:
        store.decision(RecordedDecision(1, "update", "dp4 tp1", None, "first", "", "{}"))
        assert len(store.decisions()) == 1


def test_a_reader_sees_whole_steps_while_the_run_is_written(tmp_path: Path) -> None:
    with Store(tmp_path / "run.db") as writer:
        writer.record_step(0, {"loss": 0.0}, {})
        with Store(tmp_path / "run.db", read_only=True) as reader:
            with writer._transaction() as connection:  # a step half way
                connection.execute("INSERT INTO metrics VALUES (1, 'loss', 1.0)")
                assert reader.last_step() == 0
            assert reader.last_step() == 1
            with pytest.raises(EarlError, match="refused"):
                reader.record_step(2, {"loss": 2.0}, {})


def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    folder = tmp_path / "what? a#b %41 ü"
    folder.mkdir()
    with Store(folder / "run.db") as store:
        store.record_step(0, {"loss": 1.0}, {})
    assert (folder / "run.db").is_file()
    with Store(folder / "run.db", read_only=True) as store:
        assert store.last_step() == 0


def test_a_reader_of_nothing_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(EarlError, match=r"no numbers at .*has not recorded a step yet"):
        Store(tmp_path / "run.db", read_only=True)
    assert not (tmp_path / "run.db").exists()


@pytest.mark.parametrize("begun", [b"", None])
def test_a_database_that_was_killed_before_its_first_commit_is_empty_and_can_be_written(
    tmp_path: Path, begun: bytes | None
) -> None:
    path = tmp_path / "run.db"
    if begun is None:
        sqlite3.connect(path).execute("PRAGMA journal_mode = WAL")
    else:
        path.write_bytes(begun)
    with Store(path, read_only=True) as store:
        assert (store.last_step(), store.metrics(), store.events(), store.decisions()) == (None, {}, [], [])
    with Store(path) as store:
        store.record_step(1, {"loss": 1.0}, {})
        assert store.last_step() == 1


def filled(path: Path) -> None:
    with Store(path) as store:
        for step in range(200):
            store.record_step(step, {f"metric-{index}": index for index in range(10)}, {})


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_that_is_no_database(tmp_path: Path, read_only: bool) -> None:
    (tmp_path / "run.db").write_text("step,loss\n" * 1000)
    with pytest.raises(EarlError, match=r"run\.db is damaged.*move it .*--resume"):
        Store(tmp_path / "run.db", read_only=read_only)


def test_a_damaged_page_is_found_when_a_writer_opens(tmp_path: Path) -> None:
    filled(tmp_path / "run.db")
    data = bytearray((tmp_path / "run.db").read_bytes())
    for page in range(1, len(data) // 4096):  # the first page, with the tables' names, stays
        data[page * 4096 : page * 4096 + 200] = bytes(range(200))
    (tmp_path / "run.db").write_bytes(data)
    with pytest.raises(EarlError, match="is damaged"):
        Store(tmp_path / "run.db")
    with Store(tmp_path / "run.db", read_only=True) as reader, pytest.raises(EarlError, match="is damaged"):
        reader.metrics()


def test_a_truncated_database(tmp_path: Path) -> None:
    filled(tmp_path / "run.db")
    data = (tmp_path / "run.db").read_bytes()
    (tmp_path / "run.db").write_bytes(data[: len(data) // 2])
    with pytest.raises(EarlError, match="is damaged"):
        Store(tmp_path / "run.db")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "run.db")
    connection = sqlite3.connect(tmp_path / "run.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(EarlError, match=r"has format 99.*use a newer earl"):
        Store(tmp_path / "run.db", read_only=True)


def test_a_schema_that_is_no_text_is_damage(tmp_path: Path) -> None:
    with Store(tmp_path / "run.db"):
        pass
    with closing(sqlite3.connect(tmp_path / "run.db")) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = CAST(sql || x'80' AS TEXT) WHERE name = 'metrics'")
        connection.commit()
    for read_only in (True, False):
        with pytest.raises(EarlError, match="not a database of a run"):
            Store(tmp_path / "run.db", read_only=read_only)
