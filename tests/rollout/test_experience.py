"""What is learned from, and that it is read back from the batch token by token."""

from dataclasses import replace

import numpy as np
import pytest

from earl.algorithms.base import Advantages
from earl.rollout.drivers import play
from earl.rollout.pack import Learnable, complete, experiences, length_penalised, pack
from earl.trajectory import Group, StopReason


@pytest.fixture
def played(episode, script):
    """Plays one episode by a script."""
    return lambda *replies, **settings: play([episode(**settings)], script(replies))[0]


def test_what_a_limit_cut_is_left_out_when_the_recipe_says_so(played):
    whole, cut = played("1", "2", "3"), played("1" * 9, max_turn_tokens=3)
    failed = replace(whole, stop=StopReason.ENV_ERROR)
    groups = [Group((whole, cut, failed)), Group((cut, failed))]
    assert Learnable().learned(groups) == [Group((whole, cut)), Group((cut,))]
    assert Learnable(truncated=False).learned(groups) == [Group((whole,))]


def test_a_length_penalty_is_charged_turn_by_turn(played):
    own = played("1", "2", "3")
    (group,) = length_penalised([Group((own,))], 0.1)
    # Every reply has 2 tokens: 0.25 - 0.2 a turn.
    assert [turn.reward for turn in group.trajectories[0].turns] == pytest.approx([0.05] * 3)
    assert own.reward == 0.75  # what is stored stays the environment's
    groups = [Group((own,))]
    assert length_penalised(groups, 0.0) is groups


@pytest.mark.parametrize("history", ["full", "board_only", "last_turns:1"])
def test_masks_and_advantages_are_read_back_from_the_batch(played, history):
    own, left_out = played("1", "2", "3", history=history), played("1", "2", "3")
    twin = played("1", "3", "3", history=history)
    rows = pack([own, twin])
    advantages = np.array([0.5, -1.0, 2.0, 3.0, 4.0, 5.0], np.float32)  # 3 turns each
    batch = complete(rows, Advantages(advantages, np.zeros(6, np.float32)), None)
    logprobs = -np.arange(1, len(rows.tokens) + 1, dtype=np.float32)
    groups = [Group((own, left_out)), Group((twin,))]
    first, none, second = experiences(groups, [Group((own,)), Group((twin,))], batch, logprobs)
    assert first.mask.tolist() == own.sampled.tolist()
    assert first.advantages.tolist() == [0.5, -1.0, 2.0]
    assert second.advantages.tolist() == [3.0, 4.0, 5.0]
    assert not (none.mask.any() or none.advantages.any() or none.logprobs.any())
    flat = np.concatenate([first.logprobs[first.mask], second.logprobs[second.mask]])
    assert flat.tolist() == logprobs[rows.mask].tolist()
    assert not first.logprobs[~first.mask].any()
