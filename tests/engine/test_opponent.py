"""A chat model in the other seat of a game, of earl's own or of another library."""

from random import Random

import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM

from earl.agents.scripted.registry import player
from earl.cli.main import run as command_line
from earl.engine.opponent import ModelOpponent
from earl.envs import registry
from earl.envs.check import play
from earl.errors import EarlError
from earl.runs.folder import RunFolder
from earl.runs.store import Store
from earl.trajectory import Completion
from tests.sampling import sampled


@pytest.fixture(scope="module")
def folder(tmp_path_factory, chatml):
    tokenizer = chatml()
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=1, max_position_embeddings=512, **shape)
    path = tmp_path_factory.mktemp("opponent")
    Qwen2ForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


class Scripted:
    """A sampler that gives replies in turn; `asked` holds what it saw each time."""

    def __init__(self, chat):
        self.chat, self.replies, self.asked, self.longest = chat, [], [], 0

    def generate(self, prompts):
        [prompt] = prompts
        self.longest = max(self.longest, len(prompt.tokens))
        self.asked.append(self.chat.decode(tuple(prompt.tokens)))
        tokens = self.chat.written(self.replies.pop(0))
        return [Completion(tokens, [0.0] * len(tokens), [0] * len(tokens), True)]

    def release(self, sessions):
        assert [*sessions] == [0]


@pytest.fixture
def opponent(folder, chatml, monkeypatch):
    monkeypatch.setattr("earl.engine.opponent.read_tokenizer", lambda *_: chatml())
    made = ModelOpponent(str(folder))
    made._sampler, made._positions = Scripted(made._chat), 512
    return made


def test_it_is_told_what_it_sees_and_its_last_line_is_its_action(opponent):
    opponent._sampler.replies = ["The centre.\n5", "I give up", "<think>7 or 9?</think>7"]
    env = registry.make("tictactoe", seat=0, opponent=opponent)
    env.reset(seed=1)
    assert env.step("1")[0] == "X X23\n4O6\n789"
    assert "O X23\n456\n789" in opponent._sampler.asked[0]
    assert opponent._sampler.asked[0].count(env.instructions) == 1
    board = env.step("2")[0]  # no move: a random one
    assert board.count("O") == 2
    assert "The centre.\n5" in opponent._sampler.asked[1]  # one conversation
    env.reset(seed=2)
    opponent._sampler.replies = ["4"]
    env.step("1")
    assert "The centre" not in opponent._sampler.asked[-1]  # another episode


def test_in_the_game_of_another_library_it_chooses_among_its_own_actions(opponent):
    pytest.importorskip("pyspiel")
    opponent._sampler.replies = ["o(1,1)", "x(0,1)", "o(2,2)"]
    env = registry.make("openspiel:tic_tac_toe", seat=0, opponent=opponent)
    env.reset(seed=1)
    board, *_ = env.step("x(0,0)")
    assert board.startswith("x..\n.o.\n...")
    board, *_ = env.step("x(0,2)")
    assert board.splitlines()[0] in ("x.x", "xox")  # x(0,1) is none of its actions
    second = registry.make("openspiel:tic_tac_toe", seat=1, opponent=opponent)
    opponent._sampler.replies = ["x(1,1)"]
    assert second.reset(seed=1)[0].startswith("...\n.x.\n...")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tictactoe", "openspiel:kuhn_poker", "textarena:TicTacToe-v0"])
def test_the_same_seeds_give_the_same_game_with_a_model(folder, name):
    if name != "tictactoe":
        pytest.importorskip({"openspiel": "pyspiel"}.get(name.partition(":")[0], "textarena"))
    for seat in (0, 1):
        other = player(f"model:{folder}", name)
        games = [[*play(registry.make(name, seat=seat, opponent=other), 3, opponent_seed=4)] for _ in range(2)]
        assert games[0] == games[1]
        assert games[0][-1].last


def test_a_conversation_that_grows_too_long_begins_anew(opponent):
    opponent._sampler.replies = ["5"] * 50
    rng = Random(0)
    for _ in range(30):
        opponent._reply("Rules.", "a board " * 8, rng)
    assert 400 < opponent._sampler.longest <= 512 - 64
    assert sum("Rules." in asked for asked in opponent._sampler.asked) == 30


@pytest.mark.parametrize(("path", "said"), [("nowhere/at/all", "no model at"), ("tiny-lab/none", "hf download tiny")])
def test_a_model_that_is_not_here_is_named_and_nobody_is_asked(path, said):
    with pytest.raises(EarlError, match=said):
        player(f"model:{path}", "tictactoe")


@pytest.mark.slow
@pytest.mark.parametrize("env", sampled(["tictactoe", "openspiel:kuhn_poker"], every=2))
def test_a_run_against_a_model(folder, tmp_path, env):
    pytest.importorskip("pyspiel")
    name = f"model:{folder}"
    own = [
        f"env.opponents={{'{name}' = 1.0}}",
        f"evaluate.opponents=['{name}']",
        "evaluate.exact=false",
        "evaluate.patience=0",
    ]
    own += ["rollout.episodes=8", "rollout.group_size=4", "evaluate.episodes=2", "evaluate.final_episodes=2"]
    own += ["run.processes=2", "warm_start.steps=0", "run.keep_trajectories_every=1"]
    line = ["train", env, "--model", str(folder), "--steps", "2", "--runs", str(tmp_path), "--name", "a"]
    assert command_line([*line, *(part for setting in [*own, "context.limit=480"] for part in ("--set", setting))]) == 0
    with Store(RunFolder(tmp_path / "a").database, read_only=True) as store:
        assert store.metrics()["stop/env_error"] == [(1, 0.0), (2, 0.0)]
    assert command_line(["audit", "a", "--runs", str(tmp_path)]) == 0
    assert command_line(["eval", "a", "--runs", str(tmp_path), "--opponent", name, "--episodes", "2"]) == 0
