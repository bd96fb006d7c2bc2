"""The interface of a game for two: a state, and pure functions for its rules.

A game is a `Game` value, not a subclass: `earl.envs.games.mnk.TICTACTOE`, `earl.envs.games.connect4.CONNECT4`.
The environment and the scripted players depend on this file only.
"""

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple, Protocol, runtime_checkable

from earl.errors import EarlError


class State(NamedTuple):
    """The stones of both players as bitboards; the player to move follows from their number. A game may have another
    kind of state: a value with a hash, and `player`, whose turn it is."""

    first: int = 0
    second: int = 0

    @property
    def player(self) -> int:
        return (self.first | self.second).bit_count() & 1

    def add(self, stone: int) -> "State":
        """The state after the player to move has set this stone."""
        first, second = self
        return new_state((first, second | stone) if self.player else (first | stone, second))


new_state = partial(tuple.__new__, State)
"""`State` of a pair, in half the time of `State(*pair)`."""

Image = tuple[Callable[[int], int], tuple[str, ...]]
"""A bitboard turned or mirrored, and what each move of the board is called then."""
IMAGES = 1 << 13
"""Images of boards that are remembered: all of a small game."""

Turn = tuple[Any, int, tuple[int, ...], tuple[str, ...]]
"""A state, the player to move, the legal moves, and their actions."""


@dataclass(frozen=True, slots=True, eq=False)
class Game:
    """The rules of one game. Moves are integers 0 … len(actions) - 1; `actions` holds the text of each."""

    name: str
    marks: tuple[str, str]
    """What the first and the second player are called; on a board, the character of their stones."""
    actions: tuple[str, ...]
    instructions: str
    max_plies: int
    """No game has more moves, both players together."""
    legal: Callable[[Any], tuple[int, ...]]
    """The legal moves in ascending order; empty exactly when the game is over."""
    play: Callable[[Any, int], Any]
    winner: Callable[[Any], int | None]
    """The winner, 0 or 1; None while the game goes on and after a draw."""
    render: Callable[[Any], str] = lambda _state: ""
    """What lies open to both players as text, without a final newline."""

    preferred: tuple[int, ...] = ()
    """All moves, in the order in which the heuristic prefers them and search tries them."""
    wins: Callable[[Any, int], tuple[int, ...]] = lambda _state, _player: ()
    """The moves that would win at once for a player if it were their turn; none in games where the other player can
    meet such a threat otherwise than by making that move."""
    promise: Callable[[Any, int], int] | None = None
    """Heuristic value of a player's stones, far below 1000; search evaluates open positions with it. None where search
    has no place: what a player cannot see matters, or one does not win what the other loses."""
    solvable: bool = False
    """Whether the whole game tree is searched in seconds."""

    size: tuple[int, int] = (0, 0)
    """Rows and columns of a board of two kinds of stones."""
    stone: Callable[[int, int], int] = lambda _row, _column: 0
    """The bit of a cell, by row (0 is the top) and column, in the bitboards of a state."""
    stones: Callable[[int, int, int], Any] = lambda first, second, _player: State(first, second)
    """The state of two bitboards and the player to move."""

    canonical: bool = False
    """Whether both seats are shown their own stones by the first mark and the other's by the second: what one seat
    learns of stones then holds for the other (the canonical form of AlphaZero's boards)."""

    columns: bool = False
    """Whether players are shown a line for each column, its stones from the lowest up, in place of the rows."""

    image: Callable[[Any], tuple[Any, tuple[str, ...]]] | None = None
    """A state as players are shown it, and what they call each move there, where boards that are turned or mirrored
    images of each other are shown alike."""

    deals: tuple[tuple[Any, float], ...] = ((State(), 1.0),)
    """The states that a game begins with, and the probability of each: all that is dealt in a game, now or later."""
    sees: Callable[[Any, int], str] | None = None
    """All that a seat may know of a state, where that is not what `render` shows. It tells the state, moves of both
    included, from every other one that the seat has seen differently: the seat's information set."""
    payoff: Callable[[Any, int], float] | None = None
    """What the end is worth to a seat, where that is more than who won."""
    stake: float = 1.0
    """The most that is lost or won: rewards are payoffs divided by it."""
    opens_alike: bool = True
    """Whether an opponent's moves before the agent's first one follow from the task, as a deal does, and so are the
    same in a group of episodes; else from the episode."""

    advance: Callable[[Any, int], Turn] | None = None
    """The turn after a move, where one function tells it in less time than `play` and `legal`."""
    positions: int = 0
    """How many positions and moves an environment remembers; as many as there are in a small game, else none."""

    @property
    def dealt(self) -> bool:
        return len(self.deals) > 1

    def deal(self, uniform: float) -> Any:
        """The deal that a number within 0 … 1 draws."""
        below = _below(self)
        return self.deals[bisect(below, uniform * below[-1], hi=len(below) - 1)][0]

    def seen(self, state: Any, seat: int) -> str:
        """What a seat is told of a state."""
        if self.sees:
            return self.sees(state, seat)
        if self.image:
            state = self.image(state)[0]
        board = self.render(self._swapped(state, seat) if seat else state)
        return f"{self.marks[seat]}{_by_columns(board)}" if self.columns else f"{self.marks[seat]} {board}"

    def shown(self, state: Any) -> tuple[Any, tuple[str, ...]]:
        """The state as players are shown it, and what they call each move there."""
        return self.image(state) if self.image else (state, self.actions)

    def shown_actions(self, state: Any) -> tuple[str, ...]:
        """What players call the legal moves there, in the order of `legal`."""
        names = self.shown(state)[1]
        return tuple([names[move] for move in self.legal(state)])

    def with_canonical_boards(self, stones: str) -> "Game":
        """The game with canonical boards, and instructions that say so, in which the stones are called `stones`."""
        own, other = self.marks
        wordings = {
            "told your mark,": "told which player you are,",
            f"{own} and {other} are {stones},": f"{own} are your own {stones}, {other} those of the other player,",
        }
        return replace(self, canonical=True, instructions=self._reworded(wordings))

    def with_columns(self) -> "Game":
        """The game whose boards are shown by columns, and instructions that say so."""
        wordings = {
            "then the board, top row first:": "then the stones of each column on a line of its own, lowest first:",
            ", a dot is an empty cell.": ".",
        }
        return replace(self, columns=True, instructions=self._reworded(wordings))

    def with_images(self, images: Sequence[Image]) -> "Game":
        """The game in which boards that are images of each other are shown alike, as the one whose bitboards are the
        least, and instructions that say so."""

        @lru_cache(IMAGES)
        def image(state: State) -> tuple[State, tuple[str, ...]]:
            found = [(State(turn(state.first), turn(state.second)), n) for n, (turn, _) in enumerate(images)]
            least, number = min(found)
            return least, images[number][1]

        asked = "Answer with"
        text = self._reworded({asked: f"The board may be shown turned or mirrored. {asked}"})
        return replace(self, image=image, instructions=text)

    def _reworded(self, wordings: Mapping[str, str]) -> str:
        text = self.instructions
        for before, after in wordings.items():
            assert before in text, f"the instructions of {self.name} do not say {before!r}"
            text = text.replace(before, after)
        return text

    def _swapped(self, state: Any, seat: int) -> Any:
        return self.stones(state.second, state.first, 1 - state.player) if self.canonical and seat else state

    def gain(self, state: Any, seat: int) -> float:
        """What the end is worth to a seat."""
        if self.payoff:
            return self.payoff(state, seat)
        winner = self.winner(state)
        return 0.0 if winner is None else 1.0 if winner == seat else -1.0

    def over(self, state: Any) -> bool:
        return not self.legal(state)

    def state_of(self, observation: str) -> Any:
        """The state that `seen` shows a player whose turn it is, ignoring any lines below; None if it shows none."""
        rows, columns = self.size
        mark, _, text = observation.partition("\n" if self.columns else " ")
        lines = text.split("\n")[: columns if self.columns else rows]
        return self.read("\n".join(_by_rows(lines, rows) if self.columns else lines), int(mark == self.marks[1]))

    def read(self, text: str, seat: int = 0) -> Any:
        """The state that a seat, whose turn it is, is shown as `text`; None if this is not a rendered position."""
        rows, columns = self.size
        lines = text.split("\n")
        if not rows or len(lines) != rows or any(len(line) != columns for line in lines):
            return None
        cells = [(mark, self.stone(row, c)) for row, line in enumerate(lines) for c, mark in enumerate(line)]
        first, second = (sum(stone for mark, stone in cells if mark == own) for own in self.marks)
        state = self._swapped(self.stones(first, second, seat), seat)
        return state if self.render(self._swapped(state, seat)) == text else None

    def cells(self, state: Any) -> tuple[tuple[str, ...], ...]:
        lines = self.render(state).split("\n")
        return tuple(tuple(mark if mark in self.marks else "" for mark in line) for line in lines)

    def legal_actions(self, state: Any) -> tuple[str, ...]:
        return self.named(self.legal(state))

    def named(self, moves: tuple[int, ...]) -> tuple[str, ...]:
        return tuple([self.actions[move] for move in moves])

    def after(self, text: str) -> Any:
        """The position after these actions, one a character. Raises EarlError for one that is illegal there."""
        state = self.deals[0][0]
        for number, action in enumerate(text, 1):
            if action not in (legal := self.legal_actions(state)):
                one_of = f"use one of {' '.join(legal)}" if legal else "the game is over before it"
                raise EarlError(f"{self.name} {text!r}: move {number}, {action!r}, is illegal; {one_of}")
            state = self.play(state, self.actions.index(action))
        return state


def _by_columns(board: str) -> str:
    """A line break and the stones of each column, the lowest first."""
    return "".join(["\n" + "".join(cells[::-1]).rstrip(".") for cells in zip(*board.split("\n"), strict=True)])


def _by_rows(lines: list[str], rows: int) -> list[str]:
    """The rows of columns of stones, the top row first; more than `rows` if a column is too high."""
    return ["".join(line[row : row + 1] or "." for line in lines) for row in range(max(rows, *map(len, lines)))][::-1]


@cache
def _below(game: Game) -> list[float]:
    """The probability of each deal and those before it."""
    return [*accumulate(chance for _, chance in game.deals)]


@runtime_checkable
class Player(Protocol):
    """A player on a board: scripted opponents and teachers."""

    def distribution(self, game: Game, state: State) -> tuple[tuple[int, float], ...]:
        """The possible moves with their probabilities, all above 0, with sum 1."""

    def move(self, game: Game, state: State, rng: Random) -> int:
        """Draw a move from `distribution`; `rng` is the only source of randomness."""
