"""The interface of a board game: a state of two bitboards, and pure functions for its rules.

A game is a `Game` value, not a subclass: `earl.envs.games.tictactoe.TICTACTOE`, `earl.envs.games.connect4.CONNECT4`.
The environment and the scripted players depend on this file only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol, runtime_checkable

from earl.errors import EarlError


class State(NamedTuple):
    """The stones of both players as bitboards; the player to move follows from their number."""

    first: int = 0
    second: int = 0

    @property
    def player(self) -> int:
        return (self.first | self.second).bit_count() & 1

    def add(self, stone: int) -> "State":
        """The state after the player to move has set this stone."""
        return State(self.first, self.second | stone) if self.player else State(self.first | stone, self.second)


@dataclass(frozen=True, slots=True, eq=False)
class Game:
    """The rules of one game. Moves are integers 0 … len(actions) - 1; `actions` holds the text of each."""

    name: str
    marks: tuple[str, str]
    """The characters of the first and the second player's stones."""
    actions: tuple[str, ...]
    instructions: str
    max_plies: int
    """The most moves a game can have, both players together."""
    size: tuple[int, int]
    centre_first: tuple[int, ...]
    """All moves, those closest to the centre first."""
    legal: Callable[[State], tuple[int, ...]]
    """The legal moves in ascending order; empty exactly when the game is over."""
    play: Callable[[State, int], State]
    winner: Callable[[State], int | None]
    """The winner, 0 or 1; None while the game goes on and after a draw."""
    wins: Callable[[State, int], tuple[int, ...]]
    """The moves that would win at once for a player if it were their turn."""
    promise: Callable[[State, int], int]
    """Heuristic value of a player's stones, far below 1000; search evaluates open positions with it."""
    render: Callable[[State], str]
    """The board as text, without a final newline."""
    stone: Callable[[int, int], int]
    """The bit of a cell, by row (0 is the top) and column, in the bitboards of `State`."""

    def over(self, state: State) -> bool:
        return not self.legal(state)

    def read(self, text: str) -> State | None:
        """Invert `render`; None if `text` is not a rendered position."""
        rows, columns = self.size
        lines = text.split("\n")
        if len(lines) != rows or any(len(line) != columns for line in lines):
            return None
        cells = [(mark, self.stone(row, c)) for row, line in enumerate(lines) for c, mark in enumerate(line)]
        state = State(*(sum(stone for mark, stone in cells if mark == own) for own in self.marks))
        return state if self.render(state) == text else None

    def cells(self, state: State) -> tuple[tuple[str, ...], ...]:
        lines = self.render(state).split("\n")
        return tuple(tuple(mark if mark in self.marks else "" for mark in line) for line in lines)

    def legal_actions(self, state: State) -> tuple[str, ...]:
        return tuple([self.actions[move] for move in self.legal(state)])

    def after(self, text: str) -> State:
        """The position after these actions, one a character. Raises EarlError for one that is illegal there."""
        state = State()
        for number, action in enumerate(text, 1):
            if action not in (legal := self.legal_actions(state)):
                one_of = f"use one of {' '.join(legal)}" if legal else "the game is over before it"
                raise EarlError(f"{self.name} {text!r}: move {number}, {action!r}, is illegal; {one_of}")
            state = self.play(state, self.actions.index(action))
        return state


@runtime_checkable
class Player(Protocol):
    """A player on a board: scripted opponents and teachers."""

    def distribution(self, game: Game, state: State) -> tuple[tuple[int, float], ...]:
        """The possible moves with their probabilities, all above 0, with sum 1."""

    def move(self, game: Game, state: State, rng: Random) -> int:
        """Draw a move from `distribution`; `rng` is the only source of randomness."""
