"""The command line called as a user calls it: in this process where that is quick, as a process where it matters."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from earl import trainer
from earl.cli.main import run
from earl.observer import RecordedStep
from earl.recipe import build, dump, load_toml
from earl.runs import checkpoint
from earl.runs.folder import RunFolder, create, lock
from earl.runs.store import Store

ROOT = Path(__file__).parents[2]

# 4 prompts x 2 = 8 episodes; 1 step of imitation and 2 of RL; a model of 5,248 parameters.
TINY = """
[env]
name = "tictactoe"
[env.opponents]
random = 1
perfect = 1
[agent]
max_turn_tokens = 2
[context]
limit = 120
[model]
hidden = 16
layers = 1
heads = 2
head_dim = 8
intermediate = 16
[warm_start]
steps = 1
episodes = 8
minibatches = 1
[rollout]
episodes = 8
group_size = 2
[evaluate]
opponents = ["random", "perfect"]
every = 2
episodes = 4
final_episodes = 6
[run]
steps = 2
processes = 1
"""


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A recipe that trains in a second."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def earl(capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run a command line in this process."""

    def call(*arguments: object) -> Said:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        return Said(code, *capfd.readouterr())

    return call


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, for tests that only read it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.toml").write_text(TINY)
    code = run(["train", "tictactoe", "--config", f"{folder}/tiny.toml", "--runs", f"{folder}/runs", "--name", "done"])
    assert code == 0
    return folder / "runs" / "done"


class StopAfter:
    """Presses Ctrl-C during a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def step(self, record: RecordedStep) -> None:
        if record.step == self._step:
            signal.raise_signal(signal.SIGINT)

    def event(self, *_: object) -> None:
        pass

    def stopping(self) -> None:
        pass


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with steps left, checkpoints of the steps 0 to 2, and stored episodes."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "tiny.toml").write_text(TINY.replace("steps = 2", "steps = 2\ncheckpoint_every = 1"))
    config = build(load_toml(folder / "tiny.toml"))
    made = create(folder, "run", dump(config))
    with lock(made):
        assert not trainer.run(made, config, StopAfter(2)).finished
    made.log.write_text("begun\n")
    made.report.write_text("<p>old</p>")
    return made.path


def start(*arguments: object, python: str = "", **options: Any) -> subprocess.Popen[str]:
    """Run a command line as a process of its own, with its output in pipes. python: in place of the usual one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    if options.get("start_new_session"):
        del environment["RAY_JOB_CONFIG_JSON_ENV_VAR"]  # a warm worker would be in no group that a signal is sent to
    command = [python or sys.executable, "-m", "earl.cli.main", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, text=True, env=environment, **{**pipes, **options})


@pytest.fixture(name="start")
def start_fixture() -> Callable[..., subprocess.Popen[str]]:
    return start


def everything(folder: Path) -> list[str]:
    """All that lies below a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.fixture(name="everything")
def everything_fixture() -> Callable[[Path], list[str]]:
    return everything


def weights_and_numbers(folder: RunFolder) -> tuple[dict[str, bytes], object, object]:
    """The last weights to the bit, and all that was measured."""
    tensors = load_file(checkpoint.latest(folder.checkpoints) / "model.safetensors")
    with Store(folder.database, read_only=True) as store:
        return {name: tensor.tobytes() for name, tensor in tensors.items()}, store.metrics(), store.matches()


@pytest.fixture(name="weights_and_numbers", scope="session")
def weights_and_numbers_fixture() -> Callable[[RunFolder], object]:
    return weights_and_numbers
