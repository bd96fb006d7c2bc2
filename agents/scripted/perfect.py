"""Alpha-beta search to a fixed depth, and exact play: over the whole tree of games as small as Tic-Tac-Toe (5,478
positions), else by a solver of the game's own."""

from collections.abc import Callable
from fractions import Fraction
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from earl.envs.games.base import Game, State


def anything(game: Game, state: State) -> tuple[int, ...]:
    return game.legal(state)


def along(game: Game, state: State, line: tuple[str, ...]) -> tuple[int, ...]:
    """The move that follows in a line of play, or in its image on a board that is shown as one of the line's; all legal
    ones where that is over, or was left."""
    shown, names = game.shown(state)
    called = _moves_of(game, line).get(shown)
    return (names.index(called),) if called else game.legal(state)


@lru_cache(maxsize=256)
def _moves_of(game: Game, line: tuple[str, ...]) -> dict[State, str]:
    """What is called the line's move on each board that is shown."""
    state, moves = game.deals[0][0], dict[State, str]()
    for action in line:
        (shown, names), move = game.shown(state), game.actions.index(action)
        moves[shown] = names[move]
        state = game.play(state, move)
    return moves


def heuristic(game: Game, state: State) -> tuple[int, ...]:
    """Win if a move wins at once, else block such a move of the opponent, else play closest to the centre."""
    legal, forced = game.legal(state), game.wins(state, state.player) or game.wins(state, 1 - state.player)
    return forced or (next(move for move in game.preferred if move in legal),)


# Search to a fixed depth: negamax with alpha-beta pruning (Knuth and Moore 1975) and a transposition table.

WIN = 1000
"""A won game is worth WIN plus the remaining depth, so that sooner is better. Above any `promise`."""

Table = dict[State, tuple[int, int]]
"""Lower and upper bound of each position's value. Within one search a position occurs at one depth only."""


COMPILED = {"connect4": "connect4:best_ahead"}
"""Games with a compiled search to a fixed depth, in this folder."""


@lru_cache(maxsize=1 << 16)
def best_moves(game: Game, state: State, depth: int) -> tuple[int, ...]:
    """All moves of the best value at `depth` plies (own move included), the same as plain minimax finds."""
    if game.name in COMPILED:
        return tuple(_function(COMPILED[game.name])(state, depth))
    table: Table = {}
    best, moves = -2 * WIN, []
    for move in _ordered(game, game.legal(state)):
        # The window starts one below the best: equal values come back exact, so that ties are found.
        value = -search(game, game.play(state, move), depth - 1, -2 * WIN, 1 - best, table)
        if value > best:
            best, moves = value, [move]
        elif value == best:
            moves.append(move)
    return tuple(sorted(moves))


def search(game: Game, state: State, depth: int, alpha: int, beta: int, table: Table) -> int:
    """The value for the player to move: exact between alpha and beta, else a bound on that side."""
    moves = game.legal(state)
    if not moves:
        return 0 if game.winner(state) is None else -WIN - depth
    player = state.player
    if depth == 0:
        assert game.promise, f"search has no place in {game.name}"
        return game.promise(state, player) - game.promise(state, 1 - player)
    if game.wins(state, player):
        return WIN + depth - 1
    if depth > 1:
        # Stones never move: a threat is met only on its own cell, and two threats cannot be met.
        blocks = game.wins(state, 1 - player)
        if len(blocks) > 1:
            return 2 - WIN - depth
        moves = blocks or moves
    lowest, highest = table.get(state, (-2 * WIN, 2 * WIN))
    if lowest >= beta or lowest == highest:
        return lowest
    if highest <= alpha:
        return highest
    alpha, beta = max(alpha, lowest), min(beta, highest)
    best = -2 * WIN
    for move in _ordered(game, moves):
        best = max(best, -search(game, game.play(state, move), depth - 1, -beta, -max(alpha, best), table))
        if best >= beta:
            break
    table[state] = best if best > alpha else lowest, best if best < beta else highest
    return best


def _ordered(game: Game, moves: tuple[int, ...]) -> list[int]:
    return [move for move in game.preferred if move in moves]


# Exact play. What follows searches the whole tree, `solved` asks the solver that a larger game has.


class Solution(NamedTuple):
    """What a position comes to when both sides play their best: win at the soonest, lose at the latest."""

    value: int
    """For the player to move: 1 win, 0 draw, -1 loss."""
    plies: int
    """Moves until the end, both sides counted."""

    @property
    def rank(self) -> tuple[int, int]:
        return self.value, -self.value * self.plies

    def before(self) -> "Solution":
        """The outcome for the other player, who moved here."""
        return Solution(-self.value, self.plies + 1)


@cache
def outcome(game: Game, state: State) -> Solution:
    if game.over(state):  # the player to move did not make the winning move
        return Solution(0 if game.winner(state) is None else -1, 0)
    return max(outcomes(game, state, outcome).values(), key=lambda end: end.rank)


def outcomes(game: Game, state: State, solver: Callable[[Game, State], Solution]) -> dict[int, Solution]:
    """The outcome of each legal move, for the player who makes it."""
    return {move: solver(game, game.play(state, move)).before() for move in game.legal(state)}


SOLVERS = {"tictactoe": "perfect:outcome", "connect4": "connect4:outcome"}
"""Solved games, each with what solves it, in this folder: imported when asked, for numba takes a second."""


def solved(game: Game, state: State) -> dict[int, Solution]:
    return outcomes(game, state, _function(SOLVERS[game.name]))


def _function(place: str) -> Callable[..., Any]:
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(import_module(f"earl.agents.scripted.{module}"), name)
    return function


SOLVED_FROM = {"connect4": 12}
"""Stones from which on a solver is asked, where it needs seconds for positions of fewer."""


def solved_soon(game: Game, state: State) -> bool:
    return game.name in SOLVERS and (state.first | state.second).bit_count() >= SOLVED_FROM.get(game.name, 0)


@lru_cache(maxsize=1 << 16)
def soonest(_game: Game, state: State) -> tuple[int, ...]:
    """The moves of Connect Four that win soonest, else draw, else lose latest."""
    return tuple(_function("connect4:soonest")(state))


@lru_cache(maxsize=1 << 16)
def practical(game: Game, state: State) -> tuple[int, ...]:
    """The moves of Connect Four that look best four plies ahead; of those that keep the value, once it is known fast.
    Such moves depend on fewer stones than the soonest win, so a small model learns them more easily."""
    return tuple(_function("connect4:practical")(state, SOLVED_FROM[game.name]))


def deepest(game: Game, state: State) -> tuple[int, ...]:
    """The moves that win soonest, else draw, else lose latest, by alpha-beta search to the end."""
    return best_moves(game, state, game.max_plies)


def subgame_perfect(game: Game, state: State) -> tuple[int, ...]:
    """The move by which a player gains most when both go on so: of several the one that ends the game, else the one
    that leaves most to the other player."""
    return (_backward(game, state)[1],)


@lru_cache(maxsize=1 << 16)
def _backward(game: Game, state: State) -> tuple[tuple[float, float], int]:
    """What both seats gain, and the move, by backward induction."""
    if game.over(state):
        return (game.gain(state, 0), game.gain(state, 1)), -1
    own, other = state.player, 1 - state.player
    ends = [(_backward(game, after := game.play(state, move))[0], game.over(after), move) for move in game.legal(state)]
    gains, _, move = max(ends, key=lambda end: (round(end[0][own], 9), end[1], round(end[0][other], 9)))
    return gains, move


@cache
def perfect(game: Game, state: State) -> tuple[int, ...]:
    """All moves that keep the game's value, no matter how soon they win."""
    value = outcome(game, state).value
    return tuple(move for move, end in outcomes(game, state, outcome).items() if end.value == value)


@cache
def expert(game: Game, state: State) -> tuple[int, ...]:
    """The perfect moves with the best expected result against uniformly random replies."""
    results = {move: _expert_value(game, game.play(state, move)) for move in perfect(game, state)}
    best = max(results.values())
    return tuple(move for move, result in results.items() if result == best)


@cache
def _expert_value(game: Game, state: State) -> Fraction:
    """The expert's result (win 1, draw 1/2, loss 0) after its own move; exact, so that ties compare equal."""
    if game.over(state):
        return Fraction(1, 2) if game.winner(state) is None else Fraction(1)
    replies = game.legal(state)
    return sum((_expert_value_before(game, game.play(state, reply)) for reply in replies), Fraction(0)) / len(replies)


@cache
def _expert_value_before(game: Game, state: State) -> Fraction:
    if game.over(state):
        return Fraction(1, 2) if game.winner(state) is None else Fraction(0)
    return max(_expert_value(game, game.play(state, move)) for move in perfect(game, state))
