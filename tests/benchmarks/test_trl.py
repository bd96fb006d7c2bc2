"""The parts of `earl bench trl` that need no TRL; `earl bench losses` is the comparison itself."""

from random import Random

import numpy as np
import pytest

from earl.benchmarks import trl
from earl.benchmarks.trl_trainer import Calculator, JsonArithmetic, StageTimes, answered
from earl.recipe import build, override


def test_the_teacher_calls_in_json_and_solves_the_task() -> None:
    env = JsonArithmetic(num_operations=2)
    env.reset(seed=3)
    ended = False
    while not ended:
        action = env.solve(Random(0))
        _, reward, ended, _, info = env.step(action)
        assert "illegal" not in info
        assert ended or action.startswith('<tool_call>{"name": "calc"')
    assert reward == 1.0


def test_both_sides_have_the_same_task_by_its_seed() -> None:
    theirs, ours = Calculator(num_operations=2), JsonArithmetic(num_operations=2)
    assert theirs.reset(seed=7) == ours.reset(seed=7)[0]
    call = ours.next_operation
    assert theirs.calc(call) == str(ours.calc(call))


def test_only_an_answer_that_is_right_scores() -> None:
    env = Calculator()
    env.reset(seed=1)
    right = {"role": "assistant", "content": str(env.env.results[-1])}
    wrong, empty = {"role": "assistant", "content": "1 or 2"}, {"role": "assistant"}
    called = {**right, "tool_calls": [{"function": {"name": "calc"}}]}
    assert answered([[right], [wrong], [empty], [called]], [env] * 4) == [1.0, 0.0, 0.0, 0.0]


def test_a_stage_does_not_count_the_stages_inside_of_it() -> None:
    class Nested:
        def outer(self) -> str:
            return self.inner()

        def inner(self) -> str:
            return "done"

    one, clock = Nested(), StageTimes()
    clock.time(one, "outer", "outside")
    clock.time(one, "inner", "inside")
    assert one.outer() == "done"
    assert set(clock.spent) == {"outside", "inside"}
    assert clock._inner == [pytest.approx(sum(clock.spent.values()))]


def test_the_recipe_in_their_words() -> None:
    config = build(override(trl.RECIPE, ["rollout.episodes=32", "run.steps=3", "env.options.num_operations=3"]))
    told = trl.trl_settings(config)
    # 3 operations and 2 turns more: the last of 5 is no call that is carried out and answered.
    assert (told["max_tool_calling_iterations"], told["max_completion_length"], told["max_steps"]) == (4, 320, 3)
    assert (told["per_device_train_batch_size"], told["num_generations"]) == (32, 8)


@pytest.mark.parametrize("name", trl.CASES)
def test_our_side_of_the_comparison_of_losses_has_the_gradient_of_its_value(name: str) -> None:
    batch = trl._batch(np.random.default_rng(0))
    value, gradient = trl._loss(trl.CASES[name], batch)
    assert (gradient[np.array(batch["mask"]) == 0] == 0).all()
    assert np.isfinite(value)
    assert np.abs(gradient).max() > 0


def test_our_advantages_are_told_with_the_deviation_that_theirs_has() -> None:
    rewards = [1.0, 0.0, 0.0, 1.0, 3.0, 1.0, 1.0, 3.0]
    # Deviations with n - 1: sqrt(1 / 3) and sqrt(4 / 3).
    expected = [0.5 / (3**-0.5 + 1e-4), 1 / (2 * 3**-0.5 + 1e-4)]
    found = trl._advantages(trl.SCALES["group"], rewards)
    assert found[[0, 4]] == pytest.approx(expected, rel=1e-5)
