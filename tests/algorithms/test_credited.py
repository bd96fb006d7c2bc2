"""Which episodes are compared, and which of them are learned from."""

from dataclasses import replace

from earl.algorithms.registry import algorithm
from earl.rollout.pack import Learnable, assign_credit
from earl.trajectory import Group, StopReason


def test_what_a_limit_cut_keeps_its_place_in_the_baseline(group):
    # Returns 1, 0 and -1 (cut off): their mean is 0. Without the last one it would be 0.5.
    won, drawn, cut = group([1.0], [0.0], [0.0, -1.0]).trajectories
    cut = replace(cut, stop=StopReason.CONTEXT_LIMIT)
    found = assign_credit(algorithm("dr_grpo"), [Group((won, cut, drawn))], Learnable(truncated=False))
    assert found.turns.tolist() == [1.0, 0.0]


def test_flat_groups_are_left_out_when_the_algorithm_says_so(group):
    flat, alone, uneven = group([1.0], [0.5, 0.5]), group([2.0]), group([1.0], [0.0])
    assert Learnable(flat=False).learned([flat, alone, uneven]) == [uneven]
    # 1 and 2 tokens at 0.1 each: the returns are 0.9 and 0.8.
    assert Learnable(flat=False, length_penalty=0.1).learned([flat, alone]) == [flat]
    assert assign_credit(algorithm("dapo"), [flat, uneven], Learnable(flat=False)).turns.shape == (2,)


def test_a_group_is_flat_by_all_of_its_episodes(group):
    won, cut = group([1.0], [0.0]).trajectories
    cut = replace(cut, stop=StopReason.CONTEXT_LIMIT)
    assert Learnable(truncated=False, flat=False).learned([Group((won, cut))]) == [Group((won,))]
