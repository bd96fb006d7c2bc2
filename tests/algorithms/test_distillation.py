"""The weight of a teacher in reinforcement learning."""

import pytest

from earl.algorithms.imitation import distillation_weight
from earl.step import Progress, _distillation


def test_the_weight_falls_with_the_gap():
    # 0.5 · (1 - 0.2/0.8) = 0.375; a policy that earns less than nothing is no further away than one that earns nothing.
    assert distillation_weight(0.5, 0.2, 0.8) == pytest.approx(0.375)
    assert distillation_weight(0.5, -0.6, 0.8) == 0.5
    assert distillation_weight(0.5, 0.9, 0.8) == 0


def test_once_the_teacher_is_reached_it_is_not_asked_again(tiny):
    config = tiny(warm_start={"distill": 1.0})
    progress = Progress(step=4, teacher_return=0.5)
    assert _distillation(config, progress, 0.4) == pytest.approx(0.2)
    assert progress.teacher_return == 0.5
    assert _distillation(config, progress, 0.5) == 0
    assert _distillation(config, progress, 0.1) == 0


def test_the_period_ends_it(tiny):
    config = tiny(warm_start={"distill": 1.0, "distill_steps": 2})  # after 3 steps of imitation
    progress = Progress(step=4, teacher_return=0.5)
    assert _distillation(config, progress, 0.0) == 1
    progress.step = 5
    assert _distillation(config, progress, 0.0) == 1
    progress.step = 6
    assert _distillation(config, progress, 0.0) == 0
