"""Othello against a board of lists whose discs are turned one by one."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.agents.scripted import perfect
from earl.envs import registry
from earl.envs.games.othello import PASS, othello_game
from earl.errors import EarlError


def flips(board, row, column, mark):
    """The cells that a disc would turn, in all eight directions."""
    size, other, found = len(board), "O" if mark == "X" else "X", []
    if board[row][column] != ".":
        return []
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            run, r, c = [], row + down, column + right
            while (down or right) and 0 <= r < size and 0 <= c < size and board[r][c] == other:
                run.append((r, c))
                r, c = r + down, c + right
            if run and 0 <= r < size and 0 <= c < size and board[r][c] == mark:
                found += run
    return found


def places(board, mark):
    cells = [(row, column) for row in range(len(board)) for column in range(len(board))]
    return [len(board) * row + column for row, column in cells if flips(board, row, column, mark)]


@given(st.sampled_from((4, 6, 8)), st.randoms(use_true_random=False))
def test_agrees_with_a_naive_board(size, rng):
    game, turn, plies = othello_game(size), 0, 0
    state, board = game.deals[0][0], [["."] * size for _ in range(size)]
    half = size // 2
    board[half - 1][half - 1 : half + 1], board[half][half - 1 : half + 1] = "OX", "XO"
    while True:
        assert game.render(state) == "\n".join("".join(row) for row in board)
        assert game.read(game.render(state), state.player)[:2] == state[:2]
        mark, other = "XO"[turn], "OX"[turn]
        legal = places(board, mark) or ([size * size] if places(board, other) else [])
        assert (game.legal(state), state.player) == (tuple(legal), turn)
        if not legal:
            break
        assert game.winner(state) is None
        move = rng.choice(legal)
        if game.actions[move] != PASS:
            row, column = divmod(move, size)
            for r, c in [*flips(board, row, column, mark), (row, column)]:
                board[r][c] = mark
        state, turn, plies = game.play(state, move), 1 - turn, plies + 1
    lead = sum(row.count("X") - row.count("O") for row in board)
    assert game.winner(state) == (None if lead == 0 else int(lead < 0))
    assert plies <= game.max_plies


def test_the_second_player_wins_on_four_by_four():
    game = othello_game(4)
    state = game.deals[0][0]
    while not game.over(state):
        state = game.play(state, perfect.deepest(game, state)[0])
    assert game.winner(state) == 1


def test_a_pass_is_the_only_move_where_no_disc_can_be_turned():
    env, passes = registry.make("othello", size=4), 0
    for seed in range(40):
        rng = Random(seed)
        observation, info = env.reset(seed=seed)
        while info["legal_actions"]:
            if PASS in info["legal_actions"]:
                passes += 1
                assert info["legal_actions"] == (PASS,)
                assert env.draw(observation, PASS).marked is None
            observation, *_, info = env.step(rng.choice(info["legal_actions"]))
    assert passes > 5


def test_other_sizes_are_refused():
    with pytest.raises(EarlError, match="no board of size 5; use one of 4, 6, 8"):
        registry.make("othello", size=5)
