"""Adapters: they alone are trained, the weights that are handed on have them, the reference does not."""

import numpy as np
import pytest
import torch

from earl.algorithms.base import Advantages
from earl.algorithms.imitation import Imitation
from earl.algorithms.registry import algorithm
from earl.config import AlgorithmConfig, LearnerConfig
from earl.engine.learner import Learner, Update
from earl.engine.local import LocalSampler
from earl.engine.lora import is_factor
from earl.engine.ranks import Ranks
from earl.placement.peers import Peers
from earl.rollout.drivers import play
from earl.rollout.pack import complete, pack

MOVING = Update(learning_rate=1e-2, entropy=0.01, minibatches=2, epochs=2, seed=4, config=AlgorithmConfig(kl=0.1))


@pytest.fixture
def batch(small, episodes):
    policy = small()
    rows = pack(play(episodes(policy, 6), LocalSampler(policy)))
    turns = int(rows.turns.max()) + 1
    worth = np.linspace(-1, 1, turns).astype(np.float32)
    return complete(rows, Advantages(worth, worth), rows.logprobs)


def adapted(policy):
    return Learner(policy, LearnerConfig(lora_rank=2), 1.0, Ranks(Peers()), False)


def test_at_first_nothing_changes(small, batch):
    plain = small().model.state_dict()
    weights = adapted(small()).weights()
    assert weights.keys() == plain.keys()
    assert all(torch.equal(weights[name], plain[name]) for name in plain)


def test_only_adapters_are_trained_and_the_weights_have_them(small, batch):
    learner, other = adapted(small()), small()
    before = learner.logprobs(batch)
    assert np.array_equal(learner.logprobs(batch, reference=True), before)
    learner.update(batch, algorithm("grpo"), MOVING)
    trained = [name for name, parameter in learner.scorer.model.named_parameters() if parameter.requires_grad]
    assert trained
    assert all(map(is_factor, trained))
    other.model.load_state_dict(learner.weights())
    merged = Learner(other, LearnerConfig(), 1.0, Ranks(Peers()), False)
    after = learner.logprobs(batch)
    assert np.abs(after - before).max() > 1e-3
    assert np.allclose(merged.logprobs(batch), after, atol=1e-5)
    assert np.array_equal(learner.logprobs(batch, reference=True), before)


def test_the_reference_is_the_model_after_its_warm_start(small, batch, tmp_path):
    learner = adapted(small())
    new = learner.logprobs(batch)
    learner.update(batch, Imitation(), MOVING)
    imitated, weights = learner.logprobs(batch), learner.weights()
    held = learner.snapshot()  # not written yet, and shares tensors
    assert np.array_equal(learner.logprobs(batch, reference=True), imitated)
    assert np.abs(imitated - new).max() > 1e-3
    assert all(torch.equal(tensor, weights[name]) for name, tensor in learner.weights().items())
    learner.update(batch, algorithm("grpo"), MOVING)
    assert np.array_equal(learner.logprobs(batch, reference=True), imitated)
    assert np.abs(learner.logprobs(batch) - imitated).max() > 1e-3
    held(tmp_path)
    saved = adapted(small(seed=1))
    saved.restore(tmp_path)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in saved.weights().items())


def test_a_resumed_learner_goes_on_to_the_bit(small, batch, tmp_path):
    first = adapted(small())
    first.update(batch, Imitation(), MOVING)
    first.logprobs(batch, reference=True)
    first.update(batch, algorithm("grpo"), MOVING)
    first.snapshot()(tmp_path)
    first.update(batch, algorithm("grpo"), MOVING)
    second = adapted(small(seed=1))
    second.restore(tmp_path)
    second.update(batch, algorithm("grpo"), MOVING)
    ours, theirs = second.weights(), first.weights()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert np.array_equal(second.logprobs(batch, reference=True), first.logprobs(batch, reference=True))
