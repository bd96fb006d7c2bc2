import pytest

from earl.config import AlgorithmConfig, LearnerConfig
from earl.placement.pipeline import entropy_weight, learning_rate, ramp


def rates(steps, **settings):
    config = LearnerConfig(**{"learning_rate": 1.0, **settings})
    return [learning_rate(config, step, steps) for step in range(1, steps + 1)]


def test_without_a_final_value_the_rate_stays():
    assert rates(4) == [1.0] * 4


def test_a_linear_way_after_half_of_the_steps():
    # Steps 3 and 4 lie 1/2 and 2/2 of the way from 1 to 0.2.
    assert rates(4, final_learning_rate=0.2) == pytest.approx([1.0, 1.0, 0.6, 0.2])


def test_a_cosine_way_from_the_start():
    # (1 - cos(π·k/4)) / 2 for k = 1 … 4: 0.1464, 0.5, 0.8536, 1.
    expected = [1 - way for way in (0.146447, 0.5, 0.853553, 1.0)]
    shape = {"final_learning_rate": 0.0, "schedule": "cosine", "decay_from": 0.0}
    assert rates(4, **shape) == pytest.approx(expected, abs=1e-6)


def test_warming_up_multiplies_whatever_else_holds():
    assert rates(4, warmup_steps=2) == [0.5, 1.0, 1.0, 1.0]
    assert rates(4, warmup_steps=4, final_learning_rate=0.0, decay_from=0.0) == pytest.approx(
        [0.25 * 0.75, 0.5 * 0.5, 0.75 * 0.25, 0.0]
    )


def test_a_way_that_begins_at_the_end_never_begins():
    assert rates(3, final_learning_rate=0.0, decay_from=1.0) == [1.0] * 3


def test_a_run_of_one_step_ends_at_the_final_value():
    assert rates(1, final_learning_rate=0.25) == [0.25]


def test_entropy_follows_the_learners_way():
    algorithm = AlgorithmConfig(entropy=0.03, final_entropy=0.01)
    weights = [entropy_weight(algorithm, LearnerConfig(), step, 4) for step in (1, 2, 3, 4)]
    assert weights == pytest.approx([0.03, 0.03, 0.02, 0.01])
    assert entropy_weight(AlgorithmConfig(entropy=0.03), LearnerConfig(), 4, 4) == 0.03


def test_beyond_the_last_step_the_final_value_stays():
    assert ramp(9, 4, 1.0, 0.5, 0.5, "linear") == 0.5
