"""A fault in somebody's environment ends one episode with a record; the others go on."""

import pytest

from earl.rollout.lockstep import play
from earl.trajectory import Outcome, StopReason


class Broken:
    """Mixed into the counting environment: one of its methods fails."""

    def __init__(self, base, method):
        self.base, self.method = base, method

    def __getattr__(self, name):
        if name == self.method:
            return self.fail
        return getattr(self.base, name)

    def fail(self, *_, **__):
        raise KeyError("no such board")


def test_a_fault_in_step_ends_the_episode_with_a_record(episode, script):
    result = play([episode()], script(("1", "fail")))[0]
    assert (result.stop, result.outcome) == (StopReason.ENV_ERROR, Outcome.LOSS)
    assert result.error is not None
    assert result.error.startswith("RuntimeError: out of numbers (line ")
    assert [turn.action for turn in result.turns] == ["1", "fail"]
    assert result.reward == 0.25  # nobody is charged for the environment's fault


@pytest.mark.parametrize("method", ["reset", "rule", "step"])
def test_a_fault_in_any_method_is_a_record(episode, script, counting, method):
    sampler = script(("1", "2", "3"))
    result = play([episode(env=Broken(counting(), method))], sampler)[0]
    assert (result.stop, result.outcome) == (StopReason.ENV_ERROR, Outcome.LOSS)
    assert result.error is not None
    assert result.error.startswith("KeyError: 'no such board'")
    assert len(result.turns) == (method != "reset")
    assert len(result.tokens) == len(result.authors) == len(result.logprobs) == len(result.versions)


def test_an_outcome_that_there_is_not_is_a_fault_of_the_environment(episode, script):
    result = play([episode()], script(("odd",)))[0]
    assert result.stop is StopReason.ENV_ERROR
    assert result.error is not None
    assert "tie" in result.error


def test_a_failing_episode_leaves_the_others_alone(episode, script, counting):
    episodes = [episode(0), episode(1, env=Broken(counting(), "reset")), episode(2)]
    sampler = script(("1", "fail"), (), ("1", "2", "3"))
    results = play(episodes, sampler)
    assert [result.stop.value for result in results] == ["env_error", "env_error", "finished"]
    assert all(prompt.session != 1 for prompts in sampler.prompts for prompt in prompts)


def test_interrupts_are_not_faults(episode, counting):
    class Interrupted(counting):
        def step(self, action):
            raise KeyboardInterrupt

    own = episode(env=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        own._act(0, "1")
