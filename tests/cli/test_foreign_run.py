"""A run's folder that comes from somebody else: whatever stands there in place of its files, earl stays within it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sampling import sampled

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 120

# Imports everything once, then runs each command line in a fork of its own, and kills what hangs.
SERVER = """
import contextlib, json, os, signal, sys, time
from importlib import import_module
for name in ("main", "training", "contestants", "replay", "panels", "watch"):
    import_module("earl.cli." + name)
for name in ("audit", "reports", "engine.export", "reports.data"):
    import_module("earl." + name)
from earl.cli.main import run
print("ready", flush=True)
for line in sys.stdin:
    arguments, said, limit = json.loads(line)
    child = os.fork()
    if child == 0:
        descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1), os.dup2(descriptor, 2), os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os._exit(run(arguments))
    ended, deadline = (0, 0), time.monotonic() + limit
    while not ended[0] and time.monotonic() < deadline:
        ended = os.waitpid(child, os.WNOHANG)
        time.sleep(0.005)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    print(json.dumps(os.waitstatus_to_exitcode(ended[1]) if ended[0] else "hangs"), flush=True)
"""

Command = Callable[..., tuple[object, str]]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Run a command line; its exit code, or that it hangs, and what it said."""
    said = tmp_path_factory.mktemp("said") / "said.txt"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", SERVER]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"

        def call(*arguments: object) -> tuple[object, str]:
            print(json.dumps([[*map(str, arguments)], str(said), LIMIT_SECONDS]), file=server.stdin, flush=True)
            return json.loads(server.stdout.readline()), said.read_text(errors="replace")

        yield call
        server.stdin.close()


def tree(folder: Path) -> dict[str, tuple[object, ...]]:
    """All below a folder: contents, and when they were changed."""
    return {
        path.relative_to(folder).as_posix(): (
            path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else "",
            path.lstat().st_mtime_ns,
        )
        for path in folder.rglob("*")
    }


def link(target: Path, victim: Path) -> None:
    """What stood there lies elsewhere now, and all works through the link."""
    if target.exists():
        shutil.move(target, victim)
    elif not target.name.startswith("."):
        victim.write_text("mine")
    else:
        victim.write_text("ssh-ed25519 AAAA mine")
    if victim.is_dir():
        (victim / ".precious.tmp").write_text("mine")
        (victim / "step-000099.parquet").write_text("mine")
    target.symlink_to(victim)


def hard_link(target: Path, victim: Path) -> None:
    link(target, victim)
    target.unlink()
    target.hardlink_to(victim)


def fifo(target: Path, victim: Path) -> None:
    if target.exists():
        shutil.move(target, victim)
    os.mkfifo(target)


STEP = "checkpoints/step-000002"
FILES = [
    *("config.toml", "lock", "log.txt", "run.db", "run.db-wal", "run.db-shm", "run.db-journal", "report.html"),
    *(".report.html.tmp", ".config.toml.tmp", ".peers.tmp", "trajectories/step-000002.parquet"),
    *(f"{STEP}/{name}" for name in ("state.json", "config.json", "tokenizer.json", "model.safetensors")),
    f"{STEP}/learner/rank-00000.safetensors",
]
FOLDERS = ["trajectories", "checkpoints", STEP, f"{STEP}/learner", "checkpoints/.step-000003.tmp"]
PLACES = [*FILES, *FOLDERS]
WRITTEN_IN_PLACE = ["lock", "log.txt", "run.db", "run.db-wal", "run.db-shm", "run.db-journal"]
ATTACKS = [
    *((plant, name) for plant in (link, fifo) for name in PLACES),
    *((hard_link, name) for name in WRITTEN_IN_PLACE),
]
SOME = [
    *((link, name) for name in PLACES[::2]),
    *((fifo, name) for name in PLACES[1::2]),
    *((hard_link, name) for name in WRITTEN_IN_PLACE[::2]),
]
SAMPLE = sampled([(attack,) for attack in ATTACKS], always=[(attack,) for attack in SOME])
READERS = {
    "report": ["report", "{run}"],
    "runs": ["runs", "--runs", "{root}"],
    "watch": ["watch", "{run}", "--once"],
    "replay": ["replay", "{run}", "0"],
}
OTHERS = {
    "audit": ["audit", "{run}"],
    "eval": ["eval", "{run}", "--opponent", "random", "--episodes", "2"],
    "export": ["export", "{run}", "{out}"],
}
"""One of them in turns: what is planted for the same file in two ways meets two of them."""
TRAIN = {"train": ["train", "--resume", "{run}"]}


def attacked(command: Command, stopped: Path, tmp_path: Path, attack: tuple, lines: dict[str, list[str]]) -> None:
    """Run command lines on a copy of the run in which something was planted."""
    plant, name = attack
    run, canary = tmp_path / "runs" / "run", tmp_path / "canary"
    shutil.copytree(stopped, run)
    canary.mkdir()
    plant(run / name, canary / "victim")
    before = tree(canary)
    places = {"run": run, "root": run.parent, "out": tmp_path / "out"}
    for what, line in lines.items():
        code, said = command(*(part.format(**places) for part in line))
        assert code in ((0, 1, 2) if what == "audit" else (0, 2)), (what, code, said)
        assert "Traceback" not in said, (what, said)
        if code == 2:
            assert "error: " in said, (what, said)
        assert tree(canary) == before, (what, said)


def of(attack: tuple) -> str:
    return f"{attack[0].__name__}-{attack[1]}"


@pytest.mark.parametrize("attack", SAMPLE, ids=of)
def test_readers_stay_within_a_run_with(command: Command, stopped: Path, tmp_path: Path, attack: tuple) -> None:
    attacked(command, stopped, tmp_path, attack, READERS)


@pytest.mark.parametrize("attack", SAMPLE, ids=of)
def test_players_and_training_stay_within_a_run_with(
    command: Command, stopped: Path, tmp_path: Path, attack: tuple
) -> None:
    turn = ATTACKS.index(attack) % len(OTHERS)
    attacked(command, stopped, tmp_path, attack, dict([*OTHERS.items()][turn : turn + 1]) | TRAIN)
