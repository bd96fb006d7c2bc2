"""The preflight refuses what cannot work, names value, rule and cure, and says what will be done."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from earl.cli.training import as_object, plan_lines
from earl.engine import model
from earl.engine.model import Policy
from earl.envs import registry
from earl.envs.tools.arithmetic import ArithmeticEnv
from earl.errors import EarlError
from earl.formats import size
from earl.preflight import placement, plan, preflight
from earl.preflight.placement import check_disk
from earl.recipe import build, override

GAME: dict[str, Any] = {
    "env": {"name": "tictactoe", "opponents": {"random": 3, "perfect": 1}},
    "agent": {"max_turn_tokens": 2},
    "context": {"limit": 120},
    "model": {"hidden": 16, "layers": 1, "heads": 2, "head_dim": 8, "intermediate": 16},
    "rollout": {"episodes": 8, "group_size": 2},
    "evaluate": {"opponents": ["random"]},
}
ALONE: dict[str, Any] = {**GAME, "env": {"name": "tictactoe", "opponents": {"random": 1}}}
DISTILLED: dict[str, Any] = {**GAME, "warm_start": {"distill": 0.5}}
DEALT: dict[str, Any] = {**GAME, "env": {"name": "kuhn", "opponents": {"self": 1}}}
TASK: dict[str, Any] = {
    "env": {"name": "arithmetic"},
    "agent": {"max_turn_tokens": 15},
    "rollout": {"episodes": 8, "group_size": 2},
}


def checked(recipe: dict[str, Any], *assignments: str) -> plan.RunPlan:
    return preflight(build(override(recipe, assignments)), Path("runs"))


def test_the_plan_of_a_game() -> None:
    planned = checked(GAME, "run.steps=7", "warm_start.steps=3")
    rollout = planned.config.rollout
    assert rollout.prompts * rollout.group_size == rollout.episodes == 8
    assert (planned.config.warm_start.steps, planned.config.run.steps, planned.config.run.processes) == (3, 7, 2)
    assert {one["opponent"]: one["share"] for one in as_object(planned)["shares"]} == {"random": 0.75, "perfect": 0.25}
    # user, "X", " ", 3 x 3 cells, 2 newlines, end, assistant: 1 + 1 + 1 + 9 + 2 + 1 + 1 = 16
    assert (planned.first_prompt_tokens, planned.config.context.first_limit) == (16, 120)
    # Embeddings in and out 2 x 106 x 16 = 3,392; attention 4 x 16 x 16 = 1,024; MLP 3 x 16 x 16 = 768;
    # norms 16 + 16 + 16 and 2 x 8 = 64: together 5,248
    assert (as_object(planned)["recipe"]["model"]["path"], planned.parameters) == (None, 5248)
    assert planned.checkpoint_bytes == 3 * 4 * 5248 + 65536


def test_the_plan_of_a_task() -> None:
    planned = checked(TASK)
    assert [one["opponent"] for one in as_object(planned)["shares"]] == [""]
    # The longest chain "99+99+99" has 8 characters; user, end and assistant make 11.
    assert planned.first_prompt_tokens == 11


def test_shares_that_change_are_told_at_both_ends() -> None:
    planned = checked(GAME, "env.opponents={random=[3, 1], perfect=[0, 1]}")
    assert plan_lines(planned)[1].endswith("opponents: random 100% to 50%, perfect 0% to 50%")
    leveled = checked(TASK, "env.levels={num_operations=[1, 2]}", "env.prefer=informative")
    assert plan_lines(leveled)[1].endswith("opponents: num_operations=1 50%, num_operations=2 50%")


def test_nothing_is_written(tmp_path: Path) -> None:
    preflight(build(GAME), tmp_path / "runs" / "below")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("recipe", "assignment", "message"),
    [
        (GAME, "env.opponents={}", "env.opponents is empty, but tictactoe needs an opponent"),
        (GAME, "evaluate.opponents=[]", "evaluate.opponents is empty"),
        (GAME, 'evaluate.held_out=["perfect"]', "which env.opponents has too; leave it out of one of them"),
        (GAME, 'evaluate.held_out=["any"]', "evaluate.held_out: unknown opponent 'any'"),
        (
            GAME,
            "env.restarts=0.5",
            "env.restarts = 0.5 is of the games against 'self', and env.opponents does not name it",
        ),
        (DEALT, "env.restarts=0.5", "env.restarts = 0.5: kuhn begins by chance"),
        (GAME, 'env.opponents={"exploiter:1 5"=1}', "'exploiter:1 5' is met in training alone, as 'exploiter'"),
        (GAME, 'evaluate.held_out=["exploiter"]', "'exploiter' is met in training alone"),
        (DEALT, "env.opponents={exploiter=1}", "those of kuhn are not told by their moves"),
        (TASK, "env.opponents={exploiter=1}", "those of arithmetic are not told by their moves"),
        (GAME, 'env.opponents={"self:1 5"=1}', "opponent 'self:1 5' is given by env.restarts; name 'self'"),
        (GAME, 'evaluate.opponents=["random", "random"]', "names 'random' twice; name each opponent once"),
        (GAME, 'evaluate.opponents=["any"]', "'any' stands for every legal reply; it needs --exact"),
        (GAME, "warm_start.opponents.nobody=1", "warm_start.opponents: unknown opponent 'nobody'"),
        (GAME, "env.options.seat=1", "env.options.seat is given by each episode; leave it out"),
        (GAME, "env.options.draw=1", "unknown option of environment tictactoe 'draw'"),
        (GAME, "env.options.draw_reward=half", "env.options.draw_reward = 'half' must be a number, as its default 0.0"),
        (GAME, "env.options.draw_reward=true", "must be a number"),
        (GAME, "agent.instructions=true", "the first prompt of tictactoe alone takes 384"),
        (GAME, "context.limit=17", "takes 16 and its shortest action 2; set context.limit to at least 18"),
        (GAME, "context.limit=1025", "1025 is longer than the 1024 tokens the model was made for"),
        (GAME, "learner.micro_batch_tokens=119", "context.limit = 120 must not be larger than learner.micro_batch"),
        (GAME, "rollout.group_size=1", "grpo compares the episodes of a group, and one alone teaches nothing"),
        (
            GAME,
            "env.opponents.random=[1, 2, 3]",
            "env.opponents.random = [1, 2, 3]: input should be above 0, or [first",
        ),
        (GAME, "env.opponents={random=[1, 0], perfect=[2, 0]}", "env.opponents has a share of 0 for each at the last"),
        (GAME, "env.levels={draw_reward=[0.0, 0.5]}", "env.levels is of tasks, and tictactoe is a game"),
        (GAME, "env.prefer=easy", "env.prefer = 'easy': input should be 'none', 'hard' or 'informative'"),
        (TASK, "env.levels={num_operatons=[1, 2]}", "did you mean 'num_operations'?"),
        (TASK, "env.levels={num_operations=['two']}", "env.options.num_operations = 'two' must be a number"),
        (TASK, "env.levels={num_operations=[]}", "env.levels.num_operations = []: list should have at least 1 item"),
        (ALONE, "env.prefer=hard", "env.prefer = 'hard' chooses among levels or opponents, and there are no two"),
        (DISTILLED, "warm_start.teacher=nobody", "warm_start.teacher: unknown opponent 'nobody'"),
        (DISTILLED, "warm_start.data=x.jsonl", "which warm_start.data = 'x.jsonl' does not allow"),
        (DEALT, "warm_start.distill=0.5", "which the policy as an opponent does not allow"),
        (GAME, "rollout.resample=2", "rollout.resample = 2: grpo learns from groups whose episodes all have the same"),
        (GAME, "algorithm.options.gae_lambda=0.9", "unknown option of algorithm grpo 'gae_lambda'"),
        (GAME, "algorithm.clip=0.2", "an option of one algorithm is set as 'algorithm.options.clip'"),
        (TASK, "env.opponents.random=1", "arithmetic is no game of two players; leave out the opponent 'random'"),
        (TASK, "evaluate.exact=true", "evaluate: arithmetic is a task without opponents"),
        (TASK, "agent.history=board_only", "forgets all but the last observation, which in arithmetic does not hold"),
        (TASK, "agent.max_turn_tokens=14", "the longest action takes 15 tokens with its end"),  # calc("198-99")
        (TASK, "tools.at_once.cal=2", "unknown tool in tools.at_once 'cal'; did you mean 'calc'?"),
        (GAME, "tools.per_second.search=2", "unknown tool in tools.per_second 'search'"),
        (TASK, "env.options.num_operations=4097", "num_operations 4097 is not within 1 … 4096"),
        (TASK, "env.options.num_operations=1.5", "env.options {'num_operations': 1.5} of arithmetic: TypeError"),
        (
            TASK,
            "context.limit=10",
            "the first prompt of arithmetic takes 9 and its shortest action 2; set context.limit",
        ),
    ],
)
def test_what_is_refused(recipe: dict[str, Any], assignment: str, message: str) -> None:
    with pytest.raises(EarlError) as refusal:
        checked(recipe, assignment)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["warm_start.minibatches=9"], "warm_start.minibatches = 9 must not be larger than warm_start.episodes = 8"),
        (["warm_start.teacher=solver"], "warm_start.teacher: unknown opponent 'solver'"),
        (["run.processes=5"], "run.processes = 5 must not be larger than rollout.episodes / rollout.group_size = 4"),
    ],
)
def test_the_warm_start_is_checked_where_there_is_one(assignments: list[str], message: str) -> None:
    warm = ["warm_start.episodes=8", "warm_start.steps=1", *assignments]
    with pytest.raises(EarlError, match=message.replace("(", r"\(")):
        checked(GAME, "warm_start.minibatches=1", *warm)
    if "processes" not in message:
        checked(GAME, *assignments)  # without steps nobody reads it


def test_ppo_may_do_what_others_may_not() -> None:
    assert (
        checked(
            GAME, "algorithm.name=ppo", "algorithm.options.gamma=0.9", "rollout.group_size=1"
        ).config.rollout.prompts
        == 8
    )


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # 5,248 parameters x 4 bytes x 7 copies x 2 processes = 293,888 bytes; 8 episodes x 4,096 = 32,768 bytes,
    # and x 128 bytes for one token's keys and values (2 x 1 layer x 2 heads x 8 x 4 bytes): 1,024
    monkeypatch.setattr(placement, "memory_bytes", lambda: 293_888 + 32_768 + 1_024)
    checked(GAME)
    monkeypatch.setattr(placement, "memory_bytes", lambda: 293_888 + 32_768 + 1_023)
    with pytest.raises(EarlError, match=r"8 episodes per step need more than 33.0 KiB, and this machine has 320.0 KiB"):
        checked(GAME)
    monkeypatch.setattr(placement, "memory_bytes", lambda: 293_887)
    with pytest.raises(EarlError, match=r"5,248 parameters needs 287.0 KiB to be trained by 2 processes"):
        checked(GAME)
    checked(GAME, "run.processes=1")


def test_a_container_s_memory_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = placement.memory_bytes()
    for text, expected in (("1048576\n", 1 << 20), ("max\n", None), (None, None)):
        limit = tmp_path / f"memory.{text}".strip()
        if text:
            limit.write_text(text)
        monkeypatch.setattr(placement, "CGROUP_LIMIT", limit)
        assert placement.memory_bytes() == (expected or placement.memory_bytes())
    assert whole > 1 << 20


def test_disk(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    check_disk(tmp_path / "not" / "yet", 1000)
    with pytest.raises(EarlError, match=r"no space left at .*/runs: .* are free, .* 4 checkpoints of"):
        check_disk(tmp_path / "runs", free)


def test_sizes_read_well() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536, 1 << 30)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "1.5 KiB",
        "1.0 GiB",
    ]
    assert size(5 << 50) == "5120.0 TiB"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as `save_pretrained` leaves it."""
    folder = tmp_path_factory.mktemp("model")
    model.make(build(GAME).model, 0).save(folder)
    return folder


def copy(saved: Path, folder: Path) -> Path:
    return Path(shutil.copytree(saved, folder / "copy"))


def test_a_model_from_a_folder(saved: Path) -> None:
    planned = checked(GAME, f"model.path={saved}")
    assert (planned.config.model.path, planned.parameters) == (str(saved), 5248)
    tokenizer = sum(path.stat().st_size for path in saved.glob("*token*"))
    assert planned.checkpoint_bytes == 3 * 4 * 5248 + tokenizer


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "holds no model: there is no config.json; give a folder written by save_pretrained"),
        ("config.json", b"{", "config.json is not JSON"),
        ("config.json", b'{"model_type": "nothing"}', "model type `nothing`"),
        ("model.safetensors", None, "it has no .safetensors file; give one of save_pretrained"),
        ("model.safetensors", b"", "model.safetensors cannot be read as safetensors"),
        ("tokenizer.json", b"{}", "no model can be loaded from"),
        ("chat_template.jinja", None, "has no chat template; choose an instruction-tuned model"),
        ("chat_template.jinja", b"{{ raise_exception('no users') }}", "the chat template of"),
        (
            "chat_template.jinja",
            b"{% for m in messages %}{{ m.content }} over. {% endfor %}",
            "the chat template ends a reply with",
        ),
    ],
)
def test_a_folder_without_a_sound_model(
    saved: Path, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    folder = copy(saved, tmp_path)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(EarlError) as refusal:
        checked(GAME, f"model.path={folder}")
    assert message in str(refusal.value)


def test_a_model_whose_weights_are_not_all_there(saved: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = copy(saved, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["another"] = tensors.pop("lm_head.weight")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(EarlError, match=r"the weights in .* lack 'lm_head.weight'"):
        checked(GAME, f"model.path={folder}")
    del tensors["another"]  # 106 tokens x 16 = 1,696 of 5,248 numbers
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(EarlError, match=r"the weights in .* are 3552 numbers of 5248; give a whole language model"):
        checked(GAME, f"model.path={folder}")


def test_a_model_with_another_model_s_tokenizer(saved: Path) -> None:
    policy = model.load(saved)
    policy.tokenizer.add_tokens(["more"])
    with pytest.raises(EarlError, match="the tokenizer has 107 ids, its model knows 106"):
        plan.check_player(build(GAME), Policy(policy.model, policy.tokenizer))


def test_a_model_with_a_short_context(saved: Path, tmp_path: Path) -> None:
    folder = copy(saved, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 64}))
    with pytest.raises(
        EarlError, match=r"context.limit = 120 is longer than the 64 tokens .*; set context.limit to at most 64$"
    ):
        checked(GAME, f"model.path={folder}")


@pytest.mark.parametrize("name", ["nobody", "/nowhere/at/all", "a/b/c", "~/model", "with space/x"])
def test_a_name_that_is_no_model(name: str) -> None:
    with pytest.raises(EarlError, match="there is no such folder, and a hub id reads ORGANISATION/NAME"):
        checked(GAME, f"model.path={name}")


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from earl.engine import source

    def fail(*_: object, **__: object) -> None:
        raise OSError("no route to the hub\nat all")

    monkeypatch.setattr(source, "snapshot_download", fail)
    with pytest.raises(
        EarlError, match=r"the hub gives none \(OSError: no route to the hub\); check name and connection"
    ):
        checked(GAME, "model.path=Some/Model")


def test_a_hub_model_is_fetched_description_first(monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
    from earl.engine import source

    asked = []

    def download(name: str, allow_patterns: list[str], etag_timeout: float, local_files_only: bool) -> str:
        assert not local_files_only
        asked.append((name, "*.safetensors" in allow_patterns))
        return str(saved)

    monkeypatch.setattr(source, "snapshot_download", download)
    assert checked(GAME, "model.path=Some/Model").parameters == 5248
    assert asked[0] == ("Some/Model", False)
    assert asked[-1] == ("Some/Model", True)


class Moody(ArithmeticEnv):
    """Begins without an opponent's seed only."""

    def reset(self, *, seed=None, options=None):
        if options:
            raise ZeroDivisionError("a bug of somebody else")
        return super().reset(seed=seed)


def test_an_environment_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._targets, "moody", Moody)
    with pytest.raises(
        EarlError, match=r"environment 'moody' fails: ZeroDivisionError: .*; check it with `earl envs check"
    ):
        checked(TASK, "env.name=moody")


class Thinker:
    """A teacher that writes down the results on the way."""

    def act(self, env, rng):
        return f"<think>{env.results[1:-1]}</think>{env.results[-1]}"


def test_a_teacher_that_thinks_needs_an_agent_that_may(monkeypatch):
    monkeypatch.setattr(registry, "_allowed", {"tests.test_preflight:Thinker"})
    teacher = "warm_start.teacher=tests.test_preflight:Thinker"
    settings = [teacher, "warm_start.steps=1", "agent.max_turn_tokens=60"]
    with pytest.raises(EarlError, match=r"'<think>.* would be refused .*; set agent.thinking to true"):
        checked(TASK, *settings)
    assert checked(TASK, *settings, "agent.thinking=true").config.warm_start.steps == 1


def test_a_run_of_an_environment_that_has_changed_since_is_refused():
    with pytest.raises(EarlError, match=r'earlier arithmetic, env.edition = 1: .* is called as calc\("2\+3"\)'):
        checked(TASK, "env.edition=1")
    assert checked(GAME, "env.edition=1").parameters == checked(GAME).parameters
