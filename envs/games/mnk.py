"""m,n,k-games: k in a row on m rows and n columns, as one rule table. Tic-Tac-Toe is the smallest, Gomoku a larger one.

Bit i of a bitboard is cell i, counted from the top left, row by row.
"""

from collections.abc import Callable
from functools import cache, lru_cache

from earl.envs.games.base import Game, Player, State
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
_CELLS = str.maketrans("012", "." + "".join(MARKS))

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


def show(first: int, second: int, rows: int, columns: int) -> str:
    """One line a row; an empty cell is a dot."""
    # Binary digits read as decimals add up to one digit per cell: 0 empty, 1 first, 2 second player.
    digits = f"{int(f'{first:b}') + 2 * int(f'{second:b}'):0{rows * columns}d}"[::-1].translate(_CELLS)
    return "\n".join([digits[row : row + columns] for row in range(0, rows * columns, columns)])


@cache
def mnk(
    rows: int,
    columns: int,
    line: int,
    name: str = "gomoku",
    instructions: str = INSTRUCTIONS,
    opens_alike: bool = True,
) -> Game:
    cells = rows * columns
    directions = _directions(rows, columns, line)
    lines = [
        sum(1 << cell + step * number for number in range(line))
        for step, starts in directions
        for cell in range(cells)
        if starts >> cell & 1
    ]
    small = cells <= SMALL
    remembered = cache if small else lru_cache(POSITIONS)
    names = [str(cell + 1) if small else f"{LETTERS[cell % columns]}{cell // columns + 1}" for cell in range(cells)]

    labels = "\n".join("".join(names[row : row + columns]) for row in range(0, cells, columns))

    def has_line(stones: int) -> bool:
        for step, starts in directions:
            run = stones & starts
            for number in range(1, line):
                if not run:
                    break
                run &= stones >> step * number
            if run:
                return True
        return False

    def completing(stones: int) -> int:
        """The cells that would complete a line, taken ones included."""
        found = 0
        for step, starts in directions:
            shifted = [stones >> step * number for number in range(line)]
            for gap in range(line):
                run = starts
                for number, stone in enumerate(shifted):
                    if number != gap:
                        run &= stone
                found |= run << step * gap
        return found

    won: Callable[[int], bool] = tuple(map(has_line, range(1 << cells))).__getitem__ if small else has_line

    def winner(state: State) -> int | None:
        """Only who moved last can have a line."""
        first, second = state
        if (first | second).bit_count() & 1:
            return 0 if won(first) else None
        return 1 if won(second) else None

    @remembered
    def legal(state: State) -> tuple[int, ...]:
        if winner(state) is not None:
            return ()
        occupied = state.first | state.second
        return tuple([cell for cell in range(cells) if not occupied >> cell & 1])

    def play(state: State, move: int) -> State:
        assert not (state.first | state.second) >> move & 1, f"cell {move} is taken"
        return state.add(1 << move)

    @remembered
    def wins(state: State, player: int) -> tuple[int, ...]:
        found = completing(state[player])
        return tuple([move for move in legal(state) if found >> move & 1]) if found else ()

    @remembered
    def promise(state: State, player: int) -> int:
        """The lines that the player can still complete, plus the stones already on them."""
        own, other = state[player], state[1 - player]
        return sum([1 + (own & line).bit_count() for line in lines if not other & line])

    @remembered
    def render(state: State) -> str:
        r"""One line a row. A numbered board of three rows: "X2O\n456\n789", any other has dots: "X.O\n...\n..."."""
        shown = show(state.first, state.second, rows, columns)
        if not small:
            return shown
        return "".join([cell if mark == "." else mark for cell, mark in zip(labels, shown, strict=True)])

    return Game(
        name=name,
        marks=MARKS,
        actions=tuple(names),
        instructions=instructions.format(rows=rows, columns=columns, line=line),
        max_plies=cells,
        size=(rows, columns),
        preferred=_centre_first(rows, columns, lines),
        legal=legal,
        play=play,
        winner=winner,
        wins=wins,
        promise=promise,
        render=render,
        stone=lambda row, column: 1 << columns * row + column,
        solvable=cells <= 12 or (line == 3 and cells <= 16),  # 4 × 4 with a line of four takes half a minute
        opens_alike=opens_alike,
    )


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


def tictactoe(seat: int = 0, opponent: Player | None = None, draw_reward: float = 0.0) -> BoardGameEnv:
    return BoardGameEnv(TICTACTOE, seat, opponent, draw_reward)


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
