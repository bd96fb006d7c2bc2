from collections import Counter
from functools import cache
from random import Random

import pytest

from earl.agents.scripted import perfect
from earl.agents.scripted.base import ScriptedPlayer
from earl.agents.scripted.registry import agent, names, player
from earl.envs import registry
from earl.envs.games import GAMES
from earl.envs.games.base import Game, Player, State
from earl.envs.games.connect4 import CONNECT4
from earl.envs.games.mnk import ALIKE, TICTACTOE
from earl.errors import EarlError


def after(game: Game, actions: str) -> State:
    state = State()
    for action in actions:
        state = game.play(state, game.actions.index(action))
    return state


def moves(name: str, game: Game, state: State) -> str:
    """The actions a player may choose."""
    return "".join(game.actions[move] for move, _ in player(name, game.name).distribution(game, state))


def exactly(first: Player, second: Player) -> tuple[float, float, float]:
    """Probability of a win of the first player, of the second, of a draw, over the whole tree."""

    @cache
    def from_here(state: State) -> tuple[float, float, float]:
        if TICTACTOE.over(state):
            winner = TICTACTOE.winner(state)
            return float(winner == 0), float(winner == 1), float(winner is None)
        parts = (first, second)[state.player].distribution(TICTACTOE, state)
        ends = [(chance, from_here(TICTACTOE.play(state, move))) for move, chance in parts]
        return tuple(sum(chance * end[i] for chance, end in ends) for i in range(3))

    return from_here(State())


def quick(name: str) -> str:
    return "mcts:20" if name == "mcts" else name


def random_positions(game: Game, count: int, seed: int = 0, stones: int = 0) -> list[State]:
    """Positions of random games that are not over, of so many stones at least."""
    rng, found = Random(seed), []
    while len(found) < count:
        state = State()
        while not game.over(state):
            if (state.first | state.second).bit_count() >= stones:
                found.append(state)
            state = game.play(state, rng.choice(game.legal(state)))
    return rng.sample(found, count)


def test_random_against_random_has_the_known_odds():
    odds = exactly(player("random", "tictactoe"), player("random", "tictactoe"))
    assert odds == pytest.approx((0.585, 0.288, 0.127), abs=0.0005)


def test_perfect_players_always_draw():
    for name in ("perfect", "expert", "alphabeta:9"):
        assert exactly(player(name, "tictactoe"), player("perfect", "tictactoe")) == pytest.approx((0, 0, 1))
        assert exactly(player("perfect", "tictactoe"), player(name, "tictactoe")) == pytest.approx((0, 0, 1))


def test_the_expert_beats_a_random_player_more_often_than_any_perfect_move_does():
    chance = player("random", "tictactoe")
    results = {}
    for name in ("expert", "perfect"):
        first, second = exactly(player(name, "tictactoe"), chance), exactly(chance, player(name, "tictactoe"))
        assert first[1] == second[0] == 0  # neither ever loses
        results[name] = first[0], second[1]
    # No policy at all wins more than 99.5 % and 93.9 %.
    assert results["expert"][0] == pytest.approx(0.995, abs=0.001)
    assert 0.90 < results["expert"][1] < 0.939
    assert results["perfect"][0] < 0.98 and results["perfect"][1] < 0.80


def test_the_expert_of_connect4_makes_the_move_that_looks_best_of_those_that_keep_the_value():
    expert, exact = player("expert", "connect4"), Counter[bool]()
    for state in random_positions(CONNECT4, 150):
        moves = CONNECT4.legal(state)
        known = (state.first | state.second).bit_count() >= 12
        if known:
            ends = perfect.solved(CONNECT4, state)
            moves = [move for move in moves if ends[move].value == max(end.value for end in ends.values())]
        following = {move: CONNECT4.play(state, move) for move in moves}
        values = {move: perfect.search(CONNECT4, after, 3, -9999, 9999, {}) for move, after in following.items()}
        best = [move for move in moves if values[move] == min(values.values())]
        assert expert.distribution(CONNECT4, state) == tuple((move, 1 / len(best)) for move in best)
        exact[known] += 1
    assert min(exact.values()) > 20


def test_random_connect4_has_the_known_odds():
    rng, ends = Random(0), Counter()
    anyone = player("random", "connect4")
    for _ in range(2000):
        state = State()
        while not CONNECT4.over(state):
            state = CONNECT4.play(state, anyone.move(CONNECT4, state, rng))
        ends[CONNECT4.winner(state)] += 1
    # Known: 55.8 / 44.0 / 0.3 %; one standard deviation is 1.1 points over 2,000 games.
    assert ends[0] / 2000 == pytest.approx(0.558, abs=0.045)
    assert ends[1] / 2000 == pytest.approx(0.440, abs=0.045)
    assert ends[None] / 2000 < 0.015


@pytest.mark.parametrize(
    ("game", "actions", "expected"),
    [
        ("tictactoe", "", "5"),  # the centre
        ("tictactoe", "5", "1"),  # else the first corner
        ("tictactoe", "1524", "3"),  # X on 1 2 wins on 3, though O on 5 4 threatens 6
        ("tictactoe", "152", "3"),  # O blocks
        ("tictactoe", "129437", "56"),  # X wins by 1-5-9 or by 3-6-9: both alike
        ("tictactoe", "159", "3"),  # nothing to win or block: the first free corner
        ("connect4", "", "4"),
        ("connect4", "444444", "3"),  # the centre is full; 3 comes before 5
        ("connect4", "44335", "26"),  # X has 3 4 5 in the bottom row: O blocks on either side
        ("connect4", "443351", "26"),  # X wins on either side
    ],
)
def test_heuristic_wins_else_blocks_else_goes_to_the_centre(game, actions, expected):
    assert moves("heuristic", GAMES[game], after(GAMES[game], actions)) == expected


def plain_minimax(game: Game, state: State, depth: int) -> int:
    """No pruning, no memory, no special case."""
    if game.over(state):
        return 0 if game.winner(state) is None else -perfect.WIN - depth
    if depth == 0:
        return game.promise(state, state.player) - game.promise(state, 1 - state.player)
    return max(-plain_minimax(game, game.play(state, move), depth - 1) for move in game.legal(state))


@pytest.mark.parametrize(
    ("game", "depth", "count"),
    [(TICTACTOE, 1, 50), (TICTACTOE, 3, 50), (TICTACTOE, 5, 20), (CONNECT4, 1, 50), (CONNECT4, 2, 50),
     (CONNECT4, 3, 30), (CONNECT4, 4, 10)],
)  # fmt: skip
def test_pruning_finds_the_same_best_moves_as_plain_minimax(game, depth, count):
    for state in random_positions(game, count):
        values = {move: -plain_minimax(game, game.play(state, move), depth - 1) for move in game.legal(state)}
        best = tuple(move for move, value in values.items() if value == max(values.values()))
        assert perfect.best_moves(game, state, depth) == best


def test_perfect_keeps_every_move_of_the_same_value():
    def plain_value(state: State) -> int:
        if TICTACTOE.over(state):
            return 0 if TICTACTOE.winner(state) is None else -1
        return max(-plain_value(TICTACTOE.play(state, move)) for move in TICTACTOE.legal(state))

    assert moves("perfect", TICTACTOE, State()) == "123456789"  # every opening draws
    assert moves("perfect", TICTACTOE, after(TICTACTOE, "1")) == "5"  # only the centre answers a corner
    for state in random_positions(TICTACTOE, 30):
        if (state.first | state.second).bit_count() < 3:
            continue
        values = {move: -plain_value(TICTACTOE.play(state, move)) for move in TICTACTOE.legal(state)}
        best = tuple(move for move, value in values.items() if value == max(values.values()))
        assert perfect.perfect(TICTACTOE, state) == best


@pytest.mark.parametrize("env", sorted(GAMES))
@pytest.mark.parametrize("suffix", ["", "@0.25", "@1"])
def test_distributions_are_probabilities_and_draws_follow_them(env, suffix):
    game, rng = GAMES[env], Random(0)
    for name in names(env):
        someone = player(quick(name) + suffix, env)
        for state in random_positions(game, 5, seed=1, stones=game.max_plies // 3):
            chances = dict(someone.distribution(game, state))
            assert sum(chances.values()) == pytest.approx(1) and min(chances.values()) > 0
            assert set(chances) <= set(game.legal(state))
            drawn = Counter(someone.move(game, state, rng) for _ in range(500))
            assert set(drawn) <= set(chances)
            for move, chance in chances.items():  # at most 2.2 points of standard deviation
                assert drawn[move] / 500 == pytest.approx(chance, abs=0.11)


def test_the_exploiter_follows_its_line_and_is_random_beside_it():
    for position, expected in (("", "5"), ("51", "9"), ("52", "1346789"), ("519", "2"), ("5192", "34678")):
        assert moves("exploiter:5 1 9 2", TICTACTOE, after(TICTACTOE, position)) == expected
    assert moves("exploiter", TICTACTOE, after(TICTACTOE, "5192")) == "34678"


def test_the_exploiter_follows_images_of_its_line_where_they_are_shown_alike():
    exploiter, alike = player("exploiter:5 1 9 2", "tictactoe"), ALIKE[TICTACTOE]
    for position, expected in (("51", "9"), ("53", "7"), ("57", "3"), ("59", "1"), ("52", "1346789")):
        state = after(TICTACTOE, position)
        assert "".join(alike.actions[move] for move, _ in exploiter.distribution(alike, state)) == expected
    assert len(exploiter.distribution(TICTACTOE, after(TICTACTOE, "53"))) == 7  # on the plain board the line was left


def test_epsilon_mixes_in_every_legal_move():
    # Heuristic takes 5 in the empty board; a quarter is spread over nine cells: 0.25 / 9 each.
    chances = dict(player("heuristic@0.25", "tictactoe").distribution(TICTACTOE, State()))
    assert chances[4] == pytest.approx(0.75 + 0.25 / 9)
    assert all(chances[cell] == pytest.approx(0.25 / 9) for cell in range(9) if cell != 4)


@pytest.mark.parametrize("env", sorted(GAMES))
def test_players_act_in_environments(env):
    late = random_positions(GAMES[env], 1, stones=GAMES[env].max_plies // 3)[0]
    for name in names(env):
        world = registry.make(env, seat=late.player, opponent=player("random", env))
        _, info = world.reset(seed=3)
        world.state = late  # openings take a solver seconds
        rng, turns = Random(1), 0
        while "outcome" not in info:
            *_, info = world.step(agent(quick(name), env).act(world, rng))
            turns += 1
            assert "illegal" not in info
        assert turns <= world.max_turns


def test_alphabeta_is_stronger_than_the_heuristic_and_that_than_chance():
    def losses(strong: str, weak: str) -> int:
        rng, count = Random(0), 0
        for number in range(20):
            seat, state = number % 2, State()
            while not CONNECT4.over(state):
                name = strong if state.player == seat else weak
                state = CONNECT4.play(state, player(name, "connect4").move(CONNECT4, state, rng))
            count += CONNECT4.winner(state) == 1 - seat
        return count

    assert losses("alphabeta:4", "heuristic@0.1") <= 2
    assert losses("heuristic", "random") <= 4


@pytest.mark.parametrize(
    ("name", "env", "words"),
    [
        ("heuristics", "tictactoe", "unknown opponent 'heuristics'; did you mean 'heuristic'"),
        ("heuristics@0.5", "tictactoe", "did you mean 'heuristic'"),
        ("", "tictactoe", "unknown opponent ''"),
        ("random", "tictacto", "unknown environment 'tictacto'; did you mean 'tictactoe'"),
        ("expert@0.5", "othello", "unknown opponent 'expert'.* Known: alphabeta, heuristic, mcts, perfect, random"),
        ("alphabeta:0", "connect4", "depth '0' is not a whole number within 1 … 9"),
        ("alphabeta:10", "connect4", "depth '10' is not"),
        ("alphabeta:", "connect4", "depth '' is not"),
        ("alphabeta:four", "connect4", "depth 'four' is not"),
        ("random:3", "connect4", "only alphabeta and mcts take a number; write 'random' or 'alphabeta:3'"),
        ("mcts:0", "connect4", "number of simulations '0' is not a whole number within 1 … 100000"),
        ("random@1.5", "connect4", "epsilon '1.5' is not a number within 0 … 1"),
        ("random@-0.5", "connect4", "epsilon '-0.5' is not"),
        ("random@nan", "connect4", "epsilon 'nan' is not"),
        ("random@", "connect4", "epsilon '' is not"),
        ("alphabeta@0.5:4", "connect4", "not of the form NAME"),
        ("random", "arithmetic", "no game of two players; leave out the opponent"),
    ],
)
def test_names_that_mean_nothing_are_refused(name, env, words):
    with pytest.raises(EarlError, match=words):
        player(name, env)


def test_teachers_that_mean_nothing_are_refused():
    with pytest.raises(EarlError, match="unknown teacher 'solvr'; did you mean 'solver'"):
        agent("solvr", "arithmetic")
    with pytest.raises(EarlError, match="write 'solver'"):
        agent("solver:3", "arithmetic")
    with pytest.raises(EarlError, match="cannot act in ArithmeticEnv"):
        agent("random", "tictactoe").act(registry.make("arithmetic"), Random(0))
    with pytest.raises(EarlError, match="BoardGameEnv has no random_action"):
        agent("random", "arithmetic").act(registry.make("tictactoe"), Random(0))


@pytest.mark.slow
def test_perfect_wins_soonest_and_loses_latest():
    assert moves("perfect", CONNECT4, State()) == "4"
    assert moves("perfect", CONNECT4, after(CONNECT4, "121212")) == "1"  # at once, though others win as well
    assert moves("perfect", CONNECT4, after(CONNECT4, "12121")) == "1"  # any other loses at once


def test_mcts_wins_at_once_and_blocks():
    assert moves("mcts:400", CONNECT4, after(CONNECT4, "121212")) == "1"
    assert moves("mcts:400", CONNECT4, after(CONNECT4, "12121")) == "1"
    assert moves("mcts:400", TICTACTOE, after(TICTACTOE, "1524")) == "3"


def test_mcts_draws_one_of_its_searches_and_a_seed_repeats_it():
    someone = player("mcts:10", "connect4")
    drawn = [[someone.move(CONNECT4, State(), Random(seed)) for seed in range(40)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    chances = dict(someone.distribution(CONNECT4, State()))
    assert len(chances) > 1 and set(drawn[0]) == set(chances)
    assert all(chance * 8 == round(chance * 8) for chance in chances.values())  # so many of its eight searches


def test_more_simulations_are_stronger():
    won = 0
    for number in range(10):
        rng, seat, state = Random(number), number % 2, State()
        while not CONNECT4.over(state):
            name = "mcts:100" if state.player == seat else "mcts:5"
            state = CONNECT4.play(state, player(name, "connect4").move(CONNECT4, state, rng))
        won += CONNECT4.winner(state) == seat
    assert won >= 8


def test_alphabeta_looks_four_plies_ahead_unless_told():
    for state in random_positions(CONNECT4, 5):
        default, four = player("alphabeta", "connect4"), player("alphabeta:4", "connect4")
        assert default.distribution(CONNECT4, state) == four.distribution(CONNECT4, state)


def test_earlier_recipes_and_runs_call_alphabeta_minimax():
    for state in random_positions(CONNECT4, 5):
        before, now = player("minimax:2@0.5", "connect4"), player("alphabeta:2@0.5", "connect4")
        assert before.distribution(CONNECT4, state) == now.distribution(CONNECT4, state)
    assert isinstance(agent("minimax", "connect4"), ScriptedPlayer)
