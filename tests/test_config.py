"""The recipe: what is refused, with which words, and what `--set` makes of its text."""

import pytest

from earl.config import Config, SandboxConfig
from earl.errors import EarlError
from earl.recipe import build, load_toml, override

LEAST = {"env": {"name": "tictactoe"}}


def refused(tree):
    with pytest.raises(EarlError) as caught:
        build({**LEAST, **tree})
    return str(caught.value)


def test_a_recipe_needs_no_more_than_an_environment():
    config = build(LEAST)
    assert config.env.name == "tictactoe"
    assert config.rollout.prompts * config.rollout.group_size == config.rollout.episodes
    assert config.total_steps == config.warm_start.steps + config.run.steps


def test_a_recipe_without_an_environment_is_refused():
    with pytest.raises(EarlError, match="env is missing"):
        build({})


@pytest.mark.parametrize(
    ("tree", "near"),
    [
        ({"learner": {"learning_rat": 1e-3}}, "did you mean 'learner.learning_rate'"),
        ({"rolout": {"episodes": 4}}, "did you mean 'rollout'"),
        ({"env": {"name": "tictactoe", "oponents": {}}}, "did you mean 'env.opponents'"),
        ({"run": {"xyzzy": 1}}, "known here: steps, seed, processes"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(tree, near):
    message = refused(tree)
    assert "unknown key" in message
    assert near in message


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("rollout", "episodes", 0),
        ("rollout", "temperature", 0.0),
        ("run", "processes", 0),
        ("run", "steps", -1),
        ("run", "steps", 2.5),
        ("context", "limit", 0),
        ("learner", "learning_rate", 0.0),
        ("learner", "beta2", 1.0),
        ("learner", "schedule", "cubic"),
        ("agent", "history", "half"),
        ("agent", "retries", "many"),
        ("algorithm", "kl", -0.1),
        ("warm_start", "noise", 1.5),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_by_name(section, key, value):
    message = refused({section: {key: value}})
    assert message.startswith(f"{section}.{key} = {value!r}: ")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("rollout", "temperature"),
        ("learner", "learning_rate"),
        ("learner", "clip_grad_norm"),
        ("agent", "forfeit_reward"),
        ("algorithm", "entropy"),
        ("algorithm", "kl"),
        ("warm_start", "noise"),
    ],
)
def test_numbers_are_finite(section, key, value):
    assert f"{section}.{key}" in refused({section: {key: value}})


@pytest.mark.parametrize("share", [0.0, -1.0, float("nan"), float("inf")])
def test_shares_of_opponents_are_positive_and_finite(share):
    assert "opponents.random" in refused({"env": {"name": "tictactoe", "opponents": {"random": share}}})
    assert "opponents.random" in refused({"warm_start": {"opponents": {"random": share}}})


def test_a_batch_that_groups_do_not_fill_is_refused_with_one_that_they_do():
    # 100 is not a multiple of 16; 6 · 16 = 96 is the nearest below.
    assert "set episodes to 96" in refused({"rollout": {"episodes": 100, "group_size": 16}})
    assert "set episodes to 16" in refused({"rollout": {"episodes": 8, "group_size": 16}})


def test_a_head_of_odd_size_is_refused():
    # Rotary positions turn pairs.
    assert "model.head_dim = 9: input should be a multiple of 2" in refused({"model": {"head_dim": 9}})


def test_every_fault_is_named_at_once():
    message = refused({"run": {"steps": -1, "step": 3}})
    assert "run.steps" in message
    assert "run.step'" in message


def test_a_section_that_is_no_table_is_refused():
    assert "run" in refused({"run": 5})


@pytest.mark.parametrize(
    ("assignment", "tree"),
    [
        ("run.steps=9", {"run": {"steps": 9}}),
        ("run.steps = 9", {"run": {"steps": 9}}),
        ("learner.learning_rate=1e-3", {"learner": {"learning_rate": 1e-3}}),
        ("agent.thinking=true", {"agent": {"thinking": True}}),
        ("algorithm.name=rloo", {"algorithm": {"name": "rloo"}}),
        ('algorithm.name="rloo"', {"algorithm": {"name": "rloo"}}),
        ("model.path=runs/a=b", {"model": {"path": "runs/a=b"}}),
        ("evaluate.opponents=['random', 'perfect']", {"evaluate": {"opponents": ["random", "perfect"]}}),
        ("env.opponents.random=2", {"env": {"opponents": {"random": 2}}}),
        ("env.opponents={random = 1.5}", {"env": {"opponents": {"random": 1.5}}}),
    ],
)
def test_assignments_are_toml_values_or_plain_strings(assignment, tree):
    assert override({}, [assignment]) == tree


def test_assignments_keep_what_they_do_not_name_and_leave_the_tree_alone():
    tree = {"run": {"steps": 5, "seed": 1}, "env": {"opponents": {"random": 1.0}}}
    result = override(tree, ["run.steps=9", "env.opponents.perfect=2.0", "run.steps=7"])
    assert result == {
        "run": {"steps": 7, "seed": 1},
        "env": {"opponents": {"random": 1.0, "perfect": 2.0}},
    }
    assert tree == {"run": {"steps": 5, "seed": 1}, "env": {"opponents": {"random": 1.0}}}


@pytest.mark.parametrize("assignment", ["run.steps", "steps=5", "=5", ".steps=5", "run.=5", "run..steps=5", ""])
def test_an_assignment_of_another_form_is_refused(assignment):
    with pytest.raises(EarlError, match=r"section\.key=value"):
        override({}, [assignment])


def test_a_recipe_file(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("[env]\nname = 'tictactoe'\n")
    assert build(load_toml(path)) == build(LEAST)


@pytest.mark.parametrize("content", [b"[env\n", b"\xff\xfe"], ids=["not TOML", "not text"])
def test_a_file_that_is_not_toml_is_refused(tmp_path, content):
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)
    with pytest.raises(EarlError, match="is not TOML"):
        load_toml(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(EarlError, match="No such file"):
        load_toml(tmp_path / "recipe.toml")


def test_the_resolved_recipe_is_the_same_recipe():
    config = build(LEAST)
    assert build(config.model_dump(exclude_none=True)) == config
    assert isinstance(config, Config)


@pytest.mark.parametrize("name", ["full", "board_only", "last_turns:1", "summary:12"])
def test_history_policies_by_name(name):
    assert build({"env": {"name": "tictactoe"}, "agent": {"history": name}}).agent.history == name


@pytest.mark.parametrize("name", ["ful", "last_turns", "last_turns:0", "summary:-1", "board_only:2", "last_turns:٣"])
def test_an_unknown_history_policy_is_refused_with_the_known_ones(name):
    assert "'full', 'board_only', 'last_turns:K' or 'summary:K'" in refused({"agent": {"history": name}})


def test_settings_that_would_have_no_effect_are_refused():
    assert "has no use beside limit = 120" in refused({"context": {"limit": 120, "ceiling": 200}})
    assert "has no use beside limit = 120" in refused({"context": {"limit": 120, "initial": 80}})
    assert "has no use beside history = 'full'" in refused({"agent": {"summary_tokens": 8}})


def test_patience_is_refused_where_nothing_proves_that_no_reply_wins():
    proves = {"patience": 2, "exact": True, "opponents": ["any", "random"]}
    assert build({"env": {"name": "tictactoe"}, "evaluate": proves}).evaluate.patience == 2
    with pytest.raises(
        EarlError, match=r"patience = 2 ends a run before its last step, after which learner\.ema = 0\.9"
    ):
        build({"env": {"name": "tictactoe"}, "evaluate": proves, "learner": {"ema": 0.9}})
    for fault in ({"exact": False}, {"opponents": ["random"]}):
        assert "which only evaluate.exact = true with 'any'" in refused({"evaluate": {**proves, **fault}})


def test_an_automatic_limit_begins_somewhere():
    def first(**context):
        return build({"env": {"name": "tictactoe"}, "context": context}).context.first_limit

    assert (first(limit=120), first(limit="auto"), first(limit="auto", initial=72)) == (120, 256, 72)
    assert first(limit="auto", ceiling=200) == 200
    assert "above ceiling" in refused({"context": {"limit": "auto", "initial": 300, "ceiling": 200}})


def test_options_grow_with_the_run():
    env = {"name": "arithmetic", "options": {"num_operations": 2, "max_operand": 9}, "grow": {"num_operations": 10}}
    config = build({"env": env, "warm_start": {"steps": 3}, "run": {"steps": 5}})
    # Steps 1 to 3 warm up; 4 to 8 learn: 0, 1/4, … 1 of the way from 2 to 10
    grown = [config.env.options_at(config.course(step)) for step in range(1, 9)]
    assert [options["num_operations"] for options in grown] == [2, 2, 2, 2, 4, 6, 8, 10]
    assert {options["max_operand"] for options in grown} == {9}
    assert "set env.options.num_operations to a whole number too" in refused(
        {"env": {"name": "arithmetic", "grow": {"num_operations": 10}}}
    )


def test_a_container_reads_a_folder_in_tmp_which_other_sandboxes_have_for_themselves():
    assert SandboxConfig(kind="docker", image="mine", read=["/tmp/data"]).read == ["/tmp/data"]
    for kind in ("local", "bubblewrap", "nsjail"):
        with pytest.raises(ValueError, match="names /tmp/data; a sandbox has its own /tmp"):
            SandboxConfig(kind=kind, read=["/tmp/data"])
