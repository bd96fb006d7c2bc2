"""Ctrl-C, as a terminal sends it: to every process of the run. Then the run goes on as if nothing had been."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from earl.runs import checkpoint
from earl.runs.folder import RunFolder
from earl.runs.summary import summarize

pytestmark = pytest.mark.slow

MANY = ["--set", "run.processes=2", "--set", "evaluate.every=10"]
OWN_GROUP = {"start_new_session": True, "python": sys.executable}
"""All processes of the run in one group, as in a terminal: none is a fork of a process that is elsewhere."""


def until(process: subprocess.Popen[str], words: str) -> list[str]:
    """Read stderr up to the line with these words."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(f"{words!r} was never said: {''.join(lines)}{process.wait()}")


def test_a_stopped_run_goes_on_as_if_nothing_had_been(
    earl, start: Callable, tiny: Path, tmp_path: Path, weights_and_numbers: Callable
) -> None:
    line = ["train", "tictactoe", "--config", tiny, "--runs", tmp_path, *MANY, "--steps", 40]
    with start(*line, "--name", "stopped", **OWN_GROUP) as process:
        until(process, "step 10/41")
        os.killpg(process.pid, signal.SIGINT)
        rest, out = process.stderr.read(), process.stdout.read()
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert "stopping after this step; Ctrl-C again stops at once" in rest
    stopped = int(re.search(r"stopped after step (\d+) of 41", rest)[1])
    assert f"continue with: earl train --resume stopped --runs {tmp_path}" in rest
    folder = RunFolder(tmp_path / "stopped")
    assert out.splitlines()[-1] == str(folder.report)
    assert folder.report.is_file()
    assert checkpoint.all_steps(folder.checkpoints)[-1] == stopped  # nothing that was done is done again
    assert (summarize(folder).state, summarize(folder).step) == ("stopped", stopped)

    assert earl("train", "--resume", "stopped", "--runs", tmp_path).code == 0
    assert earl(*line, "--name", "whole").code == 0
    assert weights_and_numbers(folder) == weights_and_numbers(RunFolder(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("number", "send", "options"),
    [
        pytest.param(signal.SIGINT, os.killpg, OWN_GROUP, id="Ctrl-C in a terminal"),
        pytest.param(signal.SIGTERM, os.kill, {}, id="SIGTERM to the first process", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.exhaustive
def test_the_second_signal_ends_at_once(
    start: Callable, tiny: Path, tmp_path: Path, number: int, send: Callable, options: dict
) -> None:
    # A step of 6,000 episodes takes long enough for two signals.
    sizes = ["--set", "rollout.episodes=6000", "--set", "evaluate.every=1000"]
    line = ["train", "tictactoe", "--config", tiny, "--runs", tmp_path, "--name", "a", *sizes, "--steps", 400]
    with start(*line, "--set", "run.processes=2", **options) as process:
        until(process, "step 1/401")
        send(process.pid, number)
        until(process, "stopping after this step")
        send(process.pid, number)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert "stopped at once; continue with: earl train --resume a" in rest
    checkpoint.load(checkpoint.latest(tmp_path / "a" / "checkpoints"))


def test_a_run_has_one_writer_and_a_lost_process_is_named(earl, start: Callable, tiny: Path, tmp_path: Path) -> None:
    line = ["train", "tictactoe", "--config", tiny, "--runs", tmp_path, "--name", "a", *MANY, "--steps", 100000]
    with start(*line, start_new_session=True) as process:
        until(process, "step 10/")
        said = earl("train", "--resume", "a", "--runs", tmp_path)
        assert (said.code, said.out) == (2, "")
        writer = int((tmp_path / "a" / "lock").read_text())
        assert f"run 'a' is being written by process {writer}; a run has one writer" in said.err
        children = Path(f"/proc/{writer}/task/{writer}/children")
        if children.is_file():
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGINT)
        rest = process.stderr.read()
    assert "Traceback" not in rest
    if children.is_file():
        assert process.returncode == 2
        assert "error: a process of this run was lost" in rest.splitlines()[-1]
        assert "--resume" in rest


# The evaluation of step 0, before the first checkpoint, takes long enough for two signals.
BEFORE_THE_FIRST = ["--set", "evaluate.episodes=6000"]


def stop_twice(process: subprocess.Popen[str]) -> str:
    """Press Ctrl-C, and again once it was heard."""
    until(process, "tictactoe: ")  # how many episodes: the last line before training
    process.send_signal(signal.SIGINT)
    said = ""
    for line in process.stderr:
        said += line
        if "stopping after this step" in line:
            process.send_signal(signal.SIGINT)
    return said


def planted(folder: Path) -> dict[str, str]:
    """Files that earl has not written, some where it writes."""
    mine = {"thesis.tex": "mine", "trajectories/notes.txt": "mine", "checkpoints/old/weights": "mine", "data/x": "mine"}
    for name, text in mine.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return mine


def found(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(errors="replace")
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.exhaustive
def test_ctrl_c_twice_on_a_resumed_run_removes_nothing(earl, start: Callable, tiny: Path, tmp_path: Path) -> None:
    """A project that holds a recipe by that name, and a run whose checkpoints are gone."""
    line = ["train", "tictactoe", "--config", tiny, "--runs", tmp_path, *BEFORE_THE_FIRST]
    with start(*line, "--name", "first") as process:
        until(process, "tictactoe")
        recipe = (tmp_path / "first" / "config.toml").read_text()
        process.kill()
    project = tmp_path / "proj"
    project.mkdir()
    (project / "config.toml").write_text(recipe)
    mine = planted(project)
    with start("train", "--resume", "proj", "--runs", tmp_path) as process:
        said = stop_twice(process)
    assert process.returncode == 130, said
    assert "continue with: earl train --resume proj" in said
    assert "removed" not in said
    left = found(project)
    assert {name: left.get(name) for name in mine} == mine
    assert left["config.toml"] == recipe


def test_ctrl_c_twice_on_a_new_run_removes_only_what_it_wrote(start: Callable, tiny: Path, tmp_path: Path) -> None:
    line = ["train", "tictactoe", "--config", tiny, "--runs", tmp_path, *BEFORE_THE_FIRST]
    for name in ("alone", "shared"):
        with start(*line, "--name", name) as process:
            until(process, "run ")
            mine = planted(tmp_path / name) if name == "shared" else {}
            stop_twice(process)
        assert process.returncode == 130
        assert found(tmp_path / name) == mine
    assert not (tmp_path / "alone").exists()
