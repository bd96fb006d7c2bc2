"""Connect Four on bitboards. A line of four lies along a shift of 1 (column), 7 (row), 6 or 8 (diagonals).

Column c owns bits 7c … 7c+6, the bottom cell lowest; the seventh bit of each column stays empty, so that shifted boards
never touch a neighbour:

     5 12 19 26 33 40 47      top row of the board
     0  7 14 21 28 35 42      bottom row
"""

from itertools import product

from earl.envs.games.base import Game, Image, Player, State, Turn, new_state
from earl.envs.games.env import BoardGameEnv

ROWS, COLUMNS = 6, 7
BOTTOM = sum(1 << 7 * column for column in range(COLUMNS))
BOARD = BOTTOM * 0b111111
COLUMN = tuple(0b111111 << 7 * column for column in range(COLUMNS))
TOP = BOTTOM << ROWS - 1
MIDDLE = (COLUMN[3], COLUMN[2] | COLUMN[3] | COLUMN[4], BOARD & ~(COLUMN[0] | COLUMN[6]))
"""The one, three and five central columns: a stone counts once for each group that contains it."""
MARKS = ("X", "O")
ACTIONS = tuple("1234567")
LOWEST = tuple(1 << 7 * column for column in range(COLUMNS))
HERE, ONE, TWO, THREE = (
    sum(1 << 72 * copy + steps * shift for copy, shift in enumerate((1, 7, 6, 8))) for steps in range(4)
)
"""Factors that make four copies of a board, one for each direction, which are moved by so many steps along it."""

# The text of a board, eight bytes a line, has the line's stones in a copy of the bitboard that is shifted so that bit 6
# is the line's leftmost cell, and bit 13 the next one: each cell then has a bit in a byte of its own.
LINES = sum(1 << 64 * (ROWS - 1 - row) + 6 - row for row in range(ROWS))
CELLS = sum(1 << 64 * line + 7 * column + 6 for line in range(ROWS) for column in range(COLUMNS))
LINE_ENDS = sum(ord("\n") << 64 * line + 56 for line in range(ROWS - 1))
FIRST = bytes(1 << bit for bit in range(7))
SECOND = bytes(3 * bit for bit in FIRST)
CHARACTERS = bytes.maketrans(b"\0" + FIRST + SECOND, b"." + 7 * b"X" + 7 * b"O")


def _open(full: tuple[bool, ...]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    columns = tuple(column for column in range(COLUMNS) if not full[column])
    return columns, tuple(ACTIONS[column] for column in columns)


OPEN = {
    sum(TOP & cells for cells, is_full in zip(COLUMN, full, strict=True) if is_full): _open(full)
    for full in product((False, True), repeat=COLUMNS)
}
"""The columns that are not full, as moves and as actions, by the stones of the top row."""


def has_four(stones: int) -> bool:
    up, right, rising, falling = stones & stones >> 1, stones & stones >> 7, stones & stones >> 8, stones & stones >> 6
    return bool(up & up >> 2 | right & right >> 14 | rising & rising >> 16 | falling & falling >> 12)


def winner(state: State) -> int | None:
    first, second = state
    if (first | second).bit_count() & 1:
        return 0 if has_four(first) else None
    return 1 if has_four(second) else None


def legal(state: State) -> tuple[int, ...]:
    first, second = state
    occupied = first | second
    if has_four(first if occupied.bit_count() & 1 else second):
        return ()
    return OPEN[occupied & TOP][0]


def play(state: State, move: int) -> State:
    first, second = state
    occupied = first | second
    # Adding the column's bottom bit carries through its stones to the lowest empty cell.
    stone = occupied + LOWEST[move] & COLUMN[move]
    assert stone, f"column {move} is full"
    return new_state((first, second | stone) if occupied.bit_count() & 1 else (first | stone, second))


def advance(state: State, move: int) -> Turn:
    """`play` and `legal` in one. To multiply four times takes Python less time than the shifts of `has_four`."""
    first, second = state
    occupied = first | second
    stone = occupied + LOWEST[move] & COLUMN[move]
    assert stone, f"column {move} is full"
    plies = occupied.bit_count()
    if plies & 1:
        second |= stone
        own, player = second, 0
    else:
        first |= stone
        own, player = first, 1
    after = new_state((first, second))
    if plies > 5 and own * HERE & own * ONE & own * TWO & own * THREE:
        return after, player, (), ()
    moves, actions = OPEN[(occupied | stone) & TOP]
    return after, player, moves, actions


def completing(stones: int, occupied: int) -> int:
    """The empty cells, reachable now or not, that would complete a line of four for these stones."""
    cells = stones << 1 & stones << 2 & stones << 3  # on top of three in a column
    for shift in (7, 6, 8):
        pairs = stones << shift & stones << 2 * shift
        cells |= pairs & stones << 3 * shift | pairs & stones >> shift
        pairs = stones >> shift & stones >> 2 * shift
        cells |= pairs & stones >> 3 * shift | pairs & stones << shift
    return cells & BOARD & ~occupied


def wins(state: State, player: int) -> tuple[int, ...]:
    occupied = state.first | state.second
    cells = completing(state[player], occupied) & (occupied + BOTTOM)
    if not cells:
        return ()
    return tuple(move for move in legal(state) if cells & COLUMN[move])


def promise(state: State, player: int) -> int:
    """Eight points for each empty cell that would complete a line, plus points for stones in the middle."""
    stones = state[player]
    cells = completing(stones, state.first | state.second)
    return 8 * cells.bit_count() + sum([(stones & columns).bit_count() for columns in MIDDLE])


def render(state: State) -> str:
    """Six rows of seven, the top row first: "." is empty, "X" and "O" are stones."""
    first, second = state
    cells = (first * LINES & CELLS) + 3 * (second * LINES & CELLS) + LINE_ENDS
    return cells.to_bytes(8 * ROWS - 1, "little").translate(CHARACTERS).decode("ascii")


def stone(row: int, column: int) -> int:
    return 1 << (7 * column + ROWS - 1 - row)


CONNECT4 = Game(
    name="connect4",
    marks=MARKS,
    actions=ACTIONS,
    instructions=(
        "You play Connect Four on a board of six rows and seven columns. X moves first, then the players "
        "take turns to drop one stone into a column, where it falls to the lowest empty cell. Whoever has "
        "four stones in a row, column or diagonal wins; a full board without such a line is a draw. "
        "You are told your mark, then the board, top row first: X and O are stones, a dot is an empty cell. "
        "Answer with the number of the column you drop a stone into, 1 (left) to 7 (right), and nothing else."
    ),
    max_plies=ROWS * COLUMNS,
    size=(ROWS, COLUMNS),
    preferred=(3, 2, 4, 1, 5, 0, 6),
    legal=legal,
    play=play,
    winner=winner,
    wins=wins,
    promise=promise,
    render=render,
    stone=stone,
    solvable=True,
    opens_alike=False,
    advance=advance,
)


CANONICAL = CONNECT4.with_canonical_boards("stones")


def mirrored(stones: int) -> int:
    """The bitboard with its columns in the opposite order."""
    other = 0
    for column in range(COLUMNS):
        other = other << 7 | stones >> 7 * column & 127
    return other


IMAGES: list[Image] = [(int, ACTIONS), (mirrored, ACTIONS[::-1])]
BY_COLUMNS = {game: game.with_columns() for game in (CONNECT4, CANONICAL)}
"""Each with boards that are shown by columns."""
ALIKE = {game: game.with_images(IMAGES) for game in (CONNECT4, CANONICAL, *BY_COLUMNS.values())}
"""Each with boards that are shown alike where they mirror each other."""


def connect4(
    seat: int = 0,
    opponent: Player | None = None,
    draw_reward: float = 0.0,
    canonical: bool = False,
    symmetry: bool = False,
    columns: bool = False,
) -> BoardGameEnv:
    """canonical: both seats see their own stones as X. symmetry: boards that mirror each other are shown alike.
    columns: the stones of each column are shown on a line, from the lowest up."""
    game = CANONICAL if canonical else CONNECT4
    game = BY_COLUMNS[game] if columns else game
    return BoardGameEnv(ALIKE[game] if symmetry else game, seat, opponent, draw_reward)
