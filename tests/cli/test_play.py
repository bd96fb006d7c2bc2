"""`earl play`: a person types, a model or a script answers."""

import io
from pathlib import Path

import pytest

from earl.agents.chat import Chat
from earl.cli import duel
from earl.cli.duel import Person, board
from earl.engine.model import character_tokenizer
from earl.envs.games.base import State
from earl.envs.games.connect4 import CONNECT4
from earl.envs.games.mnk import TICTACTOE
from earl.placement.embedded import EvalPolicy
from earl.rollout.episode import Rules
from earl.rollout.tasks import EpisodeFactory
from earl.trajectory import Completion


@pytest.fixture
def types(monkeypatch: pytest.MonkeyPatch):
    """Let somebody type these lines, then end the input."""
    return lambda *lines: monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


class Script:
    """A sampler that replies with given texts."""

    def __init__(self, *replies: str) -> None:
        self.replies, self.chat = list(replies), Chat(character_tokenizer())

    def generate(self, prompts):
        tokens = self.chat.written(self.replies.pop(0))
        return [Completion(tokens, [0.0] * len(tokens), [0] * len(tokens), finished=True) for _ in prompts]

    def release(self, sessions) -> None:
        pass


def scripted(env: str, *replies: str) -> EvalPolicy:
    return EvalPolicy(EpisodeFactory(env, {}, Chat(character_tokenizer()), Rules(max_turn_tokens=40)), Script(*replies))


def test_a_game_against_a_script_to_its_end(earl, types) -> None:
    # The perfect player never loses: X takes the corners 1, 3 and whatever is left.
    types(*"123456789" * 5)
    said = earl("play", "tictactoe", "--against", "perfect")
    assert said.code == 0
    assert said.out.splitlines()[-1] in ("draw", "you lose")
    assert "You are X against perfect." in said.out


def test_an_illegal_move_is_answered_with_the_rule(earl, types) -> None:
    types("x", "12", "5")
    said = earl("play", "tictactoe", "--against", "heuristic", "--seat", "second")
    assert said.out.count("illegal: choose one of 1 2 3 4 6 7 8 9") == 3  # the heuristic has taken the centre
    assert "You are O against heuristic." in said.out


def test_leaving_is_polite(earl, types) -> None:
    types()
    said = earl("play", "connect4", "--against", "random")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[-1] == "left before the end"


def test_a_person_solves_a_task(earl, types) -> None:
    types("no idea", "1")
    said = earl("play", "arithmetic", "--seed", "3")
    assert "Work out a chain" in said.out
    assert "illegal: write <tool_call>" in said.out
    assert said.out.splitlines()[-1].endswith("wrong")


def test_a_game_against_a_run(earl, types, trained: Path) -> None:
    types("1", "2", "3", "4")
    said = earl("play", "tictactoe", "--against", "done", "--runs", trained.parent)
    assert said.code == 0
    assert "You are X against done." in said.out
    assert said.out.splitlines()[-1] in ("you win", "you lose", "draw", "left before the end")


def test_a_whole_game_against_a_model(capsys: pytest.CaptureFixture[str], types) -> None:
    # X, the person: 1, 2, then 4 is taken and 3 wins; O, the model: 4, 5.
    types("1", "2", "4", "3")
    duel.play_model(scripted("tictactoe", "4", "5"), "model", 1, 0)
    out = capsys.readouterr().out
    assert "model plays 4" in out
    assert "illegal: choose one of 3 6 7 8 9" in out
    assert out.endswith("X X X\nO O 6\n7 8 9\nyou win\n")


def test_a_model_that_wins_and_one_that_breaks_the_rule(capsys: pytest.CaptureFixture[str], types) -> None:
    types("4", "5")
    duel.play_model(scripted("tictactoe", "1", "2", "3"), "model", 0, 0)
    assert capsys.readouterr().out.endswith("model plays 3\nX X X\nO O 6\n7 8 9\nyou lose\n")
    types("4")
    duel.play_model(scripted("tictactoe", "1", "[red]4"), "model", 0, 0)
    out = capsys.readouterr().out
    assert out.endswith("model replied '[red]4', which is no legal move in time (illegal_action)\nyou win\n")


def test_leaving_a_game_against_a_model_is_not_its_fault(types) -> None:
    types()
    with pytest.raises(KeyboardInterrupt):  # EOFError would be recorded as a fault of the environment
        duel.play_model(scripted("tictactoe", "1"), "model", 0, 0)


def test_watching_a_model_at_work(capsys: pytest.CaptureFixture[str]) -> None:
    duel.watch(scripted("arithmetic", "<tool_call>2+3</tool_call>", "7"), 0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ["model  <tool_call>2+3</tool_call>", "task   5", "model  7", "not solved (finished)"]
    assert lines[0].startswith("task   ")


def test_what_a_person_sees() -> None:
    assert board(TICTACTOE, State(0b1, 0b10), 0) == "X O 3\n4 5 6\n7 8 9"
    assert board(CONNECT4, State(), 0).splitlines()[-2:] == [". . . . . . .", "1 2 3 4 5 6 7"]
    assert not hasattr(Person("x"), "distribution")  # nobody enumerates a person


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tictactoe"], "name a run or an opponent with --against"),
        (["tictactoo", "--against", "random"], "unknown environment 'tictactoo'"),
        (["tictactoe", "--against", "dome"], "'dome' is neither a run nor an opponent; did you mean 'done'"),
        (["tictactoe", "--against", "heuristik"], "did you mean 'heuristic'?"),
        (["tictactoe", "--against", "alphabeta:99"], "depth '99' is not a whole number within"),
        (["connect4", "--against", "done"], "was trained in tictactoe, not in connect4"),
        (["arithmetic", "--against", "random"], "neither a run nor an opponent"),
        (["arithmetic", "--seat", "first"], "leave out --seat"),
        (["tictactoe", "--against", "random", "--seat", "third"], "'third' is not one of 'first', 'second'"),
    ],
)
def test_what_is_refused(earl, trained: Path, arguments: list[str], words: str) -> None:
    said = earl("play", *arguments, "--runs", trained.parent)
    assert (said.code, said.out) == (2, "")
    assert words in said.err
