from pathlib import Path
from random import Random

import numpy as np
import pytest

from earl.agents.scripted import connect4, perfect
from earl.agents.scripted.perfect import Solution
from earl.envs.games import GAMES
from earl.envs.games.base import Game, State
from earl.envs.games.connect4 import COLUMNS, CONNECT4
from earl.errors import EarlError
from tests.sampling import sampled


def read_facts(file: Path) -> list[tuple[State, dict[int, int]]]:
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        moves, *scores = line.split()
        assert len(scores) == COLUMNS, f"{file}, line {number}"
        told = {column: int(score) for column, score in enumerate(scores) if score != "."}
        found.append((CONNECT4.after(moves.strip("-")), told))
    return found


def drawn(number: int, seed: int) -> list[State]:
    """Positions of random games that go on, of each number of stones alike many."""
    rng, found = Random(seed), list[State]()
    while len(found) < number:
        state: State | None = State()
        for _ in range(len(found) % CONNECT4.max_plies):
            state = state and _any_that_goes_on(state, rng)
        if state is not None:
            found.append(state)
    return found


def _any_that_goes_on(state: State, rng: Random) -> State | None:
    after = [CONNECT4.play(state, move) for move in CONNECT4.legal(state)]
    going_on = [one for one in after if not CONNECT4.over(one)]
    return rng.choice(going_on) if going_on else None


FACTS = read_facts(Path(__file__).with_name("connect4_facts.txt"))
TICTACTOE = GAMES["tictactoe"]


def plain(game: Game, state: State) -> Solution:
    """Without pruning: a win as soon, a loss as late as can be."""
    if game.over(state):
        return Solution(0 if game.winner(state) is None else -1, 0)
    ends = [plain(game, game.play(state, move)) for move in game.legal(state)]
    value = -min(end.value for end in ends)
    plies = [end.plies + 1 for end in ends if -end.value == value]
    return Solution(value, min(plies) if value > 0 else max(plies))


@pytest.mark.slow
@pytest.mark.parametrize("every", sampled([5, 1], every=2))
def test_scores_are_those_of_another_solver(every):
    assert len(FACTS) > 300
    for state, told in FACTS[::every]:
        scores = {move: -connect4.score(CONNECT4.play(state, move)) for move in CONNECT4.legal(state)}
        assert scores == told, CONNECT4.render(state)


def test_the_openings_have_their_known_values():
    # Allis 1988: the middle wins, with the 41st stone; the columns beside it draw; the others lose.
    ends = perfect.solved(CONNECT4, State())
    assert [end.value for end in ends.values()] == [-1, -1, 0, 1, 0, -1, -1]
    assert [end.plies for end in ends.values()] == [40, 42, 42, 41, 42, 42, 40]


def test_the_best_moves_are_those_of_the_highest_score():
    for state in [state for state in drawn(300, seed=5) if 16 <= (state.first | state.second).bit_count() < 41]:
        ends = perfect.solved(CONNECT4, state)
        best = max(end.rank for end in ends.values())
        assert connect4.soonest(state) == tuple(move for move, end in ends.items() if end.rank == best)


def test_solutions_are_those_of_plain_search():
    for state in [state for state in drawn(200, seed=3) if (state.first | state.second).bit_count() > 32]:
        assert connect4.outcome(CONNECT4, state) == plain(CONNECT4, state)
    for moves in ("1", "159", "5", "1524"):
        state = TICTACTOE.after(moves)
        assert perfect.outcome(TICTACTOE, state) == plain(TICTACTOE, state)


def test_what_the_table_forgets_is_found_again():
    # A table of the smallest size, shared by all positions, against an empty one for each.
    shared, nodes = connect4.new_table(21), np.zeros(1, np.int64)
    for state, _ in FACTS[:60:3]:
        own, other = (state.second, state.first) if state.player else state
        alone, first, again = (
            connect4.solve(own, other, -connect4.HIGHEST, connect4.HIGHEST, table, nodes)
            for table in (connect4.new_table(21), shared, shared)
        )
        assert alone == first == again


def test_mirror_images_have_one_key_and_other_positions_another():
    keys = {connect4.mixed_key(*state) for state, _ in FACTS}
    turned = {connect4.mixed_key(*map(connect4.mirrored, state)) for state, _ in FACTS}
    assert keys == turned and len(keys) > 0.98 * len(FACTS)


def test_the_book_survives_being_written(tmp_path):
    entries = connect4.read_book()
    connect4.write_book(entries[::-1], tmp_path / "book")
    assert (connect4.read_book(tmp_path / "book") == entries).all()


def position(key: int) -> tuple[int, int]:
    """Own and other stones of a key, whose columns each hold own stones and a one above the top stone."""
    bare = key * pow(connect4.MIXER, -1, 1 << connect4.KEY_BITS) & connect4.KEY
    own, occupied = 0, 0
    for column in range(7):
        held = bare >> 7 * column & 127
        height = held.bit_length() - 1
        own |= (held ^ 1 << height) << 7 * column
        occupied |= ((1 << height) - 1) << 7 * column
    return own, own ^ occupied


@pytest.mark.slow
def test_the_book_says_nothing_that_search_denies():
    table, nodes = connect4.new_table(), np.zeros(1, np.int64)
    connect4.fill(table, connect4.read_book())
    keys = [int(entry) & connect4.KEY for entry in connect4.read_book()]
    late = sorted(keys, key=lambda key: -sum(map(int.bit_count, position(key))))[:300:6]
    assert all(connect4.mixed_key(*position(key)) == key for key in late)
    for key in late:
        lower, upper = connect4.bounds(table, key)
        assert (lower, upper) != (-connect4.HIGHEST, connect4.HIGHEST)
        most = connect4.HIGHEST
        assert lower <= connect4.solve(*position(key), -most, most, connect4.new_table(21), nodes) <= upper


@pytest.mark.parametrize("moves", ["8", "4444444", "12121212"])
def test_moves_that_cannot_be_made_are_refused(moves):
    with pytest.raises(EarlError, match="is illegal; "):
        CONNECT4.after(moves)
