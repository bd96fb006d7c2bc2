from hypothesis import given
from hypothesis import strategies as st

from earl.envs.games.base import State
from earl.envs.games.mnk import CANONICAL, TICTACTOE

ROWS = [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
COLUMNS = [(0, 3, 6), (1, 4, 7), (2, 5, 8)]
DIAGONALS = [(0, 4, 8), (2, 4, 6)]


def after(*moves: int) -> State:
    state = State()
    for move in moves:
        state = TICTACTOE.play(state, move)
    return state


def naive_winner(cells: list[int | None]) -> int | None:
    for line in ROWS + COLUMNS + DIAGONALS:
        owners = {cells[cell] for cell in line}
        if len(owners) == 1 and owners != {None}:
            return owners.pop()
    return None


def test_renders_numbers_in_empty_cells():
    assert TICTACTOE.render(State()) == "123\n456\n789"
    assert TICTACTOE.render(after(0, 2)) == "X2O\n456\n789"
    assert len(TICTACTOE.render(after(0, 2))) == 11


@given(st.permutations(range(9)))
def test_a_canonical_board_shows_own_marks_as_x_to_both_seats(cells):
    state = State()
    for cell in cells:
        board = TICTACTOE.render(state)
        turned = board.translate({ord("X"): "O", ord("O"): "X"})
        assert [CANONICAL.seen(state, seat) for seat in (0, 1)] == [f"X {board}", f"O {turned}"]
        assert CANONICAL.read((board, turned)[state.player], state.player) == state
        if TICTACTOE.over(state):
            break
        state = TICTACTOE.play(state, cell)


def test_a_game_with_canonical_boards_says_so():
    assert "told which player you are, then the board: X are your own taken cells, O those of" in CANONICAL.instructions
    assert "own" not in TICTACTOE.instructions


def test_the_whole_game_tree_has_the_known_size():
    # 5,478 positions and 255,168 games: 131,184 won by X, 77,904 by O, 46,080 drawn.
    seen, games = set(), {0: 0, 1: 0, None: 0}

    def walk(state: State) -> None:
        seen.add(state)
        if TICTACTOE.over(state):
            games[TICTACTOE.winner(state)] += 1
        for move in TICTACTOE.legal(state):
            walk(TICTACTOE.play(state, move))

    walk(State())
    assert len(seen) == 5_478
    assert games == {0: 131_184, 1: 77_904, None: 46_080}


@given(st.permutations(range(9)))
def test_agrees_with_a_naive_board(order):
    state, cells = State(), [None] * 9
    for ply, move in enumerate(order):
        assert state.player == ply % 2
        for player in (0, 1):
            winning = [m for m in range(9) if cells[m] is None and player == naive_winner(place(cells, m, player))]
            assert TICTACTOE.wins(state, player) == tuple(winning)
        state, cells = TICTACTOE.play(state, move), place(cells, move, ply % 2)
        assert TICTACTOE.winner(state) == naive_winner(cells)
        if naive_winner(cells) is not None:
            assert TICTACTOE.legal(state) == () and TICTACTOE.over(state)
            return
        assert TICTACTOE.legal(state) == tuple(m for m in range(9) if cells[m] is None)
    assert TICTACTOE.over(state)


def place(cells: list[int | None], cell: int, player: int) -> list[int | None]:
    return [player if number == cell else owner for number, owner in enumerate(cells)]


def test_promise_counts_open_lines_and_the_stones_on_them():
    assert TICTACTOE.promise(State(), 0) == 8  # eight open lines, no stone
    # X in the centre: 4 lines through it count 2, the other 4 count 1; O keeps those 4.
    assert TICTACTOE.promise(after(4), 0) == 12
    assert TICTACTOE.promise(after(4), 1) == 4
