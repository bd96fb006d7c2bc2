"""A writer of a run is killed at random moments; each time the run opens and holds whole steps only."""

import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from earl.errors import EarlError
from earl.runs import checkpoint, trajectories
from earl.runs.folder import create, lock
from earl.runs.storage import step_of
from earl.runs.store import Store

pytestmark = pytest.mark.cold

NUM_METRICS = 20

WRITER = """
import sys
from pathlib import Path
import numpy as np
from earl.matches import MatchResult
from earl.runs import checkpoint, trajectories
from earl.runs.folder import RunFolder, lock
from earl.runs.store import Store
from earl.trajectory import Group
from earl.trajectory import Outcome, StopReason, Task, Trajectory, Turn

def groups(step):
    tokens = np.full(200, step, np.int32)
    arrays = (tokens, (tokens % 5).astype(np.uint8), tokens.astype(np.float32), tokens)
    turns = (Turn(0, 0, 1, 200, "5", 1.0, 0.0),)
    row = Trajectory(Task("tictactoe", step), step, *arrays, turns, StopReason.FINISHED, Outcome.WIN, 0)
    return [Group((row,) * 8)] * 4

def weights(step):
    def write(folder):
        for name in ("model", "optimizer"):
            (folder / name).write_bytes(step.to_bytes(4, "little") * 20_000)
    return write

folder = RunFolder(Path(sys.argv[1]))
with lock(folder), Store(folder.database) as store:
    last = checkpoint.latest(folder.checkpoints)
    step = checkpoint.load(last).step if last else -1
    store.forget_after(step)
    trajectories.forget_after(folder.trajectories, step)
    print("writing", flush=True)
    while True:
        step += 1
        path = trajectories.path_of(folder.trajectories, step)
        trajectories.write(path, trajectories.to_table(groups(step), step))
        print("done", flush=True)
        result = MatchResult("tictactoe", "random", step % 2, False, 10, 1.0, 0.0, 0.0, 0.0, 0.0)
        metrics = {f"metric-{index}": step * index for index in range(NUM_METRICS)}
        store.record_step(step, metrics, {"rollout": step / 8}, [result])
        print("done", flush=True)
        if step % 2 == 1:
            checkpoint.save(folder.checkpoints, step, weights(step), {"step": step})
            print("done", flush=True)
            checkpoint.prune(folder.checkpoints, 2, {1})
            print("done", flush=True)
""".replace("NUM_METRICS", str(NUM_METRICS))


def killed_after(path: Path, num_writes: int, seconds: float) -> None:
    """Let another process write the run; end it some time after its n-th write."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        for _ in range(num_writes):
            assert writer.stdout.readline() == b"done\n"
        time.sleep(seconds)
        assert writer.poll() is None, "the writer ended by itself"
        writer.send_signal(signal.SIGKILL)


def assert_whole_steps(store: Store) -> int:
    """Every step up to the last has all of its numbers. Returns the last, -1 when there is none."""
    last = store.last_step()
    last = -1 if last is None else last
    metrics = store.metrics()
    for index in range(NUM_METRICS if last >= 0 else 0):
        expected = [(step, float(step * index)) for step in range(last + 1)]
        assert metrics[f"metric-{index}"] == expected
    assert store.timings().get("rollout", []) == [(step, step / 8) for step in range(last + 1)]
    assert [row.step for row in store.matches()] == list(range(last + 1))
    return last


@pytest.mark.slow
def test_a_run_killed_at_random_moments_is_whole(tmp_path: Path) -> None:
    folder, moments = create(tmp_path, "a"), random.Random(20251009)
    saved = -1
    for _ in range(12):
        killed_after(folder.path, moments.randrange(15), moments.uniform(0, 0.02))
        with Store(folder.database, read_only=True) as store:  # a report, before anybody mends anything
            last = assert_whole_steps(store)
        with lock(folder), Store(folder.database) as store:
            assert assert_whole_steps(store) == last
        assert not list(folder.path.rglob(".*"))
        for step in checkpoint.all_steps(folder.checkpoints):
            loaded = checkpoint.load(folder.checkpoints / f"step-{step:06d}")
            assert (loaded.step, loaded.state) == (step, {"step": step})
            assert step <= last  # the numbers are never behind the checkpoint
        newest = max(checkpoint.all_steps(folder.checkpoints), default=-1)
        assert newest >= saved  # what was saved stays saved
        saved = newest
        for path in folder.trajectories.iterdir():
            step, groups = trajectories.read(path)
            assert step == step_of(path)
            assert step <= last + 1
            assert groups[3].trajectories[7].tokens.tolist() == [step] * 200
    assert saved >= 9  # it did go on over the kills


def test_a_reader_never_meets_a_half_step(tmp_path: Path) -> None:
    folder = create(tmp_path, "a")
    with subprocess.Popen([sys.executable, "-c", WRITER, str(folder.path)], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert select.select([writer.stdout], [], [], 60)[0]
            with pytest.raises(EarlError, match=f"process {writer.pid}"), lock(folder):
                pass
            seen: set[int] = set()
            while len(seen) < 20:
                with Store(folder.database, read_only=True) as store:
                    seen.add(assert_whole_steps_at_once(store))
        finally:
            writer.kill()


def assert_whole_steps_at_once(store: Store) -> int:
    """As `assert_whole_steps`, but by one query, since the writer goes on between two."""
    metrics = store.metrics()
    lengths = {len(series) for series in metrics.values()}
    assert len(lengths) <= 1
    assert len(metrics) in (0, NUM_METRICS)
    return lengths.pop() if lengths else 0
