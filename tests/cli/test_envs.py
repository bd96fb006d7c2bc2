"""`earl envs`: list, show, check."""

import subprocess
import sys
from pathlib import Path

import pytest

from earl.envs import registry
from earl.envs.tools.arithmetic import ArithmeticEnv


def test_the_list(earl) -> None:
    said = earl("envs")
    assert (said.code, said.err) == (0, "")
    assert {line.split()[0] for line in said.out.splitlines()[3:] if line.strip()} >= set(registry.names())
    assert "gymnasium is installed; its environments: earl envs --library gymnasium\n" in said.out
    assert "gymnasium:CartPole-v1\n" in earl("envs", "--library", "gymnasium").out
    assert {spec["name"] for spec in earl("envs", "--json").json} == set(registry.names())


def test_show(earl) -> None:
    said = earl("envs", "show", "tictactoe")
    assert "You play Tic-Tac-Toe" in said.out
    assert "alphabeta, expert, heuristic, mcts, perfect, random" in said.out
    assert said.out.endswith("X 123\n456\n789\n")
    options = {"num_operations": 2, "max_operand": 99, "min_operations": None, "max_value": 999}
    assert earl("envs", "show", "arithmetic", "--json").json["options"] == options
    said = earl("envs", "show", "tictactoo")
    assert (said.code, said.out) == (2, "")
    assert "did you mean 'tictactoe'?" in said.err


def test_check(earl) -> None:
    said = earl("envs", "check", "tictactoe")
    assert said.code == 0
    assert "BROKEN" not in said.out
    assert "chance comes from the seed alone" in said.out
    found = earl("envs", "check", "tictactoe", "--json").json
    assert all(finding["passed"] for finding in found["tictactoe"])


class Hostile(ArithmeticEnv):
    """Breaks the rule of its alphabet, and would like to clear the screen."""

    def reset(self, **arguments):
        observation, info = super().reset(**arguments)
        return f"\x1b[2J{observation}", info


def test_a_broken_environment_exits_with_1(earl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._targets, "hostile", Hostile)
    said = earl("envs", "check", "hostile")
    assert said.code == 1
    assert "BROKEN" in said.out
    for line in (["envs"], ["envs", "show", "hostile"], ["envs", "check", "hostile"]):
        assert "\x1b" not in earl(*line).out


def test_json_belongs_behind_the_subcommand(earl) -> None:
    said = earl("envs", "--json", "show", "tictactoe")
    assert (said.code, said.out) == (2, "")
    assert "Write --json after show" in said.err


class Failing(ArithmeticEnv):
    def reset(self, **_):
        raise OSError("no licence found")


def test_the_list_names_what_cannot_be_made(earl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_installed", lambda: {"gone": "no_such_module:Env"})
    monkeypatch.setitem(registry._targets, "failing", Failing)
    said = earl("envs")
    assert said.code == 0
    assert "tictactoe" in said.out
    told = {spec["name"]: spec.get("error", "") for spec in earl("envs", "--json").json}
    assert told["failing"].startswith("OSError: no licence found")
    assert "cannot load 'no_such_module:Env' (ModuleNotFoundError" in told["gone"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_new_environment_keeps_the_contract_and_trains(earl, here: Path) -> None:
    said = earl("envs", "new", "lucky_one")
    assert (said.code, sorted(path.name for path in here.iterdir())) == (
        0,
        ["lucky_one.py", "lucky_one.toml", "test_lucky_one.py"],
    )
    assert "earl train lucky_one:LuckyOne --config lucky_one.toml" in said.out
    assert "BROKEN" not in earl("envs", "check", "lucky_one:LuckyOne").out
    few = ["--set", "run.processes=1", "--set", "warm_start.steps=1", "--set", "rollout.episodes=8", "--steps", "1"]
    said = earl("train", "lucky_one:LuckyOne", "--config", "lucky_one.toml", *few)
    assert said.code == 0, said.err


@pytest.mark.slow
def test_the_test_of_a_new_environment_passes(earl, here: Path) -> None:
    assert earl("envs", "new", "guess").code == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_guess.py"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True)
    assert "2 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("name", ["Guess", "a-b", "3x", ""])
def test_a_name_that_no_module_has_is_refused(earl, here: Path, name: str) -> None:
    said = earl("envs", "new", name)
    assert (said.code, [*here.iterdir()]) == (2, [])
    assert "cannot name a module" in said.err


def test_what_is_there_is_not_written_over(earl, here: Path) -> None:
    (here / "test_guess.py").write_text("mine")
    said = earl("envs", "new", "guess")
    assert (said.code, [path.read_text() for path in here.iterdir()]) == (2, ["mine"])
    assert "test_guess.py is here already" in said.err
