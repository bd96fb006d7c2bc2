from pathlib import Path

import numpy as np
import pytest

from earl.errors import EarlError
from earl.runs import trajectories
from earl.trajectory import Group, Outcome, StopReason, Task, Trajectory, Turn


def group() -> Group:
    one = Trajectory(
        Task("tictactoe", 1), 2, np.array([5, 6], np.int32), np.array([1, 4], np.uint8), np.zeros(2, np.float32),
        np.array([-1, 0], np.int32), (Turn(0, 0, 1, 2, "6", 1.0, 0.1),), StopReason.FINISHED, Outcome.WIN, 0,
    )  # fmt: skip
    return Group((one, one))


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step-000007.parquet"
    table = trajectories.to_table([group()], 7)
    trajectories.write(path, table.replace_schema_metadata({**table.schema.metadata, b"earl.format": b"9"}))
    with pytest.raises(EarlError, match="not those of this version"):
        trajectories.read(path)
