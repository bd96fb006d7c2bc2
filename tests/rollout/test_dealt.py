"""Groups of games that begin by chance: alike in both seats, against scripted players and in self-play."""

import pytest

from earl.envs import registry
from earl.errors import EarlError
from earl.evaluation import matches
from earl.rollout.episode import Rules
from earl.rollout.tasks import EpisodeFactory, group_episodes
from earl.trajectory import Task

ALIKE = ("bargain", "gomoku", "kuhn", "leduc", "nim", "othello")


@pytest.fixture
def group(chat):
    def make(env, seat, opponent, seed):
        world = EpisodeFactory(env, {}, chat, Rules(context_limit=4096))
        return group_episodes(world, {0: Task(env, seed, seat, opponent)}, 16, seed)

    return make


@pytest.mark.parametrize("env", ALIKE)
@pytest.mark.parametrize("seat", [0, 1])
def test_a_group_starts_alike_and_groups_do_not(group, env, seat):
    first = [{episode.observation for episode in group(env, seat, "random", seed)} for seed in range(20)]
    assert all(len(told) == 1 for told in first)
    if seat or registry.make(env).dealt:
        assert len(set.union(*first)) > 1


@pytest.mark.parametrize("env", ["kuhn", "leduc"])
def test_a_group_has_one_deal_and_its_opponents_then_go_apart(group, env):
    went = []
    for seed in range(20):
        episodes = group(env, 0, "random", seed)
        assert len({episode.env.state.cards for episode in episodes}) == 1
        went.append({episode.env.step("check")[0] for episode in episodes})
    assert any(len(told) > 1 for told in went)


def test_tictactoe_keeps_its_openings(group):
    # As its runs were recorded: the opponent's first move is drawn by episode.
    assert len({episode.observation for episode in group("tictactoe", 1, "random", 0)}) > 1


@pytest.mark.parametrize("env", ["kuhn", "leduc"])
def test_self_play_deals_a_group_alike_and_each_seat_sees_its_own_card(group, env):
    dealt = set()
    for seed in range(10):
        games = group(env, 0, "self", seed)
        boards = [game.board for game in games]
        assert len({board.state.cards for board in boards}) == 1
        dealt.add(boards[0].state.cards)
        for board in boards:
            for seat in (0, 1):
                told, *_ = board.seen_by(seat)
                assert told == f"{('first', 'second')[seat]} {'JQK'[board.state.cards[seat]]}"
    assert len(dealt) > 1


def test_exact_evaluation_of_a_dealt_game_is_refused(chat):
    world = EpisodeFactory("kuhn", {}, chat, Rules())
    with pytest.raises(EarlError, match="kuhn deals at random, and --exact lists replies alone"):
        matches(world, ["random"], True, 10)
    assert len(matches(world, ["random"], False, 10)) == 2
