import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.agents.scripted.registry import names, player
from earl.envs import registry
from earl.envs.games.bargain import bargain_game
from earl.errors import EarlError


def test_legal_answers_and_payoffs():
    game = bargain_game(10, 2, 0.5)
    state = game.deals[0][0]
    assert game.legal_actions(state) == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10")
    offered = game.play(state, 3)
    assert game.legal_actions(offered) == (*game.legal_actions(state), "accept")
    accepted = game.play(offered, game.actions.index("accept"))
    assert game.over(accepted) and game.winner(accepted) == 0
    assert [game.gain(accepted, seat) for seat in (0, 1)] == [0.7, 0.3]
    last = game.play(offered, 4)  # the second player offers 4 to the first, in the last round
    assert game.legal_actions(last) == ("accept", "reject")
    accepted, rejected = (game.play(last, game.actions.index(answer)) for answer in ("accept", "reject"))
    assert [game.gain(accepted, seat) for seat in (0, 1)] == [0.2, 0.3]  # 4 and 6 of 10, at half their value
    assert [game.gain(rejected, seat) for seat in (0, 1)] == [0, 0]
    assert (game.winner(accepted), game.winner(rejected)) == (1, None)


@given(st.integers(1, 12), st.integers(1, 5), st.floats(0.1, 1), st.randoms(use_true_random=False))
def test_agrees_with_a_plain_record_of_answers(coins, rounds, discount, rng):
    """Rules read off a list of the answers so far."""
    game, said = bargain_game(coins, rounds, discount), []
    state = game.deals[0][0]
    while not game.over(state):
        assert state.player == len(said) % 2
        possible = [] if len(said) == rounds else [str(offer) for offer in range(coins + 1)]
        possible += ["accept"] * bool(said) + ["reject"] * (len(said) == rounds)
        assert game.legal_actions(state) == tuple(possible)
        said.append(rng.choice(possible))
        state = game.play(state, game.actions.index(said[-1]))
    gains = [0.0, 0.0]
    if said[-1] == "accept":
        worth = discount ** (len(said) - 2) / coins
        offered, accepts = int(said[-2]), (len(said) - 1) % 2
        gains[accepts], gains[1 - accepts] = offered * worth, (coins - offered) * worth
    assert [game.gain(state, seat) for seat in (0, 1)] == pytest.approx(gains)
    assert len(said) <= game.max_plies


def best_offer(coins: int, rounds: int, discount: float) -> int:
    """What the first offer gives away: the fewest coins now that are worth as much as being the one who offers next."""
    if rounds == 1:
        return 0
    kept_next = coins - best_offer(coins, rounds - 1, discount)
    return next(offer for offer in range(coins + 1) if offer >= discount * kept_next - 1e-9)


@pytest.mark.parametrize("coins", [1, 7, 10, 100])
@pytest.mark.parametrize("rounds", [1, 2, 3, 8])
@pytest.mark.parametrize("discount", [0.3, 0.5, 0.9])
def test_perfect_play_is_the_known_equilibrium(coins, rounds, discount):
    game, expert = bargain_game(coins, rounds, discount), player("perfect", "bargain")
    state = game.deals[0][0]
    [(move, _)] = expert.distribution(game, state)
    assert move == best_offer(coins, rounds, discount)
    # One coin less is refused, and this offer is accepted.
    answers = [expert.distribution(game, game.play(state, offer))[0][0] for offer in (move, move - 1) if offer >= 0]
    assert [game.actions[answer] for answer in answers][:1] == ["accept"]
    assert all(game.actions[answer] != "accept" for answer in answers[1:])


def test_with_many_rounds_the_split_is_that_of_rubinstein():
    # Who offers keeps 1 / (1 + 0.9) = 52.6 of 100 coins in the limit; 20 rounds and whole coins are within 5 of it.
    game = bargain_game(100, 19, 0.9)
    [(move, _)] = player("perfect", "bargain").distribution(game, game.deals[0][0])
    assert abs((100 - move) - 100 / 1.9) < 8


def test_search_that_takes_a_loss_for_the_others_win_is_not_offered():
    assert names("bargain") == ("perfect", "random")
    with pytest.raises(EarlError, match="unknown opponent 'alphabeta'"):
        player("alphabeta:2", "bargain")


@pytest.mark.parametrize("options", [{"coins": 0}, {"rounds": 21}, {"discount": 1.5}])
def test_what_is_no_game_is_refused(options):
    with pytest.raises(EarlError, match="is no game; use 1 … 100 coins"):
        registry.make("bargain", **options)
