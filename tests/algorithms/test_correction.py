from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from earl.algorithms.base import TokenInputs
from earl.algorithms.loss import corrected
from earl.algorithms.registry import ALGORITHMS, algorithm
from earl.batch import Batch, offsets_of

CAP = 2.0
KEYS = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 2, 2])  # row and turn of four tokens


def batch(rows):
    """A batch of rows of (sampler's log-prob, advantage) pairs; None is a token that is not learned from."""
    tokens = [token for row in rows for token in row]
    mask = np.array([token is not None for token in tokens], np.bool_)
    zeros = np.zeros(len(tokens), np.float32)
    pairs = np.array([token or (0.0, 0.0) for token in tokens], np.float32).reshape(-1, 2)
    return Batch(
        offsets=offsets_of([len(row) for row in rows]),
        tokens=zeros.astype(np.int32),
        mask=mask,
        targets=zeros.astype(np.int32),
        logprobs=pairs[:, 0],
        turns=np.where(mask, 0, -1).astype(np.int32),
        value_mask=np.zeros(len(tokens), np.bool_),
        advantages=pairs[:, 1],
        reference=zeros,
        returns=zeros,
        values=zeros,
    )


# Ratios 1.5, 4 | 0.5, and a row without learned tokens.
BATCH = batch([[None, (-1.0, 1.0), None, (-2.0, -1.0)], [None], [(-0.5, 2.0)]])
PROXIMAL = np.array([0, -1 + log(1.5), 0, -2 + log(4), 0, -0.5 + log(0.5)], np.float32)


def test_by_token_each_weight_is_its_own_ratio_up_to_the_cap():
    found, stats = corrected(BATCH, PROXIMAL, "token", CAP)
    assert found.advantages == pytest.approx([0, 1.5, 0, -2, 0, 1])  # 4 is capped at 2
    assert found.logprobs == pytest.approx(PROXIMAL)
    assert stats["correction/weight"] == pytest.approx((1.5 + 2 + 0.5) / 3)
    assert stats["correction/capped"] == pytest.approx(1 / 3)
    kl = [r - 1 - log(r) for r in (1.5, 4, 0.5)]
    assert stats["kl_to_sampler"] == pytest.approx(sum(kl) / 3)


def test_by_sequence_a_row_has_one_weight_the_product_of_its_ratios():
    found, stats = corrected(BATCH, PROXIMAL, "sequence", 7.0)
    assert found.advantages == pytest.approx([0, 6, 0, -6, 0, 1])  # 1.5 * 4 = 6
    assert stats["correction/capped"] == 0
    found, stats = corrected(BATCH, PROXIMAL, "sequence", CAP)
    assert found.advantages == pytest.approx([0, 2, 0, -2, 0, 1])
    assert stats["correction/capped"] == pytest.approx(2 / 3)


def test_weights_outside_the_caps_are_dropped():
    found, stats = corrected(BATCH, PROXIMAL, "token", 1.6, "drop")
    assert found.advantages == pytest.approx([0, 1.5, 0, 0, 0, 0])  # 4 is above 1.6, and 0.5 below 1 / 1.6
    assert stats["correction/capped"] == pytest.approx(2 / 3)
    found, _ = corrected(BATCH, PROXIMAL, "sequence", 2.5, "drop")
    assert found.advantages == pytest.approx([0, 0, 0, 0, 0, 1])  # 6 is above 2.5


def test_a_batch_that_teaches_nothing_has_nothing_to_correct():
    for rows in ([], [[None]]):
        empty = batch(rows)
        found, stats = corrected(empty, empty.logprobs, "sequence", CAP)
        assert found is empty
        assert not stats


@given(st.lists(st.floats(-5, 0), min_size=1, max_size=8), st.sampled_from(["token", "sequence"]))
def test_on_policy_nothing_is_corrected(logprobs, mode):
    own = batch([[(value, 1.0) for value in logprobs]])
    found, stats = corrected(own, own.logprobs, mode, CAP)
    assert np.array_equal(found.advantages, own.advantages)
    assert np.array_equal(found.logprobs, own.logprobs)
    assert stats == {"correction/weight": 1.0, "correction/capped": 0.0, "kl_to_sampler": 0.0}


@given(
    st.lists(st.tuples(st.floats(-4, 0), st.floats(-4, 0)), min_size=1, max_size=6),
    st.sampled_from(["token", "sequence"]),
    st.floats(1, 5),
)
def test_weights_lie_between_0_and_the_cap(pairs, mode, cap):
    own = batch([[(sampler, 1.0) for sampler, _ in pairs]])
    found, _ = corrected(own, np.array([proximal for _, proximal in pairs], np.float32), mode, cap)
    assert (found.advantages > 0).all()
    assert (found.advantages <= cap * (1 + 1e-6)).all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_weight_on_the_advantage_is_a_weight_on_the_loss(name):
    """What `corrected` rests on, for every algorithm."""
    old = torch.tensor([-0.7, -1.1, -0.2, -2.0])
    inputs = TokenInputs(
        old + torch.tensor([0.5, -0.5, 0.1, -0.1]), torch.zeros(4), old, torch.ones(4), torch.zeros(4), *KEYS
    )
    for sign in (1.0, -1.0):
        losses = []
        for weight in (1.0, 1.7):
            own = replace(inputs, advantages=torch.full((4,), sign * weight))
            losses.append(float(algorithm(name).loss(own)[0].sum()))
        assert losses[1] == pytest.approx(1.7 * losses[0])


def test_the_first_gradient_is_the_truncated_importance_weighted_one():
    """d/dθ of the decoupled loss at θ = prox is -min(cap, π_prox/π_sampler)·A, however far the sampler is."""
    found, _ = corrected(BATCH, PROXIMAL, "token", CAP)
    mask = torch.from_numpy(found.mask)
    logprobs = torch.from_numpy(found.logprobs)[mask].requires_grad_()
    advantages = torch.from_numpy(found.advantages)[mask]
    zeros = torch.zeros_like(advantages)
    inputs = TokenInputs(logprobs, zeros, logprobs.detach(), advantages, zeros, zeros.long(), zeros.long())
    algorithm("grpo").loss(inputs)[0].sum().backward()
    sampler, own = BATCH.logprobs[BATCH.mask], PROXIMAL[BATCH.mask]
    plain = BATCH.advantages[BATCH.mask]
    expected = [
        -min(CAP, exp(p - s)) * a for p, s, a in zip(own.tolist(), sampler.tolist(), plain.tolist(), strict=True)
    ]
    assert logprobs.grad.tolist() == pytest.approx(expected)
