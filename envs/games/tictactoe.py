"""Tic-Tac-Toe as rule tables. Bit i of a bitboard is cell i, counted from the top left, row by row."""

from functools import cache

from earl.envs.games.base import Game, State

LINES = (0b111, 0b111000, 0b111000000, 0b1001001, 0b10010010, 0b100100100, 0b100010001, 0b001010100)

HAS_LINE = tuple(any(stones & line == line for line in LINES) for stones in range(512))
"""Whether one player's stones hold a whole line, indexed by bitboard."""

FULL = 0b111111111
MARKS = ("X", "O")


def winner(state: State) -> int | None:
    if HAS_LINE[state.first]:
        return 0
    return 1 if HAS_LINE[state.second] else None


@cache  # 5,478 positions are reachable
def legal(state: State) -> tuple[int, ...]:
    if winner(state) is not None:
        return ()
    occupied = state.first | state.second
    return tuple(cell for cell in range(9) if not occupied >> cell & 1)


def play(state: State, move: int) -> State:
    assert not (state.first | state.second) >> move & 1, f"cell {move} is taken"
    return state.add(1 << move)


def wins(state: State, player: int) -> tuple[int, ...]:
    return tuple(move for move in legal(state) if HAS_LINE[state[player] | 1 << move])


@cache
def promise(state: State, player: int) -> int:
    """The lines that the player can still complete, plus the stones already on them."""
    own, other = state[player], state[1 - player]
    return sum(1 + (own & line).bit_count() for line in LINES if not other & line)


@cache
def render(state: State) -> str:
    r"""Three rows of three; an empty cell shows its number, for example "X2O\n456\n789"."""
    cells = [_cell(state, cell) for cell in range(9)]
    return "\n".join("".join(cells[row : row + 3]) for row in (0, 3, 6))


def _cell(state: State, cell: int) -> str:
    if state.first >> cell & 1:
        return MARKS[0]
    return MARKS[1] if state.second >> cell & 1 else str(cell + 1)


def stone(row: int, column: int) -> int:
    return 1 << (3 * row + column)


TICTACTOE = Game(
    name="tictactoe",
    marks=MARKS,
    actions=tuple("123456789"),
    instructions=(
        "You play Tic-Tac-Toe on a board of three rows of three cells. X moves first, then the players take "
        "turns. Whoever has three marks in a row, column or diagonal wins; a full board without such a line "
        "is a draw. You are told your mark, then the board: X and O are taken cells, a digit is an empty "
        "cell. Answer with the digit of the empty cell you take and nothing else."
    ),
    max_plies=9,
    size=(3, 3),
    # Corners and edges are one king's step from the centre; corners lie on more lines, so they come first.
    centre_first=(4, 0, 2, 6, 8, 1, 3, 5, 7),
    legal=legal,
    play=play,
    winner=winner,
    wins=wins,
    promise=promise,
    render=render,
    stone=stone,
)
