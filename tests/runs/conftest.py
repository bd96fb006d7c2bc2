"""What several tests of the run folder need: trajectories to write, a small disk to fill."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from earl.trajectory import Group, Outcome, StopReason, Task, Trajectory, Turn

SMALL_DISK_BYTES = 1 << 20


def make_groups(num_groups: int = 2, group_size: int = 3, num_tokens: int = 5) -> list[Group]:
    def trajectory(group: int, seed: int) -> Trajectory:
        return Trajectory(
            task=Task("tictactoe", seed=group, seat=group % 2, opponent="heuristic"),
            seed=seed,
            tokens=np.arange(num_tokens, dtype=np.int32) + seed,
            authors=np.full(num_tokens, 4, np.uint8),
            logprobs=np.linspace(-1, 0, num_tokens, dtype=np.float32),
            versions=np.full(num_tokens, 3, np.int32),
            turns=(Turn(0, 0, 2, 3, "5", 0.0, 1e-5), Turn(0, 3, 4, 5, None, -1.0, 2e-5)),
            stop=StopReason.ILLEGAL_ACTION,
            outcome=Outcome.LOSS,
            illegal=1,
        )

    return [Group(tuple(trajectory(group, seed) for seed in range(group_size))) for group in range(num_groups)]


@pytest.fixture(name="make_groups")
def make_groups_fixture() -> object:
    return make_groups


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB, mounted for one test."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(disk)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("a full disk is made by mounting a tmpfs, and there is no mount command here")
    if answer.returncode != 0:
        pytest.skip(f"a full disk is made by mounting a tmpfs, which is refused: {answer.stderr.strip()}")
    try:
        assert os.path.ismount(disk)
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
