"""`earl profile` as a user calls it: real layouts of two processes, kept, taken up again, and known to a run."""

import json

import pytest

from earl.runs.store import Store

PLACED = """
[env]
name = "tictactoe"
[env.opponents]
random = 1
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
[rollout]
episodes = 8
group_size = 2
[run]
steps = 1
[evaluate]
opponents = ["random"]
episodes = 2
final_episodes = 2
[placement]
kind = "colocated"
dp = 2
samplers = 2
heartbeat_seconds = 60.0
[selector]
kind = "auto"
"""


pytestmark = pytest.mark.usefixtures("shared_ray")


@pytest.fixture(autouse=True)
def recipe(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "placed.toml"
    file.write_text(PLACED)
    return str(file)


def profiled(earl, recipe, *options):
    said = earl("profile", "tictactoe", "--config", recipe, "--seconds", "0.01", "--loads", "8", "--json", *options)
    assert said.code == 0, said.err
    return said.json


@pytest.mark.slow
def test_what_was_measured_is_taken_up_and_known_to_a_run(earl, recipe, tmp_path):
    first = profiled(earl, recipe, "--contexts", "60")
    # rollout 2 x tp1 and 1 x tp2; the learner dp2 tp1, dp1 tp2 and cp2, each with and without recompute
    assert (first["measured_now"], first["skipped"]) == (8, [])  # each is tried once
    cells = {(cell["choice"]["stage"], cell["choice"]["layout"]["tp"]) for cell in first["cells"]}
    assert cells == {("rollout", 1), ("rollout", 2), ("update", 1), ("update", 2)}
    assert all(cell["origin"] == "measured" and cell["seconds"] > 0 for cell in first["cells"])

    second = profiled(earl, recipe, "--contexts", "60,120")
    before = {json.dumps(cell) for cell in first["cells"]}
    assert before <= {json.dumps(cell) for cell in second["cells"]}
    assert second["measured_now"] == len(second["cells"]) - len(first["cells"]) > 0
    assert len(second["cells"]) + len(second["skipped"]) == 16
    assert all("more than 2.0 times" in one["why"] for one in second["skipped"])

    third = profiled(earl, recipe, "--contexts", "60,120")
    assert third["measured_now"] == 0
    assert third["cells"] == second["cells"]

    assert earl("train", "tictactoe", "--config", recipe, "--runs", str(tmp_path), "--name", "knows").code == 0
    with Store(tmp_path / "knows" / "run.db") as store:
        told = [event.message for event in store.events() if event.kind == "profile"]
    assert len(told) == 1
    assert told[0].startswith(f"{len(second['cells'])} cells of layouts are known, measured here until 20")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "placement.kind=embedded", "--set", "selector.kind=off"], "'embedded' has one layout"),
        (["--set", "placement.environments=1", "--set", "selector.kind=off"], "placement.environments = 1"),
        (["--contexts", "60,121"], "a context of 121 tokens cannot come in this recipe"),
        (["--contexts", "60,many"], "--contexts '60,many': 'many' is not a whole number from 1"),
        (["--loads", "0"], "--loads '0': '0' is not a whole number from 1"),
        (["--loads", "9999999"], "a load of 9999999 episodes cannot be measured"),
    ],
)
def test_what_cannot_be_measured_is_refused(earl, recipe, tmp_path, options, said):
    answered = earl("profile", "tictactoe", "--config", recipe, *options)
    assert answered.code == 2
    assert said in answered.err
    assert not (tmp_path / "cache").exists()
