import json

import pytest

from earl.cli.main import run as command_line


@pytest.mark.slow
def test_each_move_has_its_value_and_distance(capsys: pytest.CaptureFixture[str]) -> None:
    # X has three in column 1: it wins there at once; any other move lets O block, and none loses at once.
    assert command_line(["solve", "connect4", "121212", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["env"], said["moves"], said["player"]) == ("connect4", "121212", "X")
    assert [row["move"] for row in said["actions"]] == list("1234567")
    assert [row["move"] for row in said["actions"] if row["best"]] == ["1"]
    assert said["actions"][0] == {"move": "1", "value": 1, "plies": 1, "best": True}


def test_a_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["solve", "tictactoe", "1524"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["XX3", "OO6", "789", "X to move"]
    rows = [line.split() for line in lines]
    assert ["3", "win", "1", "best"] in rows
    assert ["7", "loss", "2"] in rows


def test_without_moves_it_is_the_first_position(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["solve", "tictactoe"]) == 0
    assert capsys.readouterr().out.count("best") == 9  # all openings draw


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["connect", "4"], "unknown solved game 'connect'; did you mean 'connect4'"),
        (["connect4", "48"], "move 2, '8', is illegal; use one of 1 2 3 4 5 6 7"),
        (["connect4", "44444444"], "move 7, '4', is illegal; use one of 1 2 3 5 6 7"),
        (["connect4", "1212121"], "the game is over after '1212121'"),
        (["connect4", "12121213"], "move 8, '3', is illegal; the game is over before it"),
    ],
)
def test_what_cannot_be_solved_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["solve", *arguments]) == 2
    assert words in capsys.readouterr().err
