"""`earl play`: a person types, a model or a script answers."""

import io
import os
import pty
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from select import select
from types import SimpleNamespace

import pytest

from earl.agents.chat import Chat
from earl.cli import duel
from earl.cli.duel import Person, board
from earl.engine.model import character_tokenizer
from earl.envs import registry
from earl.envs.games.base import State
from earl.envs.games.connect4 import CONNECT4
from earl.envs.games.mnk import TICTACTOE
from earl.envs.games.othello import Discs, othello_game
from earl.placement.embedded import EvalPolicy
from earl.rollout.episode import Rules
from earl.rollout.tasks import EpisodeFactory
from earl.trajectory import Completion, Prompt


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


def scripted(env: str, *replies: str, **options: bool) -> EvalPolicy:
    return EvalPolicy(
        EpisodeFactory(env, options, Chat(character_tokenizer()), Rules(max_turn_tokens=40)), Script(*replies)
    )


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
    assert 'illegal: write calc("2+3")' in said.out
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
    duel.watch(scripted("arithmetic", 'calc("2+3")', "7"), 0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ['model  calc("2+3")', "task   5", "model  7", "not solved (finished)"]
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


def test_hints_and_a_move_taken_back(earl, types) -> None:
    types("hint", "1", "back", "9", "hint")
    said = earl("play", "tictactoe", "--against", "perfect")
    asked = said.out.split("You are X against perfect.")[1:]
    assert "perfect plays 1 (11%), 2 (11%)" in asked[0]  # every opening holds the draw
    assert "perfect plays 5" in asked[0]  # the only answer to a corner
    assert "X 2 3" not in asked[2] and "7 8 X" in asked[2]  # the first corner is free again
    assert said.out.splitlines()[-1] == "left before the end"
    types("hint")
    assert "nobody" not in earl("play", "leduc", "--against", "random").out


RIGHT, DOWN, UP, LEFT, ENTER, ERASE = "\x1b[C", "\x1b[B", "\x1b[A", "\x1b[D", "\r", "\x7f"


@pytest.mark.parametrize(
    ("game", "state", "keys", "expected"),
    [
        (TICTACTOE, State(), [ENTER], "1"),
        (TICTACTOE, State(), [RIGHT, DOWN, ENTER], "5"),
        (TICTACTOE, State(0b10, 0b1), [ENTER], "3"),  # 1 and 2 are taken
        (TICTACTOE, State(0b10, 0b1), [DOWN, LEFT, LEFT, ENTER], "4"),
        (TICTACTOE, State(0b10, 0b1), [DOWN, LEFT, LEFT, UP, ENTER], "3"),  # all that is legal above
        (TICTACTOE, State(), [LEFT, UP, ENTER], "1"),  # the edge
        (TICTACTOE, State(), ["9", RIGHT, ENTER], "2"),  # what was typed is dropped
        (TICTACTOE, State(), ["h", "i", "x", ERASE, "n", "t", ENTER], "hint"),
        (CONNECT4, State(), [RIGHT, RIGHT, DOWN, ENTER], "3"),
        (othello_game(6), Discs(0b10, 0b1, 0), [DOWN, ENTER], "pass"),
    ],
)
def test_a_move_is_pointed_at(monkeypatch: pytest.MonkeyPatch, game, state, keys, expected) -> None:
    pressed = iter(keys)
    monkeypatch.setattr(duel, "keyboard", lambda: nullcontext(lambda _: next(pressed)))
    assert duel.pointed(game, state, 0) == expected


def test_the_end_of_input_is_no_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duel, "keyboard", lambda: nullcontext(lambda _: f"{RIGHT}\x04"))
    with pytest.raises(EOFError):
        duel.pointed(TICTACTOE, State(), 0)


@pytest.mark.slow
def test_a_game_with_arrow_keys_in_a_terminal() -> None:
    main, terminal = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "earl.cli.main",
        "play",
        "tictactoe",
        "--against",
        "perfect",
    ]
    player = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)

    def until(text: str) -> None:
        said = ""
        while text not in said:
            assert select([main], [], [], 120)[0], said
            said += os.read(main, 4096).decode()

    until("your move: 1")
    os.write(main, f"{RIGHT}{DOWN}".encode())
    until("\x1b[7m5\x1b[0m")  # in reverse
    os.write(main, ENTER.encode())
    until("your move: 2")  # 1 is taken
    os.write(main, b"\x04")
    until("left before the end")
    assert player.wait(60) == 0
    os.close(main)


def test_a_move_against_a_model_is_taken_back(capsys: pytest.CaptureFixture[str], types) -> None:
    types("1", "back", "2", "1", "3")
    duel.play_model(scripted("tictactoe", "4", "4", "5"), "model", 1, 0)
    assert capsys.readouterr().out.endswith("X X X\n4 O 6\n7 8 9\nyou win\n".replace("4 O", "O O"))


def test_a_run_tells_what_it_weighs(earl, types, trained: Path) -> None:
    types("1")
    said = earl("play", "tictactoe", "--against", "done", "--seat", "second", "--runs", trained.parent)
    weighed = next(line for line in said.out.splitlines() if line.startswith("done weighs: "))
    assert [part.split()[0] for part in weighed.removeprefix("done weighs: ").split(", ")][:9] == [*"123456789"]
    assert "1 " in weighed and "% draws" in weighed  # what each opening comes to


def test_two_players_are_watched(earl, trained: Path) -> None:
    said = earl("play", "tictactoe", "--against", "perfect", "--watch", "perfect")
    assert said.out.count("perfect plays") == 9 and said.out.endswith("draw\n")
    lost = earl("play", "connect4", "--against", "random", "--watch", "alphabeta:4", "--seat", "second")
    assert lost.out.startswith("alphabeta:4 plays 4\n") and lost.out.endswith("alphabeta:4 wins\n")
    mixed = earl("play", "tictactoe", "--against", "done", "--watch", "random", "--runs", trained.parent)
    assert mixed.code == 0 and mixed.out.splitlines()[-1].split()[-1] in ("draw", "wins", "forfeit")
    assert "name the first with --against" in earl("play", "tictactoe", "--watch", "random").err


def test_a_person_has_the_plain_board_where_images_are_shown_alike(capsys: pytest.CaptureFixture[str], types) -> None:
    # The person takes the last corner, which is the first one on the board that the model is shown.
    types("9", "7", "8")
    duel.play_model(scripted("tictactoe", "5", "4", symmetry=True), "model", 1, 0)
    out = capsys.readouterr().out
    assert "model plays 5\n1 2 3\n4 O 6\n7 8 X\n" in out
    assert out.endswith("X X X\nyou win\n")


def test_what_a_model_weighs_are_moves_of_the_plain_board(capsys: pytest.CaptureFixture[str]) -> None:
    env = registry.make("tictactoe", symmetry=True)
    env.begin(0)
    env.move("9")
    script = Script("2")  # on the board that is shown: beside the corner
    script.sampler = script
    episode = SimpleNamespace(board=env, chat=script.chat, rules=Rules())
    duel.ThinksAloud("model", script, episode)._show(env, [Prompt(0, [1], 0, 2)] * duel.SAMPLES)
    weighed = capsys.readouterr().out.removeprefix("model weighs: ").split(", ")
    assert [part for part in weighed if "100%" in part] in (["6 100% loses"], ["8 100% loses"])
