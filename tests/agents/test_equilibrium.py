"""Best responses and exploitability, against values that are known."""

import itertools
from random import Random

import pytest

from earl.agents.scripted.equilibrium import best_response, equilibrium, exploitability, uniform, value
from earl.agents.scripted.registry import names, player
from earl.envs.games.bargain import bargain_game
from earl.envs.games.nim import nim_game
from earl.envs.games.poker import KUHN, LEDUC
from earl.errors import EarlError


def kuhn(alpha):
    """Kuhn's equilibria: alpha within 0 … 1/3 is how often the first player bets with a J."""

    def chance(seen, facing):
        """Of the bold move: to bet, or to call."""
        seat, card = seen.split("\n")[0].split()
        if seat == "first":
            return {"J": 0, "Q": alpha + 1 / 3, "K": 1}[card] if facing else {"J": alpha, "Q": 0, "K": 3 * alpha}[card]
        return {"J": 0, "Q": 1 / 3, "K": 1}[card] if facing else {"J": 1 / 3, "Q": 0, "K": 1}[card]

    def policy(seen, legal):
        bold = chance(seen, "fold" in legal)
        return {("check", "bet"): [1 - bold, bold], ("fold", "call"): [1 - bold, bold]}[legal]

    return policy


def always(*actions):
    return lambda seen, legal: [float(action in actions) for action in legal]


@pytest.mark.parametrize("alpha", [0, 0.1, 1 / 3])
def test_the_equilibria_of_kuhn_poker_cannot_be_exploited(alpha):
    assert exploitability(KUHN, kuhn(alpha)) == pytest.approx(0, abs=1e-12)
    assert value(KUHN, kuhn(alpha), kuhn(0)) == pytest.approx(-1 / 18, abs=1e-12)


def test_known_exploitabilities():
    assert exploitability(KUHN, kuhn(0.5)) > 0.01  # above 1/3 it is no equilibrium
    assert exploitability(KUHN, uniform) == pytest.approx(11 / 24, abs=1e-12)  # 0.458333
    # Against who always bets and calls, fold a J, and call or bet a K and a Q: both seats gain
    # (K: 2, Q: 2 · (1/2 - 1/2), J: -1) / 3 = 1/3.
    assert exploitability(KUHN, always("bet", "call")) == pytest.approx(1 / 3, abs=1e-12)
    assert best_response(KUHN, always("bet", "call"), 0) == pytest.approx(1 / 3, abs=1e-12)
    # Who checks and folds loses the chip that it put in.
    assert exploitability(KUHN, always("check", "fold")) == pytest.approx(1, abs=1e-12)
    # OpenSpiel's value, in chips: NashConv 4.747222 / 2.
    assert exploitability(LEDUC, uniform) == pytest.approx(2.373611111, abs=1e-9)


def certain_policies(game, seat):
    """Every policy of a seat that is certain of its move, as a best one is: in Kuhn poker 2^6."""
    own = [seen for seen, _ in information_sets(game) if seen.startswith(seat)]
    for bold in itertools.product((0.0, 1.0), repeat=len(own)):
        chosen = dict(zip(own, bold, strict=True))
        yield lambda seen, legal, chosen=chosen: [1 - chosen[seen], chosen[seen]]


def information_sets(game):
    return sorted({(game.seen(s, s.player), game.legal_actions(s)) for s in states(game) if game.legal(s)})


def states(game):
    left = [state for state, _ in game.deals]
    while left:
        state = left.pop()
        yield state
        left += [game.play(state, move) for move in game.legal(state)]


@pytest.mark.parametrize("seed", range(3))
def test_the_best_response_is_the_best_of_all_policies(seed):
    rng = Random(seed)
    bold = {(seen, legal): rng.random() for seen, legal in information_sets(KUHN)}

    def policy(seen, legal):
        return [1 - bold[seen, legal], bold[seen, legal]]

    tried = [value(KUHN, own, policy, 0) for own in certain_policies(KUHN, "first")]
    assert best_response(KUHN, policy, 0) == pytest.approx(max(tried), abs=1e-12)
    tried = [value(KUHN, policy, own, 1) for own in certain_policies(KUHN, "second")]
    assert best_response(KUHN, policy, 1) == pytest.approx(max(tried), abs=1e-12)


def test_a_policy_is_asked_once_for_each_information_set():
    asked = []

    def policy(seen, legal):
        asked.append((seen, legal))
        return uniform(seen, legal)

    exploitability(KUHN, policy)
    assert sorted(asked) == information_sets(KUHN)


@pytest.mark.slow
@pytest.mark.parametrize(("game", "sets", "exact", "most"), [(KUHN, 12, -1 / 18, 1e-5), (LEDUC, 288, -0.0856, 0.005)])
def test_perfect_players_of_poker_are_close_to_an_equilibrium(game, sets, exact, most):
    found = equilibrium(game)

    def policy(seen, legal):
        return found[seen]

    assert len(found) == sets == len(information_sets(game))
    assert exploitability(game, policy) < most
    assert value(game, policy, policy) == pytest.approx(exact, abs=most)


def test_the_subgame_perfect_split_cannot_be_exploited():
    game, expert = bargain_game(5, 3, 0.8), player("perfect", "bargain")
    told = {game.seen(state, state.player): state for state in states(game)}

    def policy(seen, legal):
        chances = dict(expert.distribution(game, told[seen]))
        return [chances.get(move, 0.0) for move in game.legal(told[seen])]

    assert exploitability(game, policy) == pytest.approx(0, abs=1e-12)
    assert exploitability(game, uniform) > 0.1


def test_perfect_nim_cannot_be_exploited():
    game, expert = nim_game((1, 2, 2)), player("perfect", "nim")
    told = {game.seen(state, state.player): state for state in states(game)}

    def policy(seen, legal):
        chances = dict(expert.distribution(game, told[seen]))
        return [chances.get(move, 0.0) for move in game.legal(told[seen])]

    assert exploitability(game, policy) == pytest.approx(0, abs=1e-12)
    assert value(game, policy, uniform) == pytest.approx(1)  # take 1: 2 and 2 are left, and every move loses


@pytest.mark.parametrize("env", ["kuhn", "leduc"])
def test_no_player_of_poker_sees_the_other_hand(env):
    assert names(env) == ("perfect", "random")
    for name in ("heuristic", "alphabeta:2", "mcts", "expert"):
        with pytest.raises(EarlError, match="unknown opponent"):
            player(name, env)
    game, seen = {"kuhn": KUHN, "leduc": LEDUC}[env], {}
    for state in states(game):
        if game.legal(state):
            chances = player("perfect@0.1", env).distribution(game, state)
            assert sum(chance for _, chance in chances) == pytest.approx(1)
            assert seen.setdefault(game.seen(state, state.player), chances) == chances


def test_perfect_draws_as_often_as_it_says():
    state, expert, rng = KUHN.deals[0][0], player("perfect@0.5", "kuhn"), Random(0)
    chances = dict(expert.distribution(KUHN, state))
    drawn = [expert.move(KUHN, state, rng) for _ in range(2000)]
    for move, chance in chances.items():
        assert drawn.count(move) / 2000 == pytest.approx(chance, abs=0.05)
