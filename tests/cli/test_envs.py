"""`earl envs`: list, show, check."""

import pytest

from earl.envs import registry
from earl.envs.tools.arithmetic import ArithmeticEnv


def test_the_list(earl) -> None:
    said = earl("envs")
    assert (said.code, said.err) == (0, "")
    assert {line.split()[0] for line in said.out.splitlines()[3:] if line.strip()} >= set(registry.names())
    assert {spec["name"] for spec in earl("envs", "--json").json} == set(registry.names())


def test_show(earl) -> None:
    said = earl("envs", "show", "tictactoe")
    assert "You play Tic-Tac-Toe" in said.out
    assert "expert, heuristic, minimax, perfect, random" in said.out
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
