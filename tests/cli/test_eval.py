"""`earl eval`: a run or a model, sampled or enumerated."""

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from earl.runs import checkpoint

ROOT = Path(__file__).parents[2]
FRACTIONS = ("win", "draw", "loss", "illegal", "truncated")
PER_MOVE = ("forfeit", "turn_tokens")  # and what the solver says of moves, where one was made
KEYS = ["env", "opponent", "exact", "episodes_or_leaves", *FRACTIONS, *PER_MOVE, "by_seat"]


def test_one_opponent_is_one_object(earl, trained: Path) -> None:
    said = earl("eval", "done", "--runs", trained.parent, "--env", "tictactoe", "--opponent", "random", "--json")
    assert said.code == 0
    assert re.fullmatch(r"done, step \d: unsigned\n", said.err)  # who vouches for the weights; nothing else
    assert list(said.json) == KEYS
    assert (said.json["env"], said.json["opponent"], said.json["exact"]) == ("tictactoe", "random", False)
    seats = said.json["by_seat"]
    assert list(seats) == ["first", "second"]
    for seat in seats.values():
        assert set(seat) == {"episodes_or_leaves", *FRACTIONS, *PER_MOVE, "win_interval", "distinct"}
        assert 1 <= seat["distinct"]["games"] <= 6
        for name in ("win", "draw", "loss"):
            low, high = seat["distinct"][f"{name}_interval"]
            assert 0 <= low <= seat["distinct"][name] <= high <= 1
        assert seat["episodes_or_leaves"] == 6  # evaluate.final_episodes
        low, high = seat["win_interval"]
        assert 0 <= low <= seat["win"] <= high <= 1
        assert seat["win"] + seat["draw"] + seat["loss"] == pytest.approx(1)
    assert said.json["episodes_or_leaves"] == 12
    for name in FRACTIONS:
        assert said.json[name] == pytest.approx((seats["first"][name] + seats["second"][name]) / 2)


def test_an_exact_result_has_no_interval(earl, trained: Path) -> None:
    said = earl("eval", trained, "--opponent", "perfect", "--exact", "--json")
    assert said.json["exact"] is True
    assert "win_interval" not in said.json["by_seat"]["first"]
    said = earl("eval", trained, "--opponent", "perfect", "--exact")
    assert "exact: " in said.out
    assert "[" not in said.out


def test_several_opponents_are_a_list_in_the_order_given(earl, trained: Path) -> None:
    opponents = ["--opponent", "random", "--opponent", "heuristic", "--episodes", 3]
    said = earl("eval", trained, *opponents, "--json")
    assert [entry["opponent"] for entry in said.json] == ["random", "heuristic"]
    assert [entry["episodes_or_leaves"] for entry in said.json] == [6, 6]
    table = earl("eval", trained, *opponents).out
    assert len(re.findall(r" 3 games| [12] distinct of 3 games", table)) == 4
    assert "%" in table
    assert "[" in table  # intervals


def test_a_proof_of_every_line_of_play_is_written(earl, trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "proof.txt"
    said = earl("eval", trained, "--exact", "--proof", file, "--json")
    assert (said.code, said.json["opponent"]) == (0, "any")
    ran = subprocess.run([sys.executable, "-I", ROOT / "docs/check_proof.py", file], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.partition(":")[0]) == (0, "accepted"), ran.stderr
    assert len(file.read_text().splitlines()) == said.json["episodes_or_leaves"] + 3  # the game, and its seats


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        (("--opponent", "random", "--episodes", 5), "match 2 of 2, against random"),
        (("--positions", 5), "judging single moves"),
    ],
)
def test_what_it_does_is_told_on_a_terminal(start, trained: Path, line: tuple[object, ...], progress: str) -> None:
    user, program = pty.openpty()
    process = start("eval", trained, *line, "--json", stderr=program, env={"TERM": "xterm-256color"})
    os.close(program)
    said = b""
    with suppress(OSError):  # raised at the end of a terminal
        while part := os.read(user, 4096):
            said += part
    os.close(user)
    assert progress in said.decode()
    assert json.loads(process.communicate()[0])
    assert process.returncode == 0


def test_single_moves_are_judged_at_the_same_positions(earl, trained: Path) -> None:
    line = ("eval", trained, "--positions", 30)
    [first, second] = seats = earl(*line, "--json").json
    assert [seat["seat"] for seat in seats] == ["first", "second"]
    for seat in seats:
        low, high = seat["optimal_interval"]
        assert 0 <= low <= seat["optimal"] <= high <= 1
        assert 0 <= seat["illegal"] <= 1 - seat["optimal"]
    assert 0 < first["positions"] + second["positions"] <= 30
    assert earl(*line, "--seed", 0, "--json").json == seats
    assert earl(*line, "--seed", 1, "--json").json != seats
    cells = [f"{first['positions']}", f"{first['optimal']:.1%}", f"{first['illegal']:.1%}"]
    row = next(text for text in earl(*line).out.splitlines() if "first" in text)
    assert all(cell in row.split() for cell in cells)


def test_seeds_draw_the_games(earl, trained: Path) -> None:
    line = ["eval", trained, "--opponent", "random", "--episodes", 40, "--json"]
    assert earl(*line).out == earl(*line).out == earl(*line, "--seed", 0).out


def test_the_checkpoint_may_be_chosen(earl, trained: Path) -> None:
    for which in ("best", "last", "0", "3"):
        said = earl("eval", trained, "--opponent", "random", "--episodes", 1, "--checkpoint", which)
        assert said.code == 0, said.err
    said = earl("eval", trained, "--opponent", "random", "--checkpoint", "2")
    assert (said.code, said.err) == (2, "error: run 'done' keeps no checkpoint of step 2; kept are the steps 0, 3\n")
    said = earl("eval", trained, "--opponent", "random", "--checkpoint", "first")
    assert "neither 'best', 'last' nor a step" in said.err


def test_a_model_plays_by_the_recipe_of_the_environment(earl, tiny: Path, trained: Path) -> None:
    model = checkpoint.latest(trained / "checkpoints")
    line = ["eval", model, "--env", "tictactoe", "--opponent", "random", "--config", tiny, "--json"]
    said = earl(*line)
    assert (said.code, said.json["episodes_or_leaves"]) == (0, 12)
    assert earl(*line, "--set", "evaluate.final_episodes=2").json["episodes_or_leaves"] == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["RUN", "--proof", "proof.txt"], "add --exact"),
        (["RUN", "--exact", "--proof", "proof.txt", "--opponent", "perfect"], "leave out other opponents"),
        (["RUN", "--opponent", "rndom"], "error: unknown opponent 'rndom'; did you mean 'random'?"),
        (["RUN"], "name one with --opponent"),
        (["RUN", "--opponent", "any"], "it needs --exact"),
        (["RUN", "--env", "connect4", "--opponent", "random"], "was trained in tictactoe, not in connect4"),
        (["RUN", "--env", "tictactoo", "--opponent", "random"], "unknown environment 'tictactoo'"),
        (["RUN", "--opponent", "random", "--set", "run.steps=1"], "leave out --config and --set"),
        (["RUN", "--opponent", "random", "--exact", "--episodes", "5"], "leave out --episodes"),
        (["RUN", "--opponent", "random", "--opponent", "random"], "names the same opponent twice"),
        (["RUN", "--opponent", "random", "--episodes", "0"], "0 is not in the range"),
        (["RUN", "--positions", "9", "--opponent", "random"], "--positions asks for single moves"),
        (["RUN", "--positions", "9", "--exact"], "leave out --opponent, --exact, --episodes and --proof"),
        (["RUN", "perfect", "--round-robin", "--positions", "9"], "--round-robin takes only"),
        (["MODEL", "--env", "kuhn", "--positions", "9"], "kuhn has no solver to judge moves"),
        (["dome", "--opponent", "random"], "did you mean 'done'?; a model is a folder or a hub id"),
        (["MODEL", "--opponent", "random"], "is no run; of a model say with --env where it plays"),
        (["MODEL", "--env", "tictactoe", "--opponent", "random", "--checkpoint", "last"], "leave out --checkpoint"),
        (["MODEL", "--env", "tictactoe", "--opponent", "random", "--set", "context.limit=9"], "at least 18"),
        (["EMPTY", "--env", "tictactoe", "--opponent", "random"], "holds no model"),
    ],
)
def test_what_is_refused(earl, trained: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    names = {"RUN": trained, "MODEL": checkpoint.latest(trained / "checkpoints"), "EMPTY": tmp_path}
    said = earl("eval", *[names.get(part, part) for part in arguments], "--runs", trained.parent)
    assert (said.code, said.out) == (2, "")
    assert words in said.err
    assert "Traceback" not in said.err


def test_a_league_of_a_run_its_checkpoint_and_scripted_players(earl, trained: Path) -> None:
    players = ["done", "run:done@0", "perfect", "random"]
    line = ["eval", *players, "--round-robin", "--runs", trained.parent, "--episodes", 4]
    said = earl(*line, "--json")
    assert said.code == 0, said.err
    assert sorted(one["name"] for one in said.json) == sorted(players)
    assert said.json[0]["name"] == "perfect"
    for one in said.json:
        assert one["low"] < one["elo"] < one["high"]
        assert one["games"] == 24  # 3 others, 4 openings, 2 seats
        assert sum(met["won"] + met["drawn"] + met["lost"] for met in one["against"].values()) == 24
    assert earl(*line).out.count("random") == 2  # in the heading and in the table
    assert "neither a run nor an opponent" in earl("eval", "done", "rndom", *line[-5:]).err
    assert "name one" in earl("eval", "done", "perfect", "--runs", trained.parent).err


def test_a_checkpoint_of_another_game_is_no_opponent(earl, trained: Path, tmp_path: Path) -> None:
    said = earl("train", "gomoku", "--set", f'env.opponents={{"run:{trained}@0"=1}}', "--runs", tmp_path)
    assert (said.code, said.out, [*tmp_path.iterdir()]) == (2, "", [])
    assert "plays tictactoe, not gomoku; name a run of the same environment" in said.err


def test_the_line_that_beats_an_untrained_run_is_drawn(earl, trained: Path) -> None:
    said = earl("exploit", trained, "--json")
    assert (said.code, list(said.json)) == (0, ["first", "second"])
    for seat in said.json.values():
        assert seat["complete"] is True
        assert seat["result"] in ("loss", "forfeit")
    assert "no shorter line exists" in earl("exploit", trained).out
    assert "neither a run" not in said.err
