"""Othello on bitboards, on a board of 4 × 4, 6 × 6 or 8 × 8. Bit i is cell i, counted from the top left, row by row."""

from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from earl.envs.games.base import Game, Player
from earl.envs.games.env import BoardGameEnv
from earl.envs.games.mnk import CELL, LETTERS, MARKS, board_text, cell_table, cells_of
from earl.errors import EarlError

SIZES = (4, 6, 8)
SOLVED = 4
"""The largest size whose whole tree is searched."""
PASS = "pass"
POSITIONS = 1 << 13
"""Of a game, that are remembered."""


class Discs(NamedTuple):
    """The discs of both players as bitboards. They do not tell whose turn it is, since moves may be passed."""

    first: int
    second: int
    plies: int = 0

    @property
    def player(self) -> int:
        return self.plies & 1


new_discs = partial(tuple.__new__, Discs)
"""`Discs` of a tuple, in half the time."""

ZERO = np.uint64(0)
ROWS, COLUMNS = (0, 1, 1, 1), (1, 0, 1, -1)
"""Of a step in each direction; the other four are back. A run of discs on `inner` cells cannot wrap around an edge."""


def reachable(own: Any, other: Any, board: Any, inner: Any, size: int) -> Any:
    """The empty cells behind a run of the other player's discs that begins at an own one."""
    found = ZERO
    for direction in range(4):
        step = np.uint64(ROWS[direction] * size + COLUMNS[direction])
        between = other & (inner if COLUMNS[direction] else board)
        up, down = between & (own << step), between & (own >> step)
        for _ in range(size - 3):  # the longest run has two discs less than the board, and one is found
            up, down = up | between & (up << step), down | between & (down >> step)
        found |= up << step | down >> step
    return found & (board ^ (own | other))


def turned(own: Any, other: Any, disc: Any, board: Any, inner: Any, size: int) -> Any:
    """The other player's discs that a new one turns."""
    found = ZERO
    for direction in range(4):
        step = np.uint64(ROWS[direction] * size + COLUMNS[direction])
        between = other & (inner if COLUMNS[direction] else board)
        for back in range(2):
            run, end = ZERO, disc >> step if back else disc << step
            while end & between:
                run, end = run | end, end >> step if back else end << step
            if end & own:
                found |= run
    return found


@cache
def _compiled() -> tuple[Callable[..., int], Callable[..., int]]:
    from earl.compiled import compiled  # here, since to import numba takes half a second

    boards = "uint64, uint64, uint64, uint64"
    return compiled(reachable, f"uint64({boards}, int64)"), compiled(turned, f"uint64({boards}, uint64, int64)")


class DiscRules:
    """The rules on a board of one size."""

    def __init__(self, size: int) -> None:
        self.size, self.cells = size, size * size
        self.pass_move, self.table = self.cells, cell_table(self.cells)
        left = sum(1 << size * row for row in range(size))
        self.board = (1 << self.cells) - 1
        self.inner = self.board & ~(left | left << size - 1)
        self.corners = 1 | 1 << size - 1 | 1 << self.cells - size | 1 << self.cells - 1
        self.start = _start(size)
        self.legal = lru_cache(POSITIONS)(self._legal)

    def reachable(self, own: int, other: int) -> int:
        return _compiled()[0](own, other, self.board, self.inner, self.size)

    def _legal(self, state: Discs) -> tuple[int, ...]:
        first, second, plies = state
        if state == self.start:  # without numba, so that a game is begun at once
            return cells_of(int(reachable(first, second, self.board, self.inner, self.size)), self.table)
        own, other = (second, first) if plies & 1 else (first, second)
        if found := self.reachable(own, other):
            return cells_of(found, self.table)
        return (self.pass_move,) if self.reachable(other, own) else ()

    def play(self, state: Discs, move: int) -> Discs:
        first, second, plies = state
        if move == self.pass_move:
            return Discs(first, second, plies + 1)
        disc, own, other = 1 << move, state[plies & 1], state[1 - (plies & 1)]
        flips = _compiled()[1](own, other, disc, self.board, self.inner, self.size)
        assert flips and not (first | second) & disc, f"cell {move} turns nothing"
        own, other = own | disc | flips, other & ~flips
        return new_discs((other, own, plies + 1) if plies & 1 else (own, other, plies + 1))

    def winner(self, state: Discs) -> int | None:
        lead = state.first.bit_count() - state.second.bit_count()
        return None if lead == 0 or self.legal(state) else int(lead < 0)

    def promise(self, state: Discs, player: int) -> int:
        """Cells that the player could take, and many points for a corner."""
        own, other = state[player], state[1 - player]
        return self.reachable(own, other).bit_count() + 12 * (own & self.corners).bit_count()

    def worth(self, cell: int) -> tuple[int, int]:
        """Corners first, then edges by their distance from corners, the cells beside corners last."""
        low, high = sorted(min(place, self.size - 1 - place) for place in divmod(cell, self.size))
        beside = low + high == 1 or (low, high) == (1, 1)
        return 3 if beside else min(low + high, 1 + min(low, 1)), cell


@cache
def othello_game(size: int) -> Game:
    rules, cells = DiscRules(size), size * size
    names = (*(f"{LETTERS[cell % size]}{cell // size + 1}" for cell in range(cells)), PASS)
    return Game(
        name="othello",
        marks=MARKS,
        actions=names,
        instructions=(
            f"You play Othello on a board of {size} rows and {size} columns. X moves first. A move puts a disc on an "
            "empty cell so that discs of the other player stand in an unbroken row, column or diagonal between it and "
            "another disc of yours: all of these become yours. Who cannot do so passes. When neither can, whoever has "
            "more discs wins. You are told your mark, then the board, top row first: X and O are discs, a dot is an "
            f"empty cell. Answer with the cell you take, {CELL}, or with {PASS}; and nothing else."
        ),
        max_plies=2 * (cells - 4),  # no two passes follow each other
        size=(size, size),
        preferred=(*sorted(range(cells), key=rules.worth), rules.pass_move),
        legal=rules.legal,
        play=rules.play,
        winner=rules.winner,
        promise=rules.promise,
        render=board_text(size, size),
        stone=lambda row, column: 1 << size * row + column,
        stones=Discs,
        deals=((rules.start, 1.0),),
        solvable=size <= SOLVED,
    )


def _start(size: int) -> Discs:
    """Four discs in the middle; the one at the top right of them is the first player's."""
    low, high = size // 2 - 1, size // 2
    first = 1 << size * low + high | 1 << size * high + low
    return Discs(first, 1 << size * low + low | 1 << size * high + high)


def othello(seat: int = 0, opponent: Player | None = None, draw_reward: float = 0.0, size: int = 6) -> BoardGameEnv:
    if size not in SIZES:
        raise EarlError(f"othello has no board of size {size}; use one of {', '.join(map(str, SIZES))}")
    return BoardGameEnv(othello_game(size), seat, opponent, draw_reward)
