from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from earl.errors import EarlError
from earl.recipe import build, dump
from earl.runs import trajectories
from earl.runs.folder import RunFolder
from earl.trajectory import Group, Outcome, StopReason, Task, Trajectory, Turn


def group() -> Group:
    one = Trajectory(
        Task("tictactoe", 1), 2, np.array([5, 6], np.int32), np.array([1, 4], np.uint8), np.zeros(2, np.float32),
        np.array([-1, 0], np.int32), (Turn(0, 0, 1, 2, "6", 1.0, 0.1),), StopReason.FINISHED, Outcome.WIN, 0,
    )  # fmt: skip
    return Group((one, one))


def as_format_1(table: pa.Table) -> pa.Table:
    """The table as the first earl wrote it: turns without `summary`, nothing of the learner."""
    turns = table["turns"].combine_chunks()
    kinds = [field for field in turns.values.type if field.name != "summary"]
    values = pa.StructArray.from_arrays([turns.values.field(field.name) for field in kinds], fields=kinds)
    kind = pa.list_(pa.field("element", values.type, nullable=False))
    older = table.drop_columns(["mask", "advantages", "new_logprobs"])
    place = older.column_names.index("turns")
    column = pa.ListArray.from_arrays(turns.offsets, values, type=kind)
    older = older.set_column(place, pa.field("turns", kind, nullable=False), column)
    return older.replace_schema_metadata({**table.schema.metadata, b"earl.format": b"1"})


def test_trajectories_of_format_1_are_read(tmp_path: Path) -> None:
    path = tmp_path / "step-000007.parquet"
    trajectories.write(path, as_format_1(trajectories.to_table([group()], 7)))
    step, groups, experiences = trajectories.read_whole(path)
    assert (step, len(groups[0].trajectories)) == (7, 2)
    assert groups[0].trajectories[1].turns == group().trajectories[0].turns
    assert experiences == []


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step-000007.parquet"
    table = trajectories.to_table([group()], 7)
    trajectories.write(path, table.replace_schema_metadata({**table.schema.metadata, b"earl.format": b"9"}))
    with pytest.raises(EarlError, match="not those of this version"):
        trajectories.read(path)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("grpo", {"clip": 0.3}),
        ("rloo", {}),  # it never read a clip
        ("ppo", {"clip": 0.3, "gamma": 1.0, "gae_lambda": 0.95, "value_weight": 0.5}),
    ],
)
def test_settings_that_all_algorithms_once_shared_become_options_of_the_one_that_read_them(
    tmp_path: Path, name: str, options: dict[str, float]
) -> None:
    shared = "clip = 0.3\ngamma = 1.0\ngae_lambda = 0.95\nvalue_weight = 0.5\nentropy = 0.03\n"
    text = f'[env]\nname = "tictactoe"\n[algorithm]\nname = "{name}"\n{shared}'
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    config = build(RunFolder(tmp_path).recipe())
    assert (config.algorithm.options, config.algorithm.entropy) == (options, 0.03)
    (tmp_path / "config.toml").write_text(dump(config), encoding="utf-8")
    assert build(RunFolder(tmp_path).recipe()) == config
