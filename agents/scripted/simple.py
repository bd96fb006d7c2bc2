"""Strategies that look at most one move ahead."""

from earl.envs.games.base import Game, State


def anything(game: Game, state: State) -> tuple[int, ...]:
    return game.legal(state)


def heuristic(game: Game, state: State) -> tuple[int, ...]:
    """Win if a move wins at once, else block such a move of the opponent, else play closest to the centre."""
    player = state.player
    legal = game.legal(state)
    return (
        game.wins(state, player)
        or game.wins(state, 1 - player)
        or next((move,) for move in game.centre_first if move in legal)
    )
