import contextlib
import io
import warnings
from random import Random

import numpy as np
import pytest

from earl.envs.adapters.pettingzoo import AGENTS, RawGame, env
from earl.envs.games import GAMES
from earl.envs.games.base import State
from earl.errors import EarlError


def reference(name: str):
    """PettingZoo's own game, and its number for each of our moves."""
    if name == "connect4":
        from pettingzoo.classic.connect_four.connect_four import raw_env

        return raw_env(), list(range(7))
    from pettingzoo.classic.tictactoe.tictactoe import raw_env

    return raw_env(), [0, 3, 6, 1, 4, 7, 2, 5, 8]  # it counts down the columns


def agree(name: str, games: int) -> None:
    """Random games, move by move: legal moves, whose turn it is, board, end and winner."""
    game, rng = GAMES[name], Random(0)
    theirs, number = reference(name)
    for _ in range(games):
        theirs.reset()
        state = State()
        while not game.over(state):
            agent = theirs.agents[state.player]
            assert theirs.agent_selection == agent and not theirs.terminations[agent]
            mask = theirs.observe(agent)["action_mask"]
            assert game.legal(state) == tuple(move for move, n in enumerate(number) if mask[n])
            move = rng.choice(game.legal(state))
            state = game.play(state, move)
            theirs.step(number[move])
        assert all(theirs.terminations.values())
        winner = game.winner(state)
        expected = [0, 0] if winner is None else [1 if seat == winner else -1 for seat in (0, 1)]
        assert [theirs.rewards[agent] for agent in theirs.agents] == expected


@pytest.mark.parametrize("name", GAMES)
def test_rules_agree_with_pettingzoo(name):
    agree(name, games=300)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", GAMES)
def test_rules_agree_with_pettingzoo_over_ten_thousand_games(name):
    agree(name, games=10_000)


@pytest.mark.parametrize("name", GAMES)
def test_passes_pettingzoos_own_tests(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its test module imports its own deprecated names
        from pettingzoo.test import api_test, seed_test
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("error")
        api_test(env(name, render_mode="ansi"), num_cycles=100)
        seed_test(lambda: env(name))


def test_agents_see_the_board_from_their_own_side():
    game = RawGame(GAMES["tictactoe"], render_mode="ansi")
    game.reset()
    game.step(0)
    game.step(2)
    assert game.render() == "X2O\n456\n789"
    first, second = (game.observe(agent) for agent in AGENTS)
    assert first.shape == (3, 3, 3) and first.dtype == np.int8
    assert first[0, 0].tolist() == [1, 0, 0] and second[0, 0].tolist() == [0, 1, 0]  # X in the corner
    assert first[1, 1].tolist() == second[1, 1].tolist() == [0, 0, 1]  # nobody in the centre
    assert game.infos["player_0"]["action_mask"].tolist() == [0, 1, 0, 1, 1, 1, 1, 1, 1]
    assert game.infos["player_1"]["action_mask"].tolist() == [0] * 9


def test_the_end_rewards_both_and_an_illegal_move_loses():
    game = env("tictactoe")
    game.reset()
    for move in (0, 3, 1, 4, 2):
        game.step(move)
    assert game.terminations == {"player_0": True, "player_1": True}
    assert game.rewards == {"player_0": 1.0, "player_1": -1.0}
    game.reset()
    game.step(0)
    game.step(0)
    assert game.rewards == {"player_0": 0, "player_1": -1.0}


def test_unknown_games_are_refused():
    with pytest.raises(EarlError, match="unknown game 'connectfour'; did you mean 'connect4'"):
        env("connectfour")
