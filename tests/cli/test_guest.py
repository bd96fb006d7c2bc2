"""An environment of a package outside of earl, in German, Chinese and emoji: trained and read without touching earl."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from earl.envs import registry
from earl.runs import trajectories
from earl.runs.folder import RunFolder

GUEST = Path(__file__).parent / "guest"
ENV = "gast.welt:Raten"
SHORT = ["--set", "rollout.episodes=8", "--set", "rollout.group_size=4", "--set", "evaluate.episodes=2"]
SHORT += ["--set", "evaluate.final_episodes=2", "--set", "model.hidden=16", "--set", "model.layers=1"]


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A user of whom nothing is known yet, beside the package."""
    own = {"XDG_CONFIG_HOME": str(tmp_path / "user"), "PYTHONPATH": f"{Path.cwd()}{os.pathsep}{GUEST}"}
    monkeypatch.setenv("XDG_CONFIG_HOME", own["XDG_CONFIG_HOME"])
    monkeypatch.syspath_prepend(GUEST)
    for name in ("_allowed", "_remembered"):
        monkeypatch.setattr(registry, name, set())
    monkeypatch.setattr(registry, "_loaded", {})
    return own


@pytest.mark.slow
def test_a_guest_is_trained_and_read(earl: Callable, tmp_path: Path, user: dict[str, str]) -> None:
    line = ["train", ENV, "--runs", tmp_path, "--name", "a", "--steps", "2", *SHORT, "--set", "run.processes=1"]
    trained = earl(*line, "--set", "run.keep_trajectories_every=1", "--json")
    assert trained.code == 0, trained.err
    assert trained.json["evaluation"][0]["episodes_or_leaves"] == 2
    for command in (["audit", "a"], ["eval", "a", "--episodes", "2"], ["report", "a"], ["replay", "a", "0"]):
        said = earl(*command, "--runs", tmp_path)
        assert said.code == 0, said
    assert "Ist „" in earl("replay", "a", "0", "--runs", tmp_path).out
    assert "对 oder 错" in earl("envs", "show", ENV).out
    assert "not played" in earl("envs", "check", ENV).out
    said = earl("train", ENV, "--runs", tmp_path, "--set", "warm_start.steps=2", "--dry-run")
    assert said.code == 2
    assert f"{ENV} has no teacher 'random': give it a method random_action(rng), or name a module:Class" in said.err


DIGIT = """
class Digit:
    def reset(self):
        return '?'
    def step(self, action):
        return '.', float(action == '7'), True, False, {}
    def random_action(self, rng):
        return str(rng.randint(0, 9))

def broken(reply):
    raise KeyError(reply)

CALLS = []

def digit(reply):
    CALLS.append(reply)
    if len(CALLS) % 40 == 0:
        raise RuntimeError("not this one")
    return reply
"""


@pytest.mark.slow
def test_a_parser_that_raises_ends_its_episodes_and_not_the_run(
    earl: Callable, tmp_path: Path, user: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "digits_parsed.py").write_text(DIGIT)
    monkeypatch.chdir(tmp_path)
    line = ["train", "digits_parsed:Digit", "--runs", tmp_path, "--name", "a", "--steps", "2"]
    own = ["agent.parser='digits_parsed:digit'", "run.keep_trajectories_every=1", "run.processes=1"]
    own += ["rollout.episodes=48", "rollout.group_size=4"]  # of 40 replies in a row one raises
    own += ["evaluate.episodes=2", "evaluate.final_episodes=2"]
    said = earl(*line, *(part for each in own for part in ("--set", each)))
    assert said.code == 0, said.err
    folder = RunFolder(tmp_path / "a")
    stored = [trajectories.read(path)[1] for path in folder.trajectories.glob("*.parquet")]
    faults = {t.error for groups in stored for group in groups for t in group.trajectories if t.error}
    assert len(faults) == 1
    assert faults.pop().startswith("RuntimeError: not this one")
    said = earl(*line[:-3], "b", "--steps", "2", "--set", "agent.parser='digits_parsed:broken'")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "agent.parser = 'digits_parsed:broken' fails at the reply '0': KeyError: '0'" in said.err


@pytest.mark.slow
def test_a_new_model_learns_from_the_format_alone_how_an_action_looks(
    earl: Callable, tmp_path: Path, user: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "digits_here.py").write_text(DIGIT)
    monkeypatch.chdir(tmp_path)
    line = ["train", "digits_here:Digit", "--runs", tmp_path, "--steps", "2", "--set", "run.processes=1"]
    few = ["rollout.episodes=8", "rollout.group_size=4", "evaluate.episodes=100"]
    said = earl(*line, *(part for each in few for part in ("--set", each)), "--set", "warm_start.steps=10", "--json")
    assert said.code == 0, said.err
    assert Path(said.json["path"]).name == "digits_here-Digit-1"
    assert "illegal 0.0%" in said.err
    assert earl("envs", "check", "digits_here:Digit").code == 1  # its reset takes no seed
    assert "reset(seed=…) changes nothing" in earl("envs", "check", "digits_here:Digit").out


@pytest.mark.slow
def test_the_run_of_somebody_else_imports_nothing(
    earl: Callable, tmp_path: Path, user: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["train", ENV, "--runs", tmp_path, "--name", "a", "--steps", "1", *SHORT, "--set", "run.processes=1"]
    assert earl(*line, "--set", "run.keep_trajectories_every=1").code == 0
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
    for name in ("_allowed", "_remembered", "_loaded"):
        getattr(registry, name).clear()
    for command in (["audit", "a"], ["eval", "a", "--episodes", "2"]):
        said = earl(*command, "--runs", tmp_path)
        assert said.code == 2
        assert f"you never named it yourself; look at it, and where you trust it: earl envs check {ENV}, or" in said.err
    assert not (tmp_path / "another").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    [
        pytest.param(["run.processes=2"], id="two processes"),
        pytest.param(["placement.kind='disaggregated'"], id="on Ray", marks=pytest.mark.exhaustive),
        pytest.param(
            ["run.processes=1", "sampler.engine='vllm'", "sampler.kv_cache_gib=0.1"],
            id="with vLLM",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_guest_is_trained_in_other_processes(
    start: Callable, tmp_path: Path, user: dict[str, str], where: list[str]
) -> None:
    if "vllm" in str(where):
        pytest.importorskip("vllm", reason="vLLM is an extra")
    settings = [part for setting in where for part in ("--set", setting)]
    own = ["--set", "agent.parser='gast.welt:lesen'"]
    line = ["train", ENV, "--runs", tmp_path, "--name", "a", "--steps", "2", *SHORT, *settings, *own]
    with start(*line, env=user) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "fault" not in err and "solved" in out
