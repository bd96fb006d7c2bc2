"""m,n,k-games: k in a row on m rows and n columns, as one rule table. Tic-Tac-Toe is the smallest, Gomoku a larger one.

Bit i of a bitboard is cell i, counted from the top left, row by row.
"""

from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any

from earl.envs.games.base import Game, Image, Player, State
from earl.envs.games.env import BoardGameEnv
from earl.errors import EarlError

MARKS = ("X", "O")
LETTERS = "abcdefghi"
LARGEST = len(LETTERS)
"""Rows and columns of the largest board: all lines of five together are worth less than a search's 1000."""
SMALL = 9
"""Cells of the largest board whose cells are numbered, and show their number while they are empty, and whose positions,
5,478 in Tic-Tac-Toe, are all remembered."""
POSITIONS = 1 << 13
"""Of a larger board, that are remembered."""

CELL = (
    "the letter of its column (a is the left one) and the number of its row (1 is the top one), such as b1 for the "
    "second cell of the top row"
)
INSTRUCTIONS = (
    "You play on a board of {rows} rows and {columns} columns. X moves first, then the players take turns to put one "
    "stone on an empty cell. Whoever has {line} stones or more in a row, column or diagonal wins; a full board without "
    "such a line is a draw. You are told your mark, then the board, top row first: X and O are stones, a dot is an "
    f"empty cell. Answer with the cell you take, {CELL}, and nothing else."
)


def board_text(rows: int, columns: int) -> Callable[[Any], str]:
    """A function that draws two bitboards, one line a row; an empty cell is a dot."""
    cells, full = rows * columns, (1 << columns) - 1
    both_rows = full | full << cells

    @cache
    def row(both: int) -> str:
        marks = (MARKS[0] if both >> c & 1 else MARKS[1] if both >> c + cells & 1 else "." for c in range(columns))
        return "".join(marks)

    def text(state: Any) -> str:
        both = state[0] | state[1] << cells
        return "\n".join([row(both >> start & both_rows) for start in range(0, cells, columns)])

    return text


def cell_table(cells: int) -> list[list[tuple[int, ...]]]:
    """The cells of each byte of a bitboard, by its value."""
    starts = range(0, cells, 8)
    return [[tuple(start + bit for bit in range(8) if byte >> bit & 1) for byte in range(256)] for start in starts]


def cells_of(board: int, table: list[list[tuple[int, ...]]]) -> tuple[int, ...]:
    """In ascending order."""
    found: tuple[int, ...] = ()
    for cells, byte in zip(table, board.to_bytes(len(table), "little"), strict=True):
        if byte:
            found += cells[byte]
    return found


class LineRules:
    """The rules of one board; `line` in a row win."""

    def __init__(self, rows: int, columns: int, line: int) -> None:
        self.line, self.cells = line, rows * columns
        self.small, self.full = self.cells <= SMALL, (1 << self.cells) - 1
        self.names = tuple(_name(cell, columns, self.small) for cell in range(self.cells))
        self.labels = "\n".join("".join(self.names[row : row + columns]) for row in range(0, self.cells, columns))
        self.table = cell_table(self.cells)
        self.directions = _directions(rows, columns, line)
        self.lines = [
            sum(1 << cell + step * number for number in range(line))
            for step, starts in self.directions
            for cell in range(self.cells)
            if starts >> cell & 1
        ]
        self.won: Callable[[int], bool] = self.has_line
        if self.small:
            self.won = tuple(map(self.has_line, range(1 << self.cells))).__getitem__
        remembered = cache if self.small else lru_cache(POSITIONS)
        self.legal, self.wins = remembered(self._legal), remembered(self._wins)
        self.promise = remembered(self._promise)
        self.text = board_text(rows, columns)
        self.render = self._numbered if self.small else self.text

    def has_line(self, stones: int) -> bool:
        for step, starts in self.directions:
            run = stones & starts
            for number in range(1, self.line):
                if not run:
                    break
                run &= stones >> step * number
            if run:
                return True
        return False

    def completing(self, stones: int) -> int:
        """The cells that would complete a line, taken ones included."""
        found = 0
        for step, starts in self.directions:
            shifted = [stones >> step * number for number in range(self.line)]
            for gap in range(self.line):
                run = starts
                for number, stone in enumerate(shifted):
                    if number != gap:
                        run &= stone
                found |= run << step * gap
        return found

    def winner(self, state: State) -> int | None:
        """Only who moved last can have a line."""
        first, second = state
        if (first | second).bit_count() & 1:
            return 0 if self.won(first) else None
        return 1 if self.won(second) else None

    def _legal(self, state: State) -> tuple[int, ...]:
        if self.winner(state) is not None:
            return ()
        return cells_of(self.full ^ (state.first | state.second), self.table)

    def play(self, state: State, move: int) -> State:
        assert not (state.first | state.second) >> move & 1, f"cell {move} is taken"
        return state.add(1 << move)

    def _wins(self, state: State, player: int) -> tuple[int, ...]:
        found = self.completing(state[player])
        return tuple([move for move in self.legal(state) if found >> move & 1]) if found else ()

    def _promise(self, state: State, player: int) -> int:
        """The lines that the player can still complete, plus the stones already on them."""
        own, other = state[player], state[1 - player]
        return sum([1 + (own & line).bit_count() for line in self.lines if not other & line])

    def _numbered(self, state: State) -> str:
        r"""Empty cells show their number: "X2O\n456\n789"."""
        marks = zip(self.labels, self.text(state), strict=True)
        return "".join([label if mark == "." else mark for label, mark in marks])


@cache
def mnk(
    rows: int,
    columns: int,
    line: int,
    name: str = "gomoku",
    instructions: str = INSTRUCTIONS,
    opens_alike: bool = True,
) -> Game:
    rules, cells = LineRules(rows, columns, line), rows * columns
    return Game(
        name=name,
        marks=MARKS,
        actions=rules.names,
        instructions=instructions.format(rows=rows, columns=columns, line=line),
        max_plies=cells,
        size=(rows, columns),
        preferred=_centre_first(rows, columns, rules.lines),
        legal=rules.legal,
        play=rules.play,
        winner=rules.winner,
        wins=rules.wins,
        promise=rules.promise,
        render=rules.render,
        stone=lambda row, column: 1 << columns * row + column,
        solvable=cells <= 12 or (line == 3 and cells <= 16),  # 4 × 4 with a line of four takes half a minute
        opens_alike=opens_alike,
        positions=4 * POSITIONS if rules.small else 0,  # Tic-Tac-Toe has 16,167 moves
    )


def _name(cell: int, columns: int, small: bool) -> str:
    return str(cell + 1) if small else f"{LETTERS[cell % columns]}{cell // columns + 1}"


def _directions(rows: int, columns: int, line: int) -> list[tuple[int, int]]:
    """The step of a line in each direction, and the cells at which such a line begins."""

    def starts(last_row: int, first_column: int, last_column: int) -> int:
        return sum(1 << columns * r + c for r in range(last_row + 1) for c in range(first_column, last_column + 1))

    down, right = rows - line, columns - line
    all_rows, all_columns = rows - 1, columns - 1
    found = [
        (1, starts(all_rows, 0, right)),
        (columns, starts(down, 0, all_columns)),
        (columns + 1, starts(down, 0, right)),
        (columns - 1, starts(down, line - 1, all_columns)),
    ]
    return [(step, cells) for step, cells in found if cells]


def _centre_first(rows: int, columns: int, lines: list[int]) -> tuple[int, ...]:
    """Those as many king's steps from the centre by the number of lines through them."""

    def key(cell: int) -> tuple[int, int, int]:
        row, column = divmod(cell, columns)
        away = max(abs(2 * row - rows + 1), abs(2 * column - columns + 1))
        return away, -sum(line >> cell & 1 for line in lines), cell

    return tuple(sorted(range(rows * columns), key=key))


TICTACTOE = mnk(
    3,
    3,
    3,
    "tictactoe",
    "You play Tic-Tac-Toe on a board of three rows of three cells. X moves first, then the players take "
    "turns. Whoever has three marks in a row, column or diagonal wins; a full board without such a line "
    "is a draw. You are told your mark, then the board: X and O are taken cells, a digit is an empty "
    "cell. Answer with the digit of the empty cell you take and nothing else.",
    opens_alike=False,
)


CANONICAL = TICTACTOE.with_canonical_boards("taken cells")


def square_images(size: int, names: tuple[str, ...]) -> list[Image]:
    """The eight images of a square board, on which move i is cell i."""
    cells = list(range(size * size))
    images = [cells, [size * (cell // size) + size - 1 - cell % size for cell in cells]]
    for _ in range(3):
        images += [[size * (cell % size) + size - 1 - cell // size for cell in image] for image in images[-2:]]

    def turned(image: list[int], stones: int) -> int:
        return sum([1 << to for cell, to in enumerate(image) if stones >> cell & 1])

    return [(partial(turned, image), tuple([names[to] for to in image])) for image in images]


ALIKE = {game: game.with_images(square_images(3, game.actions)) for game in (TICTACTOE, CANONICAL)}
"""Each with boards that are shown alike where they are images of each other."""


def tictactoe(
    seat: int = 0,
    opponent: Player | None = None,
    draw_reward: float = 0.0,
    canonical: bool = False,
    symmetry: bool = False,
) -> BoardGameEnv:
    """canonical: both seats see their own marks as X. symmetry: boards that are turned or mirrored images of each other
    are shown alike, 765 positions in place of 5,478."""
    game = CANONICAL if canonical else TICTACTOE
    return BoardGameEnv(ALIKE[game] if symmetry else game, seat, opponent, draw_reward)


def gomoku(
    seat: int = 0,
    opponent: Player | None = None,
    draw_reward: float = 0.0,
    rows: int = 7,
    columns: int = 7,
    line: int = 5,
) -> BoardGameEnv:
    """`line` in a row on a board of any size up to 9 × 9."""
    if not (1 <= rows <= LARGEST and 1 <= columns <= LARGEST and 3 <= line <= max(rows, columns)):
        raise EarlError(
            f"gomoku with {line} in a row on {rows} × {columns} cells is no game; use 1 … {LARGEST} rows and columns, "
            "and a line of at least 3 that fits"
        )
    return BoardGameEnv(mnk(rows, columns, line), seat, opponent, draw_reward)
