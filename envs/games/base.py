"""What a board game is: a state of two bitboards, and the pure functions that are its rules.

Games are values (`Game`), not classes to inherit from: `earl.envs.games.tictactoe.TICTACTOE`,
`earl.envs.games.connect4.CONNECT4`. The environment and the scripted players only see this file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol


class State(NamedTuple):
    """A position: the stones of both players as bitboards. Who moves follows from the number of stones.

    Example:
        State(first=0b1, second=0b100)   # Tic-Tac-Toe after X took cell 1 and O cell 3; X moves
    """

    first: int = 0
    second: int = 0

    @property
    def player(self) -> int:
        """Whose turn it is: 0 for the first player, 1 for the second."""
        return (self.first | self.second).bit_count() & 1


@dataclass(frozen=True, slots=True, eq=False)
class Game:
    """The rules of one game. Moves are integers 0 … len(actions) - 1; actions are what a player writes."""

    name: str
    """Name in the environment registry."""
    marks: tuple[str, str]
    """What the stones of the first and the second player look like."""
    actions: tuple[str, ...]
    """The text of each move."""
    instructions: str
    """The rules in plain words."""
    max_plies: int
    """No game is longer than this, counted in moves of both players."""
    size: tuple[int, int]
    """Rows and columns of the board."""
    centre_first: tuple[int, ...]
    """All moves, those closest to the centre first."""
    legal: Callable[[State], tuple[int, ...]]
    """The legal moves in ascending order; empty exactly when the game is over."""
    play: Callable[[State, int], State]
    """The state after the player to move made a legal move."""
    winner: Callable[[State], int | None]
    """Who won, 0 or 1; None while the game goes on and after a draw."""
    wins: Callable[[State, int], tuple[int, ...]]
    """The moves that would win at once for a player if it were their turn."""
    promise: Callable[[State, int], int]
    """How good the stones of a player look, in points far below 1000; search judges open positions by it."""
    render: Callable[[State], str]
    """The board as text, without a final newline."""
    stone: Callable[[int, int], int]
    """The bit of the cell at a row (0 on top) and a column, as it stands in the bitboards of `State`."""

    def over(self, state: State) -> bool:
        """Whether the game has ended, by a win or a full board."""
        return not self.legal(state)

    def action(self, move: int) -> str:
        """The text of a move."""
        return self.actions[move]

    def move(self, action: str) -> int | None:
        """The move of a text; None when no move is written exactly so."""
        return self.actions.index(action) if action in self.actions else None

    def read(self, text: str) -> State | None:
        """The position that `render` made `text` from; None when it made no such text."""
        rows, columns = self.size
        lines = text.split("\n")
        if len(lines) != rows or any(len(line) != columns for line in lines):
            return None
        stones = [0, 0]
        for row, line in enumerate(lines):
            for column, mark in enumerate(line):
                if mark in self.marks:
                    stones[self.marks.index(mark)] |= self.stone(row, column)
        state = State(*stones)
        return state if self.render(state) == text else None

    def cells(self, state: State) -> tuple[tuple[str, ...], ...]:
        """The mark on each cell, row by row from the top; empty texts where there is no stone."""
        rows, columns = self.size
        return tuple(tuple(self._mark(state, self.stone(row, c)) for c in range(columns)) for row in range(rows))

    def _mark(self, state: State, cell: int) -> str:
        return next((mark for mark, stones in zip(self.marks, state, strict=True) if stones & cell), "")

    def legal_actions(self, state: State) -> tuple[str, ...]:
        """The texts of the legal moves."""
        return tuple([self.actions[move] for move in self.legal(state)])


class Player(Protocol):
    """Who chooses moves on a board: scripted opponents and teachers."""

    def distribution(self, game: Game, state: State) -> tuple[tuple[int, float], ...]:
        """The moves this player may make with their probabilities, all above 0, together 1."""

    def move(self, game: Game, state: State, rng: Random) -> int:
        """One move drawn from `distribution`; `rng` is the only source of chance."""
