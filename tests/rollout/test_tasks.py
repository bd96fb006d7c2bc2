"""Which episodes a step plays: shares as near as whole numbers allow, seeds that name the episode."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.rollout.episode import Rules
from earl.rollout.tasks import EpisodeFactory, draw_tasks, group_episodes
from earl.trajectory import Task

SHARES = st.dictionaries(
    st.sampled_from(["random", "heuristic", "perfect", "random@0.5"]), st.floats(0.01, 10), min_size=1
)


def cells(tasks):
    return Counter((task.opponent, task.seat) for task in tasks)


@given(SHARES, st.integers(1, 200), st.integers(0, 1 << 62))
def test_every_cell_gets_its_share_up_to_one(shares, count, seed):
    tasks = draw_tasks({"tictactoe": shares}, count, seed)
    assert len(tasks) == count
    counted, total = cells(tasks), sum(shares.values())
    for opponent, share in shares.items():
        for seat in (0, 1):
            # The k points spaced alike that fall on a stretch of length x·count are ⌊x·count⌋ or one more.
            expected = count * share / total / 2
            assert expected - 1 - 1e-6 <= counted[opponent, seat] <= expected + 1 + 1e-6


def test_even_shares_that_divide_the_count_are_exact():
    tasks = draw_tasks({"tictactoe": {"random": 1, "perfect": 1}}, 8, seed=5)
    assert set(cells(tasks).values()) == {2}


def test_over_many_steps_every_cell_gets_its_share():
    # One task per step: only the offset decides. 2,000 draws of 0.3: deviation sqrt(2000·0.3·0.7) = 20.5.
    drawn = sum((cells(draw_tasks({"tictactoe": {"random": 3, "perfect": 2}}, 1, s)) for s in range(2000)), Counter())
    assert drawn["random", 0] == pytest.approx(600, abs=82)  # four deviations
    assert drawn["perfect", 1] == pytest.approx(400, abs=72)


def test_tool_tasks_have_no_opponent_and_one_seat():
    tasks = draw_tasks({"arithmetic": {"": 1}}, 5, seed=1)
    assert cells(tasks) == {("", 0): 5}
    assert len({task.seed for task in tasks}) == 5


def test_another_seed_gives_other_tasks_and_the_same_seed_the_same():
    first = draw_tasks({"tictactoe": {"random": 1}}, 6, seed=1)
    assert draw_tasks({"tictactoe": {"random": 1}}, 6, seed=1) == first
    other = draw_tasks({"tictactoe": {"random": 1}}, 6, seed=2)
    assert not {task.seed for task in other} & {task.seed for task in first}


def test_groups_start_alike_and_play_apart(chat):
    world = EpisodeFactory("tictactoe", {}, chat, Rules())
    tasks = dict(enumerate(draw_tasks({"tictactoe": {"random": 1}}, 3, seed=1)))
    episodes = group_episodes(world, tasks, 4, seed=9)
    assert [episode.task for episode in episodes] == [task for task in tasks.values() for _ in range(4)]
    assert len({episode.seed for episode in episodes}) == 12
    assert sorted(episode.session for episode in episodes) == list(range(12))


def test_an_episodes_seed_does_not_depend_on_who_plays_it(chat):
    world = EpisodeFactory("tictactoe", {}, chat, Rules())
    tasks = dict(enumerate(draw_tasks({"tictactoe": {"random": 1}}, 4, seed=1)))
    together = {episode.session: episode.seed for episode in group_episodes(world, tasks, 2, seed=9)}
    for rank in (0, 1):
        share = {number: task for number, task in tasks.items() if number % 2 == rank}
        for episode in group_episodes(world, share, 2, seed=9):
            assert together[episode.session] == episode.seed


def test_a_task_is_played_on_its_level(chat):
    levels = {"num_operations=5": {"num_operations": 5}}
    world = EpisodeFactory("arithmetic", {"num_operations": 2}, chat, Rules(), levels=levels)
    found = [world.make(Task("arithmetic", 1, 0, level)).reset(seed=1)[0] for level in ("", "num_operations=5")]
    assert [sum(sign in "+-" for sign in told) for told in found] == [2, 5]


def test_a_world_makes_the_environment_of_the_task(chat):
    world = EpisodeFactory("tictactoe", {"draw_reward": 0.5}, chat, Rules())
    env = world.make(Task("tictactoe", seed=1, seat=1, opponent="perfect"))
    assert (env.seat, env.draw_reward) == (1, 0.5)
    assert env.opponent.move is not None
    assert (
        EpisodeFactory("arithmetic", {"num_operations": 1}, chat, Rules()).make(Task("arithmetic", 1)).num_operations
        == 1
    )
