"""A chat model that was not made by earl, by two flags: its settings and where they come from, and warnings."""

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM

from earl.config import Config
from earl.guards import idleness
from earl.recipe import build
from earl.runs.folder import RunFolder
from earl.runs.store import Store

SMALL = [
    *("--steps", "2", "--seed", "3", "--set", "rollout.episodes=8", "--set", "rollout.group_size=2"),
    *("--set", "evaluate.patience=0"),
    *("--set", "evaluate.opponents=['random']", "--set", "evaluate.exact=false", "--set", "evaluate.episodes=2"),
    *("--set", "evaluate.final_episodes=2", "--set", "run.processes=1", "--set", "agent.max_turn_tokens=6"),
]


@pytest.fixture
def model(tmp_path: Path, chatml: Callable) -> Path:
    tokenizer = chatml()
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=1, max_position_embeddings=2048, **shape)
    folder = tmp_path / "model"
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_pretrained_model_has_settings_of_its_own_and_each_says_where_it_comes_from(
    earl: Callable, model: Path
) -> None:
    said = earl(
        "train", "tictactoe", "--model", model, "--steps", "7", "--set", "context.limit=900", "--dry-run", "--json"
    )
    settings = {path: (each["value"], each["from"]) for path, each in said.json["settings"].items()}
    assert settings["learner.learning_rate"] == (1e-6, "for a pretrained model")
    assert settings["warm_start.steps"] == (0, "for a pretrained model")
    assert settings["agent.instructions"] == (True, "for a pretrained model")
    assert settings["run.steps"] == (7, "the command line")
    assert settings["context.limit"] == (900, "--set")
    assert settings["algorithm.name"] == ("gigpo", "recipe tictactoe.toml")
    assert settings["rollout.group_size"] == (16, "earl's default")
    told = earl("train", "tictactoe", "--model", model, "--dry-run").out
    assert "  agent.parser                 last_line  for a pretrained model\n" in told
    assert "warning" not in told


def test_a_pretrained_model_is_taught_nothing_by_a_scripted_teacher(earl: Callable, model: Path) -> None:
    own = earl("train", "connect4", "--dry-run", "--json").json["settings"]
    assert own["warm_start.distill"]["from"] == "recipe connect4.toml" and own["warm_start.distill"]["value"] > 0
    said = earl("train", "connect4", "--model", model, "--dry-run", "--json").json["settings"]
    assert said["warm_start.distill"] == {"value": 0.0, "from": "for a pretrained model"}


def test_no_mean_of_the_weights_is_kept_beside_a_pretrained_model(earl: Callable, model: Path) -> None:
    assert "\nema = 0.99\n" in earl("recipe", "show", "connect4").out
    assert "\nema = 0.0\n" in earl("recipe", "show", "connect4", "--model", model).out


@pytest.mark.slow
def test_a_new_model_and_one_of_earls_own_keep_the_recipe(earl: Callable, tmp_path: Path, tiny: Path) -> None:
    said = earl("train", "tictactoe", "--dry-run", "--json").json["settings"]
    assert said["learner.learning_rate"] == {"value": 5e-4, "from": "recipe tictactoe.toml"}
    assert earl("train", "tictactoe", "--config", tiny, "--runs", tmp_path, "--name", "a").code == 0
    mine = next((tmp_path / "a" / "checkpoints").glob("step-*"))
    again = earl("train", "tictactoe", "--model", mine, "--set", "context.limit=120", "--dry-run", "--json")
    assert again.json["settings"]["warm_start.steps"] == {"value": 35, "from": "recipe tictactoe.toml"}


def test_what_is_hardly_meant_for_a_pretrained_model_is_warned_about(earl: Callable, model: Path) -> None:
    risky = ["learner.learning_rate=7e-4", "warm_start.steps=5", "agent.thinking=true", "agent.max_turn_tokens=20"]
    risky += ["agent.instructions=false"]
    given = [part for setting in risky for part in ("--set", setting)]
    told = earl("train", "tictactoe", "--model", model, "--dry-run", *given).out
    assert "warning: learner.learning_rate = 0.0007 is for a new model, and ruins a pretrained one" in told
    assert "warning: warm_start.steps = 5: imitation of 'expert' takes the place" in told
    assert "warning: agent.max_turn_tokens = 20 cuts off what it thinks" in told
    assert "warning: agent.instructions = false: the model is not told the rules" in told


@pytest.mark.slow
def test_a_run_that_learns_nothing_says_so_at_once_and_at_its_end(earl: Callable, model: Path, tmp_path: Path) -> None:
    kept = ["--set", "run.keep_trajectories_every=1"]
    said = earl("train", "tictactoe", "--model", model, "--runs", tmp_path, "--name", "a", *SMALL, *kept)
    assert said.code == 0, said.err
    assert "step 1: not one reply was legal in tictactoe: the model does not know what an action looks like" in said.err
    assert said.err.count("not one reply was legal") == 1
    assert "step 2: no step played better than the weights that the run began with" in said.err
    with Store(RunFolder(tmp_path / "a").database, read_only=True) as store:
        assert [event.step for event in store.events() if event.kind == "idle"] == [1, 2]
    assert "not one reply was legal" in (tmp_path / "a" / "report.html").read_text()
    audited = earl("audit", "a", "--runs", tmp_path)
    assert (audited.code, audited.out.count("warning: step ")) == (0, 2)
    assert "warning: step 1: not one reply was legal in tictactoe" in audited.out
    assert len(earl("audit", "a", "--runs", tmp_path, "--json").json["warnings"]) == 2


GOOD = {
    **{"reward": 0.25, "won": 0.25, "illegal_replies": 0.1, "zero_variance_groups": 0.5, "grad_norm": 0.1},
    **{"stop/context_limit": 0.1, "stop/truncated_turn": 0.1},
}


def made(**sections: dict) -> Config:
    return build({"env": {"name": "tictactoe", "opponents": {"random": 1}}, **sections})


@pytest.mark.parametrize(
    ("planted", "algorithm", "named"),
    [
        ({}, "grpo", ""),
        ({"illegal_replies": 1.0, "zero_variance_groups": 1.0}, "grpo", "not one reply was legal in tictactoe"),
        ({"stop/context_limit": 0.75, "stop/truncated_turn": 0.25}, "grpo", "every episode was cut off"),
        ({"zero_variance_groups": 1.0}, "grpo", "within every group all episodes earned the same (0.25 on average)"),
        ({"zero_variance_groups": 1.0, "won": 1.0}, "grpo", ""),  # nothing is left to learn
        ({"zero_variance_groups": 1.0}, "ppo", ""),  # it has a baseline of its own
        ({"grad_norm": 0.0}, "grpo", "the gradient is 0 (learner.learning_rate = 0.001, reward 0.25)"),
    ],
)
def test_each_way_to_learn_nothing_is_named(planted: dict, algorithm: str, named: str) -> None:
    config = made(algorithm={"name": algorithm}, learner={"learning_rate": 1e-3})
    told = idleness(config, {**GOOD, **planted})
    assert told.startswith(named) and bool(told) == bool(named)


def test_tasks_whose_first_prompt_is_too_long_are_counted_and_the_others_learned(
    earl: Callable, tiny: Path, tmp_path: Path
) -> None:
    # First prompts take 8 tokens, such as "5+7-3" and three of the template, to 11, such as "37+48-19".
    recipe = tmp_path / "chains.toml"
    text = tiny.read_text().replace("tictactoe", "arithmetic").replace("limit = 120", "limit = 11")
    text = text.replace("[env.opponents]\nrandom = 1\nperfect = 1", "[env.options]\nnum_operations = 2")
    text = text.replace('opponents = ["random", "perfect"]\n', "").replace("steps = 1\n", "steps = 0\n", 1)
    text = text.replace("max_turn_tokens = 2", "max_turn_tokens = 15")
    recipe.write_text(text.replace("episodes = 8\ngroup_size", "episodes = 32\ngroup_size"))
    said = earl("train", "arithmetic", "--config", recipe, "--runs", tmp_path, "--name", "a", "--steps", 2)
    assert said.code == 0, said.err
    assert "episodes ended by a fault of arithmetic, and are not learned from" in said.err
    assert "of evaluation against the tasks ended by a fault, and count as lost: context.limit is 11 tokens" in said.err


FOREIGN = [
    *("openspiel:kuhn_poker", "openspiel:tic_tac_toe", "textarena:GuessTheNumber-v0", "textarena:TicTacToe-v0"),
    *("reasoning_gym:chain_sum", "reasoning_gym:leg_counting", "pettingzoo:connect_four_v3", "pettingzoo:chess_v6"),
    *("gymnasium:FrozenLake-v1", "gymnasium:Blackjack-v1", "gymnasium:CartPole-v1", "verifiers:sums_of_verifiers"),
]


@pytest.mark.slow
@pytest.mark.parametrize("env", FOREIGN)
def test_an_environment_of_another_library_is_trained_on_by_its_name(
    earl: Callable, model: Path, tmp_path: Path, env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspiel" if env.startswith("openspiel") else env.partition(":")[0])
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "envs" / "tasksets")
    small = ["rollout.episodes=8", "rollout.group_size=4", "evaluate.episodes=2", "evaluate.final_episodes=2"]
    small += ["run.processes=1", "agent.max_turn_tokens=8", "agent.max_turns=6", "context.limit=1900"]
    settings = [part for setting in small for part in ("--set", setting)]
    said = earl("train", env, "--model", model, "--steps", "3", *settings, "--runs", tmp_path, "--name", "a")
    assert said.code == 0, said.err
    assert "step 3/3" in said.err
    with Store(RunFolder(tmp_path / "a").database, read_only=True) as store:
        assert store.metrics()["stop/env_error"] == [(1, 0.0), (2, 0.0), (3, 0.0)]
    assert earl("audit", "a", "--runs", tmp_path).code == 0
