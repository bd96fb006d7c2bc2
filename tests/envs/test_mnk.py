"""k in a row on boards of any size, against a board of lists; Tic-Tac-Toe has more in test_tictactoe.py."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.agents.scripted import perfect
from earl.agents.scripted.registry import player
from earl.envs import registry
from earl.envs.games.base import State
from earl.envs.games.mnk import mnk
from earl.errors import EarlError

DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))


def has_line(board, mark, line):
    """Whether some cell begins `line` marks in some direction."""
    rows, columns = len(board), len(board[0])

    def marked(row, column):
        return 0 <= row < rows and 0 <= column < columns and board[row][column] == mark

    return any(
        all(marked(row + down * number, column + right * number) for number in range(line))
        for row in range(rows)
        for column in range(columns)
        for down, right in DIRECTIONS
    )


def with_mark(board, cell, mark):
    columns = len(board[0])
    return [[mark if cell == columns * r + c else own for c, own in enumerate(row)] for r, row in enumerate(board)]


@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(3, 5), st.randoms(use_true_random=False))
def test_agrees_with_a_naive_board(rows, columns, line, rng):
    line = min(line, max(rows, columns))
    game, state, board = mnk(rows, columns, line), State(), [["."] * columns for _ in range(rows)]
    empty = set(range(rows * columns))
    while empty:
        assert game.legal(state) == tuple(sorted(empty)) and game.winner(state) is None
        for seat, mark in enumerate(game.marks):
            if rng.random() < 0.2:
                winning = [cell for cell in sorted(empty) if has_line(with_mark(board, cell, mark), mark, line)]
                assert game.wins(state, seat) == tuple(winning)
        move, mark, seat = rng.choice(sorted(empty)), game.marks[state.player], state.player
        board, state = with_mark(board, move, mark), game.play(state, move)
        empty.remove(move)
        if rows * columns > 9:
            assert game.render(state) == "\n".join("".join(row) for row in board)
        if has_line(board, mark, line):
            assert game.winner(state) == seat
            break
    assert game.over(state)


def test_cells_are_named_by_letter_and_number():
    env = registry.make("gomoku", rows=3, columns=4, line=3)
    env.reset(seed=0)
    assert env.game.actions == ("a1", "b1", "c1", "d1", "a2", "b2", "c2", "d2", "a3", "b3", "c3", "d3")
    drawn = env.draw("X .X..\n.O..\n....", "d1")
    assert drawn and drawn.marked == (0, 3) and drawn.cells[0] == ("", "X", "", "X")


@pytest.mark.parametrize("options", [{"rows": 10}, {"columns": 0}, {"line": 8}, {"line": 2}])
def test_boards_that_are_no_game_are_refused(options):
    with pytest.raises(EarlError, match="is no game; use 1 … 9"):
        registry.make("gomoku", **options)


@pytest.mark.parametrize(("rows", "columns", "line", "value"), [(3, 3, 3, 0), (3, 4, 3, 1), (4, 4, 3, 1), (3, 4, 4, 0)])
def test_perfect_play_comes_to_the_known_value(rows, columns, line, value):
    env = registry.make("gomoku", rows=rows, columns=columns, line=line, opponent=player("perfect", "gomoku"))
    state = env.game.deals[0][0]
    while not env.game.over(state):
        state = env.game.play(state, perfect.deepest(env.game, state)[0])
    assert env.game.winner(state) == (0 if value else None)


def test_perfect_is_refused_on_boards_too_large_to_solve():
    with pytest.raises(EarlError, match="7 × 7 cells is too large to play it perfectly; use 'alphabeta:2'"):
        registry.make("gomoku", opponent=player("perfect", "gomoku"))
    with pytest.raises(EarlError, match="too large"):
        registry.make("othello", opponent=player("perfect@0.5", "othello"))
    teacher, env = player("perfect", "gomoku"), registry.make("gomoku")
    env.reset(seed=0)
    with pytest.raises(EarlError, match="too large"):
        teacher.act(env, Random(0))
