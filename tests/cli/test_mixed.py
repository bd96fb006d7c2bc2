"""Several environments in one run, and a warm start from data, each from the command line to the report."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from earl.agents.scripted.registry import agent
from earl.cli.main import run as command_line
from earl.config import Config
from earl.engine.model import character_tokenizer
from earl.engine.sampler import Sampler
from earl.placement.fragment import RolloutFragment, demonstrations, episode_factory
from earl.recipe import build, load_toml
from earl.rollout.drivers import demonstrate
from earl.rollout.tasks import draw, draw_tasks
from earl.runs import trajectories
from earl.runs.store import Store
from earl.trajectory import Group, Outcome, Task
from tests.cli.conftest import TINY

OTHERS = """
[[env.others]]
name = "arithmetic"
share = 0.5
options = { num_operations = 1 }
teacher = "solver"
[[env.others]]
name = "connect4"
share = 0.5
opponents = { random = 1.0 }
teacher = "random"
"""


ROOMY = TINY.replace("max_turn_tokens = 2", "max_turn_tokens = 24").replace("limit = 80", "limit = 200")


def toml(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    return toml(tmp_path / "mixed.toml", ROOMY + OTHERS)


def config_of(path: Path, **changes) -> Config:
    tree = load_toml(path)
    return build({**tree, **{name: {**tree.get(name, {}), **own} for name, own in changes.items()}})


def test_groups_are_drawn_by_the_shares_of_environments(mixed: Path) -> None:
    config = config_of(mixed, rollout={"episodes": 64, "group_size": 2})
    drawn = Counter(task.env for task in draw(config, 5).tasks)
    assert drawn == {"tictactoe": 16, "arithmetic": 8, "connect4": 8}
    assert {task.seat for task in draw(config, 5).tasks if task.env == "connect4"} == {0, 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    recipe = toml(folder / "mixed.toml", ROOMY + OTHERS)
    line = ["train", "tictactoe", "--config", str(recipe), "--runs", str(folder), "--name", "mixed"]
    assert command_line(line) == 0
    return folder / "mixed"


@pytest.mark.slow
def test_a_run_learns_from_all_and_is_evaluated_in_all(run: Path) -> None:
    _, groups = trajectories.read(trajectories.files(run / "trajectories")[-1])
    assert {group.task.env for group in groups} == {"tictactoe", "arithmetic", "connect4"}
    assert {group.task.opponent for group in groups if group.task.env == "arithmetic"} == {""}
    with Store(run / "run.db", read_only=True) as store:
        matches = [found.result for found in store.matches() if found.phase == "final"]
        rewards = {name for name in store.metrics() if name.startswith("reward/")}
    assert {(one.env, one.opponent, one.seat) for one in matches} == {
        *(("tictactoe", opponent, seat) for opponent in ("random", "perfect") for seat in (0, 1)),
        *(("connect4", "connect4 random", seat) for seat in (0, 1)),
        ("arithmetic", "arithmetic", 0),
    }
    assert rewards == {"reward/tictactoe", "reward/arithmetic", "reward/connect4"}


@pytest.mark.slow
def test_a_mixed_run_is_evaluated_audited_replayed_and_reported(earl, run: Path) -> None:
    own = earl("eval", run, "--env", "arithmetic", "--episodes", 3, "--json")
    assert (own.code, own.json["env"]) == (0, "arithmetic")
    other = earl("eval", run, "--env", "gridworld")
    assert other.code == 2
    assert "gridworld" in other.err
    assert earl("audit", run).code == 0
    assert earl("report", run).code == 0
    assert "arithmetic" in (run / "report.html").read_text()
    assert earl("replay", run, 1).code == 0


@pytest.mark.slow
def test_the_dry_run_tells_the_shares(earl, mixed: Path, tmp_path: Path) -> None:
    line = ("train", "tictactoe", "--config", mixed, "--runs", tmp_path, "--dry-run")
    assert "tictactoe 50%, arithmetic 25%, connect4 25%" in earl(*line).out
    shares = {"tictactoe": 0.0, "arithmetic": 0.0, "connect4": 0.0}
    for one in earl(*line, "--json").json["shares"]:
        shares[one["env"]] += one["share"]
    assert shares == {"tictactoe": 0.5, "arithmetic": 0.25, "connect4": 0.25}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ('name = "connect4"\nshare', ('name = "arithmetic"\nshare', "list each environment once")),
        ("share = 0.5", ("share = 0", "env.others.0.share")),
        ("opponents = { random", ("opponents = { nobody", "nobody")),
        ("opponents = { random = 1.0 }", ("", "connect4 needs an opponent")),
        ('teacher = "solver"', ('teacher = "perfect"', "perfect")),
        ("num_operations = 1", ("operations = 1", "operations")),
        ('name = "connect4"', ('name = "conect4"', "connect4")),
    ],
)
def test_another_environment_is_checked_as_the_first_is(earl, mixed: Path, tmp_path: Path, changed, told) -> None:
    text = mixed.read_text()
    assert changed in text
    mixed.write_text(text.replace(changed, told[0], 1))
    said = earl("train", "tictactoe", "--config", mixed, "--runs", tmp_path, "--dry-run")
    assert (said.code, said.out) == (2, "")
    assert told[1] in said.err


CHAT = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "5"}]


def chats(path: Path, *conversations: object) -> Path:
    return toml(path, "".join(json.dumps(one) + "\n" for one in conversations))


def shown(tiny: Path, data: Path, *more: str) -> tuple[object, ...]:
    line = ("train", "tictactoe", "--config", tiny, "--runs", tiny.parent, "--set", f"warm_start.data={str(data)!r}")
    return (*line, "--set", "warm_start.steps=30", "--set", "run.steps=1", *more)


@pytest.mark.slow
def test_chats_are_imitated(earl, tiny: Path, tmp_path: Path) -> None:
    more = [{"role": "user", "content": "again"}, {"role": "assistant", "content": "7"}]
    data = chats(tmp_path / "chats.jsonl", {"messages": CHAT}, {"messages": [*CHAT, *more]})
    said = earl(*shown(tiny, data, "--name", "taught"))
    assert said.code == 0, said.err
    with Store(tmp_path / "taught" / "run.db", read_only=True) as store:
        losses = [value for _, value in store.metrics()["warm_start/loss"]]
    # Three replies of one token and an end: the student comes to write 5 or 7 and the end, and nothing else.
    assert losses[-1] < 0.5 * losses[0]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The trajectories of a run: ten games of a perfect player against a random one, and one that was lost."""
    config = config_of(toml(tmp_path / "kept.toml", TINY), env={"opponents": {"random": 1.0}})
    world = episode_factory(config, character_tokenizer())
    tasks = draw_tasks({"tictactoe": {"random": 1.0}}, 10, 1)
    agents = {"tictactoe": (agent("perfect", "tictactoe"), agent("random", "tictactoe"))}
    played, _ = demonstrate([world.episode(task, n, n) for n, task in enumerate(tasks)], agents, 0.0)
    lost = replace(played[0], outcome=Outcome.LOSS)
    (folder := tmp_path / "kept" / "trajectories").mkdir(parents=True)
    groups = [Group((one,)) for one in (*played, lost)]
    trajectories.write(trajectories.path_of(folder, 3), trajectories.to_table(groups, 3))
    return folder


def test_the_won_episodes_of_a_run_are_imitated(earl, tiny: Path, kept: Path, tmp_path: Path) -> None:
    world = episode_factory(config_of(tiny), character_tokenizer())
    found = demonstrations(kept, world.chat, world.rules)
    assert len(found) == 10
    fragment = RolloutFragment(
        config_of(tiny, warm_start={"data": str(kept), "steps": 1}), character_tokenizer(), Sampler()
    )
    tasks = {number: Task("tictactoe", number) for number in (0, 3, 13)}
    rows, order = fragment.demonstrate(tasks, 7, 256)
    assert rows.num_rows == 3 and order.tolist() == [0, 3, 13]
    again, _ = fragment.demonstrate({13: tasks[13]}, 7, 256)
    assert again.tokens.tolist() == rows.tokens[rows.offsets[2] :].tolist(), "an episode follows from seed and number"
    assert earl(*shown(tiny, kept, "--set", "warm_start.steps=2", "--name", "taught")).code == 0


def test_the_episodes_of_another_tokenizer_are_refused(earl, tiny: Path, kept: Path) -> None:
    file = trajectories.path_of(kept, 3)
    _, groups = trajectories.read(file)
    shifted = [Group(tuple(replace(one, tokens=one.tokens + 1) for one in group.trajectories)) for group in groups]
    trajectories.write(file, trajectories.to_table(shifted, 3))
    said = earl(*shown(tiny, file, "--dry-run"))
    assert said.code == 2
    assert "another tokenizer or agent.parser" in said.err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "has nothing to learn from"),
        ("no json", "line 1 of"),
        ('{"messages": 5}', "line 1 of"),
        ('{"messages": []}', "has the roles system"),
        (json.dumps({"messages": CHAT[:1]}), "take turns"),
        (json.dumps({"messages": CHAT[1:]}), "take turns"),
        (json.dumps({"messages": [CHAT[0], {"role": "assistant", "content": 5}]}), "is no text"),
        (json.dumps({"messages": [CHAT[0], {"role": "assistant", "content": "5" * 40}]}), "agent.max_turn_tokens"),
        (json.dumps({"messages": [{"role": "user", "content": "a" * 400}, CHAT[1]]}), "context.limit"),
    ],
)
def test_data_that_cannot_be_learned_is_refused_ahead(earl, tiny: Path, tmp_path: Path, content, told) -> None:
    said = earl(*shown(tiny, toml(tmp_path / "chats.jsonl", content), "--dry-run"))
    assert (said.code, said.out) == (2, "")
    assert told in said.err


def test_missing_data_is_refused_ahead(earl, tiny: Path, tmp_path: Path) -> None:
    said = earl(*shown(tiny, tmp_path / "none.jsonl", "--dry-run"))
    assert said.code == 2
    assert "is not here" in said.err
