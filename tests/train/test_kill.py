"""Two processes killed at random moments: what is continued ends as if nothing had happened. Of one: tests/faults."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from earl.recipe import dump
from earl.runs.folder import create
from earl.runs.store import Store

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
from pathlib import Path
from earl.recipe import build, load_toml
from earl.errors import EarlError
from earl.runs.folder import lock, open_existing
from earl.trainer import run
folder = open_existing(Path(sys.argv[1]))
try:
    with lock(folder):
        progress = run(folder, build(load_toml(folder.config)))
except EarlError as error:
    sys.exit(f"error: {error}")
sys.exit(0 if progress.finished else 130)
"""


def start(folder):
    """Start a training process; its messages are kept."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(folder.path)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def last_step(folder):
    """The last step that the run has recorded, -1 before the first."""
    if not folder.database.exists():
        return -1
    try:
        with Store(folder.database, read_only=True) as store:
            step = store.last_step()
    except ValueError:  # the tables are being made
        return -1
    return -1 if step is None else step


def wait_until(condition, process=None):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for 5 minutes"
        if process is not None and process.poll() is not None:
            return
        time.sleep(0.02)


def processes_of(folder):
    """Every process that works on this run: its folder stands in the command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(folder.path).encode() in command and state != "Z":
                found.append(int(entry.name))
    return sorted(found)


def others(folder, process):
    return {*processes_of(folder)} - {process.pid}


@pytest.fixture(scope="module")
def recipe(tiny):
    """The recipe of a run of two processes."""
    return tiny(run={"processes": 2, "steps": 4, "checkpoint_every": 1})


@pytest.fixture(scope="module")
def undisturbed(recipe, remains, tmp_path_factory):
    """What a run leaves behind that nothing disturbs."""
    folder = create(tmp_path_factory.mktemp("runs"), "undisturbed", dump(recipe))
    finish(folder)
    return remains(folder)


def finish(folder):
    process = start(folder)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


@pytest.mark.exhaustive
def test_killed_at_random_moments_two_processes_go_on_to_the_same_end(recipe, new_run, remains, undisturbed):
    rng = random.Random(3)
    folder = new_run(recipe, "killed")
    for target in (-1, 4):
        process = start(folder)
        wait_until(lambda target=target: last_step(folder) >= target, process)
        time.sleep(rng.random() * 0.3)
        process.kill()
        process.communicate(timeout=60)
        wait_until(lambda: not processes_of(folder))  # the second process ends by itself
    finish(folder)
    assert remains(folder) == undisturbed


@pytest.mark.exhaustive
def test_when_the_second_process_is_killed_the_first_says_so_and_ends(recipe, new_run, remains, undisturbed):
    folder, rng = new_run(recipe, "killed"), random.Random(11)
    for target in (-1, 3):  # of 7 steps: enough are left until the kill
        process = start(folder)
        wait_until(lambda process=process: len(processes_of(folder)) == 2, process)
        wait_until(lambda target=target: last_step(folder) >= target, process)
        time.sleep(rng.random() * 0.2)
        found = []  # while a process replaces its program, its command line is empty
        wait_until(lambda process=process, found=found: found.extend(others(folder, process)) or found, process)
        os.kill(found[0], signal.SIGKILL)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 1, said
        assert said.startswith("error: a process of this run was lost")
        assert said.count("\n") == 1
    finish(folder)
    assert remains(folder) == undisturbed


@pytest.mark.exhaustive
def test_a_signal_stops_after_the_step_and_the_run_goes_on_from_there(recipe, new_run, remains, undisturbed):
    folder, stopped = new_run(recipe, "stopped"), 0
    for number in (signal.SIGINT, signal.SIGTERM):
        process = start(folder)
        wait_until(lambda: last_step(folder) > stopped, process)  # noqa: B023
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
        assert (process.returncode, said) == (130, "")
        assert stopped < last_step(folder) < 7
        assert not processes_of(folder)
        stopped = last_step(folder)
    finish(folder)
    assert remains(folder) == undisturbed
