"""Perfect play by looking at the whole tree; for games as small as Tic-Tac-Toe (5,478 positions)."""

from fractions import Fraction
from functools import cache

from earl.envs.games.base import Game, State


@cache
def game_value(game: Game, state: State) -> int:
    """What both sides playing perfectly leads to for the player to move: 1 win, 0 draw, -1 loss."""
    moves = game.legal(state)
    if not moves:
        return 0 if game.winner(state) is None else -1  # who moves next is the one who did not win
    return max(-game_value(game, game.play(state, move)) for move in moves)


@cache
def perfect(game: Game, state: State) -> tuple[int, ...]:
    """All moves that keep the game's value, whether they win soon or late."""
    value = game_value(game, state)
    return tuple(move for move in game.legal(state) if -game_value(game, game.play(state, move)) == value)


@cache
def expert(game: Game, state: State) -> tuple[int, ...]:
    """The perfect moves that lead to the best expected result against uniformly random replies."""
    results = {move: _after(game, game.play(state, move)) for move in perfect(game, state)}
    best = max(results.values())
    return tuple(move for move, result in results.items() if result == best)


@cache
def _after(game: Game, state: State) -> Fraction:
    """The expert's result (win 1, draw 1/2, loss 0) after its own move; exact, so that equals are equal."""
    if game.over(state):
        return Fraction(1, 2) if game.winner(state) is None else Fraction(1)
    replies = game.legal(state)
    return sum((_before(game, game.play(state, reply)) for reply in replies), Fraction(0)) / len(replies)


@cache
def _before(game: Game, state: State) -> Fraction:
    """The expert's result when it is to move."""
    if game.over(state):
        return Fraction(1, 2) if game.winner(state) is None else Fraction(0)
    return max(_after(game, game.play(state, move)) for move in perfect(game, state))
