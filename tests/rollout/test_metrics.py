"""The numbers of a step, worked out by hand on three short episodes."""

from dataclasses import replace

import pytest

from earl.placement.embedded import groups_from_bytes, groups_to_bytes
from earl.rollout.drivers import play
from earl.rollout.metrics import context_metrics, episode_metrics, match_measures, staleness_metrics
from earl.runs.trajectories import from_bytes, to_bytes
from earl.trajectory import Group, StopReason, ToolCall


@pytest.fixture
def played(episode, script):
    """Three episodes: a win in three turns, a forfeit in the second, a cut in the first."""
    scripts = (("1", "2", "3"), ("1", "9"), ("11111111",))
    return play([episode(session, max_turn_tokens=4) for session in range(3)], script(*scripts))


def test_episode_metrics(played):
    win, forfeit, cut = played
    numbers = episode_metrics([Group((win, forfeit)), Group((cut, cut))])
    assert numbers["episodes"] == 4
    # Returns 0.75, 0.25 - 1, -1, -1: together -2.
    assert numbers["reward"] == pytest.approx(-0.5)
    assert numbers["won"] == 0.25
    # Turns 3, 2, 1, 1; replies that broke the rule 0, 1, 1, 1.
    assert numbers["turns"] == pytest.approx(7 / 4)
    assert numbers["illegal_replies"] == pytest.approx(3 / 7)
    # Only the second group's returns are all alike.
    assert numbers["zero_variance_groups"] == 0.5
    assert {name: share for name, share in numbers.items() if name.startswith("stop/") and share} == {
        "stop/finished": 0.25,
        "stop/illegal_action": 0.25,
        "stop/truncated_turn": 0.5,
    }
    assert sum(numbers[f"stop/{stop}"] for stop in StopReason) == 1


def test_calls_of_tools_are_counted(played):
    win, forfeit, cut = played
    late = ToolCall("python", 100.0, 0.5, 2.0, 1, "timeouts")
    one = replace(win, tools=(late, ToolCall("python", 102.5, 0.0, 1.0)))
    two = replace(cut, tools=(ToolCall("python", 100.0, 0.25, 1.0, 1), ToolCall("search", 102.0, 0.0, 0.5)))
    groups = [Group((one, forfeit)), Group((two, two))]
    numbers = episode_metrics(groups)
    assert {name: own for name, own in numbers.items() if name.startswith("tool/")} == {
        "tool/python/calls": 4,
        "tool/python/timeouts": 1,
        "tool/python/queue_seconds": 0.25,  # (0.5 + 0 + 0.25 + 0.25) / 4
        "tool/python/run_seconds": 1.25,  # (2 + 1 + 1 + 1) / 4
        "tool/search/calls": 2,
        "tool/search/queue_seconds": 0.0,
        "tool/search/run_seconds": 0.5,
    }
    told = from_bytes(to_bytes(groups))  # in another process
    assert episode_metrics(told) == numbers
    assert told[0].trajectories[0].tools == one.tools and told[0].trajectories[1].tools == ()
    assert [*groups_from_bytes(groups_to_bytes({3: groups[0], 1: groups[1]}))] == [3, 1]


def test_staleness_is_that_of_the_sampled_tokens(episode, script):
    (older,) = play([episode()], script(("1", "2", "3"), version=2))  # 6 sampled tokens
    (newer,) = play([episode()], script(("1", "9"), version=4))  # 4
    numbers = staleness_metrics([Group((older,)), Group((newer,))], version=4)
    assert numbers == {"staleness/mean": pytest.approx((6 * 2 + 4 * 0) / 10), "staleness/max": 2}


def test_context_metrics(played):
    numbers = context_metrics(played)
    # Episodes of 18, 12 and 8 tokens ("(0$[1111"); turns of 6, 6, 6, 6, 6 and 8.
    assert numbers["tokens"] == 38
    assert numbers["tokens/sampled"] == 3 * 2 + 2 * 2 + 4
    assert numbers["context/episode/mean"] == pytest.approx(38 / 3)
    assert (numbers["context/episode/p50"], numbers["context/episode/max"]) == (12, 18)
    assert numbers["context/turn/mean"] == pytest.approx(38 / 6)
    assert (numbers["context/turn/p50"], numbers["context/turn/max"]) == (6, 8)
    # Between 6 (place 4 of 0 … 5) and 8 (place 5): 0.95 · 5 = 4.75 gives 7.5.
    assert numbers["context/turn/p95"] == pytest.approx(7.5)


def test_match_measures_by_hand(played):
    measures = match_measures(played, [2.0, 1.0, 1.0])
    # Weights 2, 1, 1 of 4. A forfeit and a cut are losses, and both broke the rule once.
    assert (measures["win"], measures["draw"], measures["loss"]) == (0.5, 0.0, 0.5)
    assert (measures["illegal"], measures["truncated"]) == (0.5, 0.25)


def test_equal_weights_count_every_episode_alike(played):
    measures = match_measures(played, [1.0] * 3)
    assert measures["win"] == pytest.approx(1 / 3)
    assert measures["win"] + measures["draw"] + measures["loss"] == pytest.approx(1)
