"""Environments that return what they must not, exit, hang, and leave threads behind: real runs, real signals."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from earl.runs import checkpoint, trajectories
from earl.runs.folder import RunFolder

pytestmark = pytest.mark.slow

HOSTILE = Path(__file__).parent / "hostile"
ROOT = Path(__file__).parents[2]
COLD = sys.executable
"""Starts all of a run as a user's, as its children: not forks of one that has imported what they need. A run of one
process has only the guard beside it, which is never a fork."""
QUIET = ["--set", "evaluate.opponents=['heuristic']", "--set", "warm_start.steps=0"]


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"PYTHONPATH": f"{HOSTILE}:{ROOT}", "HOSTILE": str(tmp_path / "hang"), **more}


@pytest.fixture
def line(tiny: Path, tmp_path: Path) -> list[object]:
    """It misbehaves in half of its episodes of training, and in no match."""
    recipe = tmp_path / "hostile.toml"
    text = tiny.read_text().replace("tictactoe", "hostile").replace("perfect", "heuristic")
    # Of 106 tokens one ends a reply: a new model ends one of three within 40, and most episodes one of six.
    text = text.replace("max_turn_tokens = 2", "max_turn_tokens = 40\nretries = 5").replace("= 120", "= 800")
    recipe.write_text(text)
    return ["train", "hostile", "--config", recipe, "--runs", tmp_path, "--name", "a", *QUIET]


def weights(folder: RunFolder) -> dict[str, bytes]:
    tensors = load_file(checkpoint.latest(folder.checkpoints) / "model.safetensors")
    return {name: tensor.tobytes() for name, tensor in tensors.items()}


def faults(folder: RunFolder) -> set[str]:
    stored = [trajectories.read(path)[1] for path in folder.trajectories.glob("*.parquet")]
    return {t.error for groups in stored for group in groups for t in group.trajectories if t.error}


def metric(folder: RunFolder, name: str) -> list[float]:
    with sqlite3.connect(folder.database) as database:
        return [
            value for (value,) in database.execute("SELECT value FROM metrics WHERE name = ? ORDER BY step", [name])
        ]


SAID = {
    "the reward is nan, not a finite number",
    "the reward is inf, not a finite number",
    "the reward is 1e+30, not a finite number",
    "the reward is 1j, not a finite number",
    "SystemExit: 7 (line ",
    "KeyboardInterrupt:  (line ",
    "the observation has 30000000 characters, more than the 12800",
}


def test_what_an_environment_must_not_do_ends_its_episode_and_not_the_run(
    start: Callable, line: list[object], tmp_path: Path
) -> None:
    settings = ["env.options.mode='mixed'", "run.keep_trajectories_every=1", "rollout.episodes=64", "run.steps=2"]
    with start(*line, *(part for setting in settings for part in ("--set", setting)), env=environment(tmp_path)) as run:
        _, err = run.communicate()
    assert run.returncode == 0, err
    folder = RunFolder(tmp_path / "a")
    found = faults(folder)
    assert {said for said in SAID if any(fault.startswith(said) for fault in found)} == SAID
    assert all(fault.startswith(tuple(SAID)) for fault in found)
    assert all(0 < share < 0.6 for share in metric(folder, "stop/env_error"))
    for step in checkpoint.all_steps(folder.checkpoints):
        tensors = load_file(folder.checkpoints / f"step-{step:06d}" / "model.safetensors")
        assert all(abs(tensor).max() < 1e6 for tensor in tensors.values())  # false of NaN


def test_a_thread_that_an_environment_left_behind_does_not_keep_the_process(
    start: Callable, line: list[object], tmp_path: Path
) -> None:
    with start(*line, "--set", "env.options.mode='thread'", env=environment(tmp_path), python=COLD) as process:
        _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "ended beside threads that still run: left behind" in err


def children(process: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process:
            found += [int(path.parent.name), *children(int(path.parent.name))]
    return found


def gone(process: int) -> bool:
    path = Path(f"/proc/{process}/stat")
    try:
        return path.read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def hang(process: subprocess.Popen[str], tmp_path: Path) -> list[int]:
    """Let a run hang after its first steps; its processes then."""
    for text in process.stderr:
        if re.search(r"step [3-9]/", text):
            break
    (tmp_path / "hang").touch()
    while not (tmp_path / "hang.hung").exists() and process.poll() is None:
        time.sleep(0.05)
    return children(int((tmp_path / "a" / "lock").read_text()))


LONG = ["--steps", "6", "--set", "evaluate.every=4", "--set", "run.checkpoint_every=2"]
KINDS = {
    "one process": [],
    "two processes": ["--set", "run.processes=2", "--set", "env.options.peers=true"],
    "ray": ["--set", "placement.kind='colocated'"],
}
PYTHON = 9.0
"""Seconds of grace where Python itself can end in good order, on a busy machine; the others are killed anyway."""


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, dict[str, bytes]]:
    """The last weights of runs of each kind that never hung, in whatever way they might have."""
    return {}


@pytest.mark.parametrize(
    ("kind", "mode", "signals", "code"),
    [
        pytest.param("one process", "python", [signal.SIGTERM], 130, marks=pytest.mark.exhaustive),
        pytest.param("one process", "regex", [signal.SIGINT, signal.SIGINT], 130, marks=pytest.mark.exhaustive),
        pytest.param(
            "one process", "held", [signal.SIGINT, signal.SIGINT], -signal.SIGKILL, marks=pytest.mark.exhaustive
        ),
        ("two processes", "held", [signal.SIGTERM], -signal.SIGKILL),
        # Ray may take longer to end than a third of the grace period.
        pytest.param("ray", "held", [signal.SIGTERM], None, marks=pytest.mark.exhaustive),
    ],
)
def test_signals_end_a_run_whose_environment_hangs_and_it_resumes_to_the_bit(
    start: Callable,
    line: list[object],
    tmp_path: Path,
    undisturbed: dict[str, dict[str, bytes]],
    kind: str,
    mode: str,
    signals: list[int],
    code: int | None,
) -> None:
    settings = [*LONG, *KINDS[kind], "--set", f"env.options.mode='{mode}'"]
    own = environment(tmp_path, EARL_GRACE_SECONDS=str(3.0 if mode == "held" and kind != "ray" else PYTHON))
    python = "" if kind == "one process" else COLD
    with start(*line, *settings, env=own, start_new_session=True, python=python) as process:
        others = hang(process, tmp_path)
        assert len(others) >= {"one process": 1, "two processes": 2, "ray": 5}[kind]  # the guard, and who works along
        for number in signals:
            os.kill(process.pid, number)
            time.sleep(1)
        err = process.communicate(timeout=180)[1]
    assert process.returncode in ((130, -signal.SIGKILL) if code is None else (code,)), err
    assert "Traceback" not in err
    assert "continue with" in err
    ends = time.monotonic() + 30
    while not all(map(gone, others)) and time.monotonic() < ends:
        time.sleep(0.5)
    assert all(map(gone, others))

    (tmp_path / "hang").unlink()
    folder = RunFolder(tmp_path / "a")
    checkpoint.load(checkpoint.latest(folder.checkpoints))
    commands: list[list[object]] = [["train", "--resume", "a", "--runs", tmp_path]]
    if kind not in undisturbed:
        commands.append([*("whole" if part == "a" else part for part in line), *settings])
    for command in commands:
        with start(*command, env=environment(tmp_path)) as process:
            err = process.communicate()[1]
        assert process.returncode == 0, err
    whole = undisturbed.get(kind) or weights(RunFolder(tmp_path / "whole"))
    assert weights(folder) == undisturbed.setdefault(kind, whole)


def test_a_grace_period_that_is_none_is_refused(
    earl: Callable, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EARL_GRACE_SECONDS", "soon")
    said = earl("train", "tictactoe", "--config", tiny, "--runs", tmp_path)
    assert said.code == 2
    assert "EARL_GRACE_SECONDS is 'soon', not a number of seconds above 0" in said.err
