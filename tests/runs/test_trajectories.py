import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.errors import EarlError
from earl.runs.trajectories import (
    SCHEMA,
    forget_after,
    from_bytes,
    from_table,
    path_of,
    read,
    to_bytes,
    to_table,
    write,
)
from earl.trajectory import Group, Outcome, StopReason, Task, Trajectory, Turn

MakeGroups = Callable[..., list[Group]]

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats() | st.sampled_from([float("nan"), -0.0])


@st.composite
def trajectory_strategy(draw: st.DrawFn) -> Trajectory:
    length = draw(st.integers(0, 6))

    def column(kind: type, elements: st.SearchStrategy[float]) -> np.ndarray:
        return np.array(draw(st.lists(elements, min_size=length, max_size=length)), kind)

    places = sorted(draw(st.lists(st.integers(0, length), max_size=12)))  # 4 for each turn, in order
    turns = [
        Turn(*places[at : at + 4], draw(st.none() | st.text()), draw(FLOATS), draw(FLOATS))
        for at in range(0, len(places) - 3, 4)
    ]
    return Trajectory(
        task=Task(draw(st.text()), draw(INT64), draw(st.integers(0, 3)), draw(st.text())),
        seed=draw(INT64),
        tokens=column(np.int32, INT32),
        authors=column(np.uint8, st.integers(0, 4)),
        logprobs=column(np.float32, st.floats(width=32)),
        versions=column(np.int32, INT32),
        turns=tuple(turns),
        stop=draw(st.sampled_from(StopReason)),
        outcome=draw(st.sampled_from(Outcome)),
        illegal=draw(st.integers(0, 9)),
        error=draw(st.none() | st.text()),
    )


GROUPS = st.lists(st.builds(Group, st.lists(trajectory_strategy(), min_size=1, max_size=3).map(tuple)), max_size=3)


def bits(groups: list[Group]) -> list[object]:
    """Everything in the groups, such that a NaN equals itself and -0.0 does not equal 0.0."""

    def of_turn(turn: Turn) -> object:
        offsets = (turn.context_start, turn.prompt_start, turn.action_start, turn.end)
        return offsets, turn.action, struct.pack("dd", turn.reward, turn.seconds)

    def of(row: Trajectory) -> object:
        arrays = (row.tokens, row.authors, row.logprobs, row.versions)
        return (
            (row.task, row.seed, row.stop, row.outcome, row.illegal, row.error),
            [(array.dtype, array.tobytes()) for array in arrays],
            [of_turn(turn) for turn in row.turns],
        )

    return [[of(row) for row in group.trajectories] for group in groups]


@given(groups=GROUPS, step=st.integers(0, 2**40))
def test_round_trip_to_the_bit(groups: list[Group], step: int) -> None:
    assert bits(from_table(to_table(groups, step))) == bits(groups)
    assert bits(from_bytes(to_bytes(groups))) == bits(groups)


@settings(max_examples=25)
@given(groups=GROUPS)
def test_round_trip_through_a_file(tmp_path_factory: pytest.TempPathFactory, groups: list[Group]) -> None:
    path = path_of(tmp_path_factory.getbasetemp(), 12)
    write(path, to_table(groups, 12))
    step, back = read(path)
    assert (step, bits(back)) == (12, bits(groups))


def test_types_survive(make_groups: MakeGroups) -> None:
    row = from_table(to_table(make_groups(), 0))[0].trajectories[0]
    assert isinstance(row.stop, StopReason)
    assert isinstance(row.outcome, Outcome)
    assert isinstance(row.turns, tuple)
    assert [type(value) for value in (row.seed, row.illegal, row.turns[0].reward)] == [int, int, float]
    assert row.tokens.flags.writeable  # torch warns about memory that it may not write


def test_a_table_of_several_chunks_is_read_as_one(make_groups: MakeGroups) -> None:
    table = to_table(make_groups(2, 3), 7)
    chunked = pa.concat_tables([table.slice(0, 2), table.slice(2, 1), table.slice(3)])
    assert bits(from_table(chunked)) == bits(make_groups(2, 3))
    assert bits(from_table(table.slice(3))) == bits(make_groups(2, 3)[1:])


def test_the_file_is_for_other_tools_too(tmp_path: Path, make_groups: MakeGroups) -> None:
    write(path_of(tmp_path, 12), to_table(make_groups(2, 3), 12))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000012.parquet"]
    table = pq.read_table(tmp_path / "step-000012.parquet")
    assert table.num_rows == 6  # 2 groups x 3 trajectories
    assert table["group"].to_pylist() == [0, 0, 0, 1, 1, 1]
    assert set(table["step"].to_pylist()) == {12}
    assert table["tokens"].to_pylist()[1] == [1, 2, 3, 4, 5]
    assert table["stop"].to_pylist()[0] == "illegal_action"
    assert table["turns"].to_pylist()[0][0]["action"] == "5"


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(EarlError, match="no trajectories at"):
        read(path_of(tmp_path, 3))


def test_every_damage_is_told_or_harmless(tmp_path: Path, make_groups: MakeGroups) -> None:
    path = path_of(tmp_path, 12)
    write(path, to_table(make_groups(), 12))
    whole, told = path.read_bytes(), 0
    places = range(0, len(whole), max(1, len(whole) // 250))
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            step, groups = read(path)
        except EarlError as error:
            assert "is damaged" in str(error)
            told += 1
        else:  # a byte that says nothing, such as a statistic
            assert (step, bits(groups)) == (12, bits(make_groups()))
    assert told > len(places) / 4


def test_a_truncated_file(tmp_path: Path, make_groups: MakeGroups) -> None:
    path = path_of(tmp_path, 12)
    write(path, to_table(make_groups(), 12))
    whole = path.read_bytes()
    for length in (0, 3, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(EarlError, match=r"step-000012\.parquet cannot be read .* is damaged; delete it"):
            read(path)


def test_a_file_with_other_columns_or_another_step(tmp_path: Path, make_groups: MakeGroups) -> None:
    path = path_of(tmp_path, 12)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(EarlError, match="its columns are not those"):
        read(path)
    table = to_table(make_groups(), 12)
    pq.write_table(table.replace_schema_metadata({b"earl.format": b"2", b"earl.step": b"13"}), path)
    with pytest.raises(EarlError, match="another step"):
        read(path)
    stops = pa.array(["bored"] * table.num_rows)
    at = SCHEMA.get_field_index("stop")
    pq.write_table(table.set_column(at, SCHEMA.field(at), stops), path)
    with pytest.raises(EarlError, match="'bored' is not a valid StopReason"):
        read(path)


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, make_groups: MakeGroups) -> None:
    path = path_of(tmp_path, 12)
    write(path, to_table(make_groups(), 12))
    before = path.read_bytes()
    with pytest.raises(AttributeError):
        write(path, "not a table")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_later_steps_are_forgotten(tmp_path: Path, make_groups: MakeGroups) -> None:
    for step in (1, 2, 10, 1000000):
        write(path_of(tmp_path, step), to_table(make_groups(1, 1), step))
    (tmp_path / "step-notes.parquet").write_text("not ours")
    forget_after(tmp_path, 2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-000001.parquet", "step-000002.parquet", "step-notes.parquet"]
