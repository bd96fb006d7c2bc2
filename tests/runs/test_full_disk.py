"""What a run says and leaves behind when the disk is full or cannot be written."""

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from earl.errors import EarlError
from earl.runs import checkpoint, trajectories
from earl.runs.folder import create, lock
from earl.runs.storage import storage, write_text
from earl.runs.store import Store
from earl.trajectory import Group

MakeGroups = Callable[..., list[Group]]

BIG_BYTES = 2 << 20  # twice the small disk


def fill(disk: Path, leave_bytes: int = 0) -> Path:
    """Use up a small disk but for a few bytes."""
    assert os.path.ismount(disk)  # never the disk that the machine runs on
    free = os.statvfs(disk)
    filler = disk / "filler"
    filler.write_bytes(bytes(free.f_bavail * free.f_frsize - leave_bytes))
    return filler


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def big_bytes(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(bytes(BIG_BYTES))


def big_safetensors(folder: Path) -> None:
    save_file({"weights": np.zeros(BIG_BYTES, np.uint8)}, folder / "weights.safetensors")


@pytest.mark.parametrize("write", [big_bytes, big_safetensors])
def test_a_checkpoint_on_a_full_disk(small_disk: Path, write: Callable[[Path], None]) -> None:
    checkpoint.save(small_disk, 5, lambda folder: None, {"n": 5})
    with pytest.raises(EarlError, match=r"no space left at .*step-000010: free space, then .*--resume"):
        checkpoint.save(small_disk, 10, write, {"n": 10})
    assert everything(small_disk) == ["step-000005", "step-000005/state.json"]
    assert checkpoint.load(small_disk / "step-000005").state == {"n": 5}


def incompressible(make_groups: MakeGroups) -> list[Group]:
    """One trajectory whose tokens take BIG_BYTES however they are packed."""
    row = make_groups(1, 1)[0].trajectories[0]
    noise = np.random.default_rng(0).integers(0, 2**31, BIG_BYTES // 4, np.int32)
    flat = np.zeros(len(noise))
    row = replace(
        row,
        tokens=noise,
        authors=flat.astype(np.uint8),
        logprobs=flat.astype(np.float32),
        versions=flat.astype(np.int32),
    )
    return [Group((row,))]


def test_trajectories_on_a_full_disk(small_disk: Path, make_groups: MakeGroups) -> None:
    table = trajectories.to_table(incompressible(make_groups), 12)
    with pytest.raises(EarlError, match=r"no space left at .*step-000012\.parquet"):
        trajectories.write(trajectories.path_of(small_disk, 12), table)
    assert everything(small_disk) == []


def test_a_store_on_a_full_disk_keeps_whole_steps(small_disk: Path) -> None:
    step = {f"metric-{index}": index for index in range(200)}
    with Store(small_disk / "run.db") as store:
        store.record_step(0, step, {})
        filler = fill(small_disk, leave_bytes=16384)
        with pytest.raises(EarlError, match=r"no space left at .*run\.db: free space, then .*--resume"):
            for number in range(1, 1000):
                store.record_step(number, step, {})
        last = store.last_step()
        assert {len(series) for series in store.metrics().values()} == {(last or 0) + 1}
    with Store(small_disk / "run.db", read_only=True) as store:  # a report can still be made
        assert store.last_step() == last
    filler.unlink()
    with Store(small_disk / "run.db") as store:
        store.record_step(5000, step, {})
        assert store.last_step() == 5000


def test_a_run_is_not_created_on_a_full_disk(small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(EarlError, match=r"no space left at .*/a: free space, then start the run again"):
        create(small_disk / "runs", "a", "seed = 7\n")
    assert everything(small_disk) in (["filler"], ["filler", "runs"])


def test_a_lock_and_a_report_on_a_full_disk(small_disk: Path) -> None:
    folder = create(small_disk, "a")
    write_text(folder.report, "old")
    fill(small_disk)
    with pytest.raises(EarlError, match=r"no space left at .*report\.html"):
        write_text(folder.report, "x" * 10000)
    assert folder.report.read_text() == "old"
    with pytest.raises(EarlError, match=r"no space left at .*lock"), lock(folder):
        pass


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


def test_a_disk_that_is_read_only(small_disk: Path, make_groups: MakeGroups) -> None:
    folder = create(small_disk, "a")
    checkpoint.save(folder.checkpoints, 5, lambda _: None, {"n": 5})
    with Store(folder.database) as store:
        store.record_step(5, {"loss": 1.0}, {})
    writes: list[Callable[[], object]] = [
        lambda: create(small_disk, "b"),
        lambda: checkpoint.save(folder.checkpoints, 10, lambda _: None, {}),
        lambda: trajectories.write(folder.trajectories / "x.parquet", trajectories.to_table(make_groups(), 0)),
        lambda: Store(folder.database),
        lambda: lock(folder).__enter__(),
    ]
    with read_only(small_disk):
        for write in writes:
            with pytest.raises(EarlError, match=r"is refused \((Read-only file system|Permission denied)\)"):
                write()
        with Store(folder.database, read_only=True) as store:  # looking is allowed
            assert store.metrics() == {"loss": [(5, 1.0)]}
        assert checkpoint.load(folder.checkpoints / "step-000005").state == {"n": 5}


@contextmanager
def limited_files(limit_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond the limit: as a full disk, without any privilege."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_files_that_may_not_grow(tmp_path: Path, make_groups: MakeGroups) -> None:
    step = {f"metric-{index}": index for index in range(1000)}
    table = trajectories.to_table(incompressible(make_groups), 12)
    with Store(tmp_path / "run.db") as store:
        store.record_step(0, {"loss": 1.0}, {})
        with limited_files(1 << 17):
            with pytest.raises(EarlError, match="no space left at"):
                checkpoint.save(tmp_path / "checkpoints", 10, big_bytes, {})
            with pytest.raises(EarlError, match="no space left at"):
                checkpoint.save(tmp_path / "checkpoints", 10, big_safetensors, {})
            with pytest.raises(EarlError, match="no space left at"):
                trajectories.write(trajectories.path_of(tmp_path, 12), table)
            with pytest.raises(EarlError, match=r"run\.db.*free space"):
                for number in range(1, 1000):
                    store.record_step(number, step, {})
        store.forget_after(0)
        assert store.metrics() == {"loss": [(0, 1.0)]}
    assert everything(tmp_path) == ["checkpoints", "run.db"]


def test_a_tokenizer_on_a_full_disk_says_so(characters, tmp_path: Path) -> None:
    with pytest.raises(EarlError, match="no space left at"), storage(tmp_path):
        characters.backend_tokenizer.save("/dev/full")  # raises a bare Exception, with the errno in its words


def test_other_faults_pass_through(tmp_path: Path) -> None:
    with pytest.raises(KeyError), storage(tmp_path):
        raise KeyError("a bug")
    with pytest.raises(InterruptedError), storage(tmp_path):
        raise InterruptedError(4, "no fault of the disk")
    with pytest.raises(EarlError, match="has vanished while it was in use"), storage(tmp_path):
        (tmp_path / "gone").read_text()
