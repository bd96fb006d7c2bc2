import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.envs.games import connect4
from earl.envs.games.base import State
from earl.envs.games.connect4 import BY_COLUMNS, CANONICAL, CONNECT4
from earl.envs.registry import make

DIRECTIONS = [(0, 1), (1, 0), (1, 1), (1, -1)]


class NaiveBoard:
    """Connect Four as a grid of marks, row 0 on top; obviously right, slow."""

    def __init__(self):
        self.grid = [["."] * 7 for _ in range(6)]

    def drop(self, column: int, mark: str) -> None:
        row = max(row for row in range(6) if self.grid[row][column] == ".")
        self.grid[row][column] = mark

    def lift(self, column: int) -> None:
        row = min(row for row in range(6) if self.grid[row][column] != ".")
        self.grid[row][column] = "."

    def open_columns(self) -> list[int]:
        return [column for column in range(7) if self.grid[0][column] == "."]

    def has_four(self, mark: str) -> bool:
        return any(
            all(
                0 <= row + i * down < 6
                and 0 <= column + i * right < 7
                and self.grid[row + i * down][column + i * right] == mark
                for i in range(4)
            )
            for row in range(6)
            for column in range(7)
            for down, right in DIRECTIONS
        )

    def wins(self, mark: str) -> tuple[int, ...]:
        columns = []
        for column in self.open_columns():
            self.drop(column, mark)
            if self.has_four(mark):
                columns.append(column)
            self.lift(column)
        return tuple(columns)


def test_renders_rows_from_the_top():
    state = State()
    for move in (3, 3, 0):
        state = CONNECT4.play(state, move)
    assert CONNECT4.render(state) == ".......\n.......\n.......\n.......\n...O...\nX..X..."


@given(st.lists(st.integers(0, 6), max_size=42))
def test_a_canonical_board_shows_own_stones_as_x_to_both_seats(drops):
    state = State()
    for move in drops:
        state = CONNECT4.play(state, move) if move in CONNECT4.legal(state) else state
    board = CONNECT4.render(state)
    turned = board.translate({ord("X"): "O", ord("O"): "X"})
    assert [CANONICAL.seen(state, seat) for seat in (0, 1)] == [f"X {board}", f"O {turned}"]
    assert CANONICAL.read((board, turned)[state.player], state.player) == state
    assert CANONICAL.read(board.replace(".", "?"), 0) is None


def test_a_picture_of_a_canonical_board_has_the_marks_of_the_players():
    env = make("connect4", seat=1, canonical=True)
    env.begin(0)
    for action in ("4", "4", "1"):
        env.move(action)
    observation, *_ = env.seen_by(1)
    assert observation.endswith("...X...\nO..O...")
    drawn = env.draw(observation, "2")
    assert drawn.cells[-1] == ("X", "O", "", "X", "", "", "")
    assert drawn.marked == (5, 1)


@given(st.lists(st.integers(0, 6), max_size=42), st.booleans())
def test_columns_tell_the_stones_that_rows_tell(drops, canonical):
    game, state, stacks = BY_COLUMNS[CANONICAL if canonical else CONNECT4], State(), [""] * 7
    for move in drops:
        if move in CONNECT4.legal(state):
            stacks[move] += "XO"[state.player]
            state = CONNECT4.play(state, move)
    seat, text = state.player, "".join(f"\n{stack}" for stack in stacks)
    if canonical and seat:
        text = text.translate({ord("X"): "O", ord("O"): "X"})
    assert game.seen(state, seat) == "XO"[seat] + text
    assert game.state_of(game.seen(state, seat)) == state
    assert game.state_of(game.seen(state, seat) + "\nlost") == state


@pytest.mark.parametrize("text", ["", "X", "X\nXO", "X\nZ" + 6 * "\n", "O\nXOXOXOX" + 6 * "\n"])
def test_columns_that_are_no_position_tell_none(text):
    assert BY_COLUMNS[CONNECT4].state_of(text) is None


def test_boards_by_columns_are_drawn_as_boards():
    env = make("connect4", seat=1, canonical=True, columns=True)
    assert "lowest first: X are your own stones, O those of the other player. Answer" in env.instructions
    env.begin(0)
    for action in ("4", "4", "1"):
        env.move(action)
    observation, *_ = env.seen_by(1)
    assert observation == "O\nO\n\n\nOX\n\n\n"
    drawn = env.draw(observation, "2")
    assert drawn.cells[-1] == ("X", "O", "", "X", "", "", "") and drawn.cells[-2][3] == "O"
    assert drawn.marked == (5, 1)


def test_stone_names_the_cell_that_is_rendered():
    for row in range(6):
        for column in range(7):
            board = CONNECT4.render(State(first=CONNECT4.stone(row, column))).split("\n")
            assert board[row][column] == "X" and "".join(board).count("X") == 1


def test_the_number_of_positions_by_ply_is_the_known_one():
    # Published counts of positions after n plies: 1, 7, 49, 238, 1120, 4263, 16422 (OEIS A212693).
    layer, sizes = {State()}, []
    for _ in range(7):
        sizes.append(len(layer))
        layer = {CONNECT4.play(state, move) for state in layer for move in CONNECT4.legal(state)}
    assert sizes == [1, 7, 49, 238, 1120, 4263, 16422]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=42, max_size=42))
def test_agrees_with_a_naive_board(choices):
    state, board = State(), NaiveBoard()
    for ply, choice in enumerate(choices):
        mark = "XO"[ply % 2]
        assert state.player == ply % 2
        assert CONNECT4.legal(state) == tuple(board.open_columns())
        assert CONNECT4.wins(state, 0) == board.wins("X")
        assert CONNECT4.wins(state, 1) == board.wins("O")
        move = CONNECT4.legal(state)[choice % len(CONNECT4.legal(state))]
        state = CONNECT4.play(state, move)
        board.drop(move, mark)
        assert CONNECT4.render(state) == "\n".join("".join(row) for row in board.grid)
        assert CONNECT4.winner(state) == (ply % 2 if board.has_four(mark) else None)
        if board.has_four(mark):
            assert CONNECT4.legal(state) == () and CONNECT4.over(state)
            return
    assert CONNECT4.over(state)  # 42 stones, no winner: a draw


def test_every_line_of_four_wins_and_none_wraps_around():
    lines = set()
    for row in range(6):
        for column in range(7):
            for down, right in DIRECTIONS:
                cells = [(row + i * down, column + i * right) for i in range(4)]
                if all(0 <= r < 6 and 0 <= c < 7 for r, c in cells):
                    lines.add(sum(CONNECT4.stone(r, c) for r, c in cells))
    assert len(lines) == 69  # 24 in rows, 21 in columns, 2 x 12 diagonal
    assert all(connect4.has_four(line) for line in lines)
    # Any three stones of a line are completed by the fourth; in a column that is always the top one.
    for line in lines:
        bits = [bit for bit in range(49) if line >> bit & 1]
        for bit in bits[-1:] if bits[3] - bits[0] == 3 else bits:
            three = line & ~(1 << bit)
            assert not connect4.has_four(three)
            assert connect4.completing(three, three) >> bit & 1


def test_promise_counts_completing_cells_and_the_middle():
    # X in the bottom cells of columns 1, 2, 3: the bottom of 0 and of 4 complete the row, 2 x 8 points.
    # Column 1 lies in one of the three bands, column 2 in two, column 3 in three: 6 points.
    three = State(first=sum(CONNECT4.stone(5, column) for column in (1, 2, 3)))
    assert CONNECT4.promise(three, 0) == 22
    assert CONNECT4.promise(three, 1) == 0
