from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.agents.scripted.registry import player
from earl.envs import registry
from earl.envs.games.nim import Heaps, nim_game
from earl.errors import EarlError


@cache
def wins(heaps):
    """Whether the player to move wins: some move leads to heaps from which no one does. Nobody moves from none."""
    return any(not wins(after) for after in followers(heaps))


def followers(heaps):
    return [
        tuple(sorted((*heaps[:place], left, *heaps[place + 1 :])))
        for place, size in enumerate(heaps)
        for left in range(size)
    ]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_rules_and_perfect_moves_agree_with_plain_search(sizes, rng):
    game, expert = nim_game(tuple(sizes)), player("perfect", "nim")
    state = game.deals[0][0]
    plies = 0
    while legal := game.legal(state):
        assert (state.player, game.winner(state)) == (plies & 1, None)
        after = {move: tuple(sorted(game.play(state, move).heaps)) for move in legal}
        assert sorted(after.values()) == sorted(followers(state.heaps))
        losing = {move for move in legal if not wins(after[move])}
        assert {move for move, _ in expert.distribution(game, state)} == (losing or set(legal))
        state, plies = game.play(state, rng.choice(legal)), plies + 1
    assert game.winner(state) == 1 - plies & 1  # who moved last
    assert plies <= game.max_plies


def test_a_move_names_a_heap_and_a_number():
    env = registry.make("nim", heaps="1 12", opponent=player("perfect", "nim"))
    assert env.reset(seed=0)[0] == "first a:1 b:12"
    env.step("b11")
    assert env.state == Heaps((0, 1), 2) or env.state == Heaps((1, 0), 2)


@pytest.mark.parametrize("heaps", ["", "3,4", "0 1", "3  4", "100", "1 " * 9, "three", "-1"])
def test_heaps_that_are_none_are_refused(heaps):
    with pytest.raises(EarlError, match="nim has no heaps"):
        registry.make("nim", heaps=heaps)
