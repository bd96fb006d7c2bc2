"""What a learner keeps and gives back: value head, moments, weights."""

import numpy as np
import pytest
import torch

from earl.algorithms.registry import algorithm
from earl.config import AlgorithmConfig, LearnerConfig
from earl.engine.learner import Learner, Update
from earl.engine.local import LocalSampler
from earl.placement.peers import Peers
from earl.rollout.lockstep import play
from earl.rollout.pack import complete, pack, turn_values

MOVING = Update(learning_rate=1e-3, entropy=0.01, kl=0.0, minibatches=3, epochs=2, seed=4)


@pytest.fixture
def rows(small, episodes):
    policy = small()
    return pack(play(episodes(policy, 8), LocalSampler(policy)))


def with_returns(rows, returns):
    advantages = np.linspace(-1, 1, len(returns)).astype(np.float32)
    return complete(rows, advantages, np.asarray(returns, dtype=np.float32), None)


def ppo_learner(policy):
    return Learner(policy, AlgorithmConfig(), LearnerConfig(), 1.0, Peers(), values=True)


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_restoring_continues_to_the_bit(small, rows, name):
    batch = with_returns(rows, np.ones(int(rows.turns.max()) + 1))
    values = name == "ppo"

    def learner_of(policy):
        return Learner(policy, AlgorithmConfig(), LearnerConfig(), 1.0, Peers(), values)

    first = learner_of(small())
    first.update(batch, algorithm(name), MOVING)
    kept, state = {k: v.clone() for k, v in first.weights().items()}, first.state()
    first.update(batch, algorithm(name), MOVING)
    second = learner_of(small(seed=1))
    second.take(kept, state)
    second.update(batch, algorithm(name), MOVING)
    for other, own in ((second.weights(), first.weights()), (second.state(), first.state())):
        assert other.keys() == own.keys()
        assert all(torch.equal(other[key], own[key]) for key in own)


def test_the_state_is_a_copy(small, rows):
    learner = ppo_learner(small())
    batch = with_returns(rows, np.ones(int(rows.turns.max()) + 1))
    learner.update(batch, algorithm("ppo"), MOVING)
    state = learner.state()
    before = {name: tensor.clone() for name, tensor in state.items()}
    learner.update(batch, algorithm("ppo"), MOVING)
    assert all(torch.equal(state[name], before[name]) for name in state)


def test_restoring_a_younger_state_forgets_the_moments(small, rows):
    # The best weights may be from before the first update, when there were no moments yet.
    learner = ppo_learner(small())
    kept, state = {k: v.clone() for k, v in learner.weights().items()}, learner.state()
    batch = with_returns(rows, np.ones(int(rows.turns.max()) + 1))
    learner.update(batch, algorithm("ppo"), MOVING)
    learner.take(kept, state)
    assert learner.state().keys() == state.keys()


def test_values_begin_at_zero_and_learn_the_returns(small, rows):
    learner = ppo_learner(small())
    turns = int(rows.turns.max()) + 1
    returns = np.where(np.arange(turns) % 2, 0.5, -0.5)
    batch = with_returns(rows, returns)
    assert not learner.values(rows).any()
    update = Update(learning_rate=1e-2, entropy=0.0, kl=0.0, minibatches=1, epochs=1, seed=0)
    losses = [learner.update(batch, algorithm("ppo"), update)["value_loss"] for _ in range(60)]
    # At value 0 the mean square error is 0.25.
    assert losses[0] == pytest.approx(0.25)
    assert losses[-1] < 0.1
    read = turn_values(rows, learner.values(rows), turns)
    assert np.mean((read - returns) ** 2) < 0.1


def test_the_value_loss_is_the_mean_square_over_turns(small, rows):
    learner = ppo_learner(small())
    turns = int(rows.turns.max()) + 1
    returns = np.linspace(-1, 2, turns)
    still = Update(learning_rate=0.0, entropy=0.0, kl=0.0, minibatches=1, epochs=1, seed=0)
    stats = learner.update(with_returns(rows, returns), algorithm("ppo"), still)
    assert stats["value_loss"] == pytest.approx(np.mean(returns**2), rel=1e-5)
    # The head begins at zero: d/db of 0.5 · mean((0 - R)²) is 0.5 · 2 · mean(-R); clipping scales it with all the rest.
    scale = min(1.0, LearnerConfig().clip_grad_norm / stats["grad_norm"])
    assert learner.value_head.bias.grad.item() == pytest.approx(-returns.mean() * scale, rel=1e-4)


def test_values_stand_at_the_end_of_each_prompt_alone(small, rows):
    learner = ppo_learner(small())
    with torch.no_grad():
        learner.value_head.bias.fill_(2.0)
    values = learner.values(rows)
    assert values[rows.value_mask].tolist() == [2.0] * int(rows.value_mask.sum())
    assert not values[~rows.value_mask].any()


def test_logprobs_of_model_and_reference_stand_where_tokens_are_learned(small, rows):
    learner = ppo_learner(small())
    learner.logprobs(rows, reference=True)  # the reference is the model as it is now
    own = learner.logprobs(rows)
    learner.take(small(seed=1).model.state_dict(), learner.state())
    logprobs = learner.logprobs(rows)
    assert logprobs.shape == rows.tokens.shape
    assert not logprobs[~rows.mask].any()
    assert learner.logprobs(rows, reference=True).tolist() == own.tolist()
    assert own[rows.mask].tolist() == pytest.approx(rows.logprobs[rows.mask].tolist(), abs=1e-5)
    assert np.abs(own - logprobs)[rows.mask].max() > 0.1
