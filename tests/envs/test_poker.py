"""Kuhn poker and Leduc: rules against a table at which chips are counted, and what each seat sees."""

from collections import defaultdict
from random import Random

import pytest

from earl.envs import registry
from earl.envs.games.poker import KUHN, LEDUC, RANKS

GAMES = {"kuhn": (KUHN, [1], 1), "leduc": (LEDUC, [2, 4], 2)}
"""Game, size of a bet by round, bets and raises of a round."""


class Table:
    """Chips are put in one by one, and who must act is asked for."""

    def __init__(self, cards, sizes, most):
        self.cards, self.sizes, self.most = cards, sizes, most
        self.chips, self.round, self.turn, self.folded = [1, 1], 0, 0, None
        self.acted, self.raised = 0, 0

    def over(self):
        return self.folded is not None or self.round == len(self.sizes)

    def legal(self):
        if self.over():
            return set()
        if self.chips[0] == self.chips[1]:
            return {"check", "bet"}
        return {"fold", "call"} | ({"raise"} if self.raised < self.most else set())

    def act(self, action):
        own, other = self.turn, 1 - self.turn
        self.acted += 1
        if action == "fold":
            self.folded = own
            return
        if action in ("call", "raise"):
            self.chips[own] = self.chips[other]
        if action in ("bet", "raise"):
            self.chips[own] += self.sizes[self.round]
            self.raised += 1
        if action == "call" or (action == "check" and self.acted == 2):
            self.round, self.turn, self.acted, self.raised = self.round + 1, 0, 0, 0
        else:
            self.turn = other

    def won(self):
        """Chips that the first player wins."""
        if self.folded is not None:
            return self.chips[1] if self.folded == 1 else -self.chips[0]
        strengths = [100 * (self.cards[2:] == (card,)) + card for card in self.cards[:2]]
        return self.chips[0] * ((strengths[0] > strengths[1]) - (strengths[0] < strengths[1]))


def histories(game):
    """Every state with the actions that lead to it."""

    def walk(state, actions):
        yield state, actions
        for move in game.legal(state):
            yield from walk(game.play(state, move), (*actions, game.actions[move]))

    for state, _ in game.deals:
        yield from walk(state, ())


@pytest.mark.parametrize("name", GAMES)
def test_every_hand_agrees_with_a_table(name):
    game, sizes, most = GAMES[name]
    count = 0
    for state, actions in histories(game):
        table = Table(state.cards, sizes, most)
        for action in actions:
            table.act(action)
        assert set(game.legal_actions(state)) == table.legal()
        assert len(actions) <= game.max_plies
        if table.over():
            won = table.won()
            assert (game.gain(state, 0), game.gain(state, 1)) == (won, -won)
            assert abs(won) <= game.stake
            assert game.winner(state) == (None if won == 0 else int(won < 0))
            count += 1
        else:
            assert (state.player, game.winner(state)) == (table.turn, None)
    assert count == {"kuhn": 6 * 5, "leduc": 24 * 49}[name]


def test_cards_are_dealt_without_being_put_back():
    assert len(KUHN.deals) == 6 and all(chance == pytest.approx(1 / 6) for _, chance in KUHN.deals)
    # Of 6 · 5 · 4 = 120 hands of Leduc, K K Q are 2 · 1 · 2; there is no K K K.
    chances = {state.cards: chance for state, chance in LEDUC.deals}
    assert sum(chances.values()) == pytest.approx(1)
    assert chances[2, 2, 1] == pytest.approx(4 / 120) and chances[0, 1, 2] == pytest.approx(8 / 120)
    assert (2, 2, 2) not in chances and len(chances) == 24


def known(state, actions, seat, sizes, most):
    """All that a seat may know: its card, the table's from the second round on, who did what, a hand that was shown."""
    table = Table(state.cards, sizes, most)
    for action in actions:
        table.act(action)
    shown = table.over() and table.folded is None
    return state.cards[seat], state.cards[2:] if table.round else (), actions, state.cards[1 - seat] if shown else None


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("seat", [0, 1])
def test_a_seat_is_told_all_that_it_may_know_and_nothing_else(name, seat):
    game, sizes, most = GAMES[name]
    by_knowledge, by_sight = defaultdict(set), defaultdict(set)
    for state, actions in histories(game):
        told = game.seen(state, seat)
        knows = known(state, actions, seat, sizes, most)
        by_knowledge[knows].add((told, game.legal(state)))
        by_sight[told].add(knows)
    assert all(len(told) == 1 for told in by_knowledge.values())  # what it may not know changes nothing
    assert all(len(knows) == 1 for knows in by_sight.values())  # and it knows the rest


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("seat", [0, 1])
def test_the_environment_tells_what_the_seat_sees_and_pays_its_part_of_the_stake(name, seat):
    game, *_ = GAMES[name]
    env, dealt = registry.make(name, seat=seat), set()
    for seed in range(200):
        observation, info = env.reset(seed=seed)
        dealt.add(env.state.cards)
        rng = Random(seed)
        while info["legal_actions"]:
            assert observation == game.seen(env.state, seat)
            observation, reward, *_, info = env.step(rng.choice(info["legal_actions"]))
        told, _, result = observation.rpartition("\n")
        assert told == game.seen(env.state, seat)
        assert reward == game.gain(env.state, seat) / game.stake
        assert (result, info["outcome"]) == {1: ("you win", "win"), 0: ("draw", "draw"), -1: ("you lose", "loss")}[
            (reward > 0) - (reward < 0)
        ]
    assert len(dealt) == len(game.deals) or name == "leduc"


def test_what_is_seen_reads_as_said():
    state, _ = next((state, chance) for state, chance in LEDUC.deals if state.cards == (2, 0, 1))
    for action in ("check", "bet", "call"):
        state = LEDUC.play(state, LEDUC.actions.index(action))
    assert LEDUC.seen(state, 0) == "first K\ntable Q\ncheck bet call"
    for action in ("bet", "call"):
        state = LEDUC.play(state, LEDUC.actions.index(action))
    assert LEDUC.seen(state, 1) == f"second J\ntable Q\ncheck bet call\nbet call\nfirst {RANKS[2]}"
