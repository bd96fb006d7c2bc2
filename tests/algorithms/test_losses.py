"""Every loss against the same sum written out with loops, and its gradient against finite differences."""

from math import exp, log

import pytest
import torch

from earl.algorithms.base import TokenInputs
from earl.algorithms.imitation import Imitation
from earl.algorithms.loss import importance_weighted, kl_to_reference
from earl.algorithms.registry import ALGORITHMS, algorithm

KEYS = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)  # row and turn of one token

# exp(0.5) = 1.65 and exp(-0.5) = 0.61 are outside of 1 ± 0.2, exp(±0.1) inside; each with both advantages.
SHIFTS = [0.5, 0.5, -0.5, -0.5, 0.1, 0.1, -0.1, -0.1, 0.05]  # their sum is not zero: a sign shows
ADVANTAGES = [1.0, -2.0, 1.0, -2.0, 1.0, -2.0, 1.0, -2.0, 0.5]
OLD = [-0.7, -1.1, -0.2, -2.0, -0.3, -0.9, -1.4, -0.6, -0.05]
REFERENCE = [-0.5, -1.5, -0.9, -1.0, -0.3, -2.0, -0.1, -0.6, -0.8]


def inputs(logprobs=None):
    """Nine learned tokens, in float64 so that finite differences are sharp."""
    old = torch.tensor(OLD, dtype=torch.float64)
    now = old + torch.tensor(SHIFTS, dtype=torch.float64) if logprobs is None else logprobs
    return TokenInputs(
        logprobs=now,
        entropy=torch.zeros_like(now),
        old_logprobs=old,
        advantages=torch.tensor(ADVANTAGES, dtype=torch.float64),
        reference=torch.tensor(REFERENCE, dtype=torch.float64),
        rows=torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2]),
        turns=torch.tensor([0, 0, 0, 1, 1, 2, 2, 3, 4]),
    )


def naive_clipped(low, high):
    total = 0.0
    for shift, advantage in zip(SHIFTS, ADVANTAGES, strict=True):
        ratio = exp(shift)
        clipped = max(1 - low, min(1 + high, ratio))
        total += min(ratio * advantage, clipped * advantage)
    return -total


def numeric_gradient(function, at, step=1e-6):
    gradient = []
    for place in range(len(at)):
        shift = torch.zeros_like(at)
        shift[place] = step
        gradient.append(float(function(at + shift) - function(at - shift)) / (2 * step))
    return gradient


@pytest.mark.parametrize(("low", "high"), [(0.2, None), (0.2, 0.28), (0.6, 0.7)])
def test_clipped_surrogate(low, high):
    loss, stats = algorithm("grpo", clip=low, clip_high=high).loss(inputs())
    upper = low if high is None else high
    assert float(loss.sum()) == pytest.approx(naive_clipped(low, upper))
    # A bound holds above it for a positive advantage, below it for a negative one.
    pairs = zip(SHIFTS, ADVANTAGES, strict=True)
    bound = [shift for shift, a in pairs if (exp(shift) > 1 + upper if a > 0 else exp(shift) < 1 - low)]
    assert float(stats["clip_fraction"]) == len(bound)
    assert float(stats["ratio"]) == pytest.approx(sum(exp(shift) for shift in SHIFTS))
    assert float(stats["kl_to_sampler"]) == pytest.approx(sum(exp(shift) - 1 - shift for shift in SHIFTS))


def test_clipping_by_hand():
    # ratio 1.65, clip 0.2. A = 1: min(1.65, 1.2) = 1.2, flat. A = -2: min(-3.30, -2.4) = -3.30, pushes back.
    now = (torch.tensor(OLD, dtype=torch.float64) + torch.tensor(SHIFTS)).requires_grad_()
    algorithm("grpo", clip=0.2).loss(inputs(now))[0].sum().backward()
    assert now.grad is not None
    assert now.grad[:4].tolist() == pytest.approx([0.0, 2 * exp(0.5), -exp(-0.5), 0.0])


def test_importance_weighted():
    loss, stats = importance_weighted(inputs())
    assert float(loss.sum()) == pytest.approx(-sum(exp(s) * a for s, a in zip(SHIFTS, ADVANTAGES, strict=True)))
    assert "clip_fraction" not in stats


def test_on_policy_every_surrogate_has_the_gradient_of_reinforce():
    # At ratio 1 the gradient of -ratio·A with respect to log π is -A.
    for name in ALGORITHMS:
        now = torch.tensor(OLD, dtype=torch.float64, requires_grad=True)
        how = algorithm(name, aggregation="token")
        how.loss(inputs(now))[0].sum().backward()
        assert now.grad is not None
        assert now.grad.tolist() == pytest.approx([-advantage for advantage in ADVANTAGES])


def test_kl_to_reference_is_the_k3_estimate():
    now = [old + shift for old, shift in zip(OLD, SHIFTS, strict=True)]
    expected = 0.0
    for reference, own in zip(REFERENCE, now, strict=True):
        ratio = exp(reference) / exp(own)
        expected += ratio - 1 - log(ratio)
    assert float(kl_to_reference(inputs()).sum()) == pytest.approx(expected)


def test_kl_estimate_is_unbiased():
    # The expectation of r - 1 - log r under π is sum π·log(π / π_ref), since sum π_ref = sum π = 1.
    policy, reference = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
    expected = sum(p * log(p / q) for p, q in zip(policy, reference, strict=True))
    estimate = 0.0
    for p, q in zip(policy, reference, strict=True):
        row = torch.tensor([log(p)], dtype=torch.float64)
        one = TokenInputs(row, row, row, row, torch.tensor([log(q)], dtype=torch.float64), *KEYS)
        estimate += p * float(kl_to_reference(one))
    assert estimate == pytest.approx(expected)


def test_imitation_is_the_negative_log_likelihood():
    loss, stats = Imitation().loss(inputs())
    assert float(loss.sum()) == pytest.approx(-sum(o + s for o, s in zip(OLD, SHIFTS, strict=True)))
    assert stats == {}


@pytest.mark.parametrize(
    "loss",
    [
        lambda given: algorithm("grpo", clip_high=0.3).loss(given)[0].sum(),
        lambda given: algorithm("ppo", dual_clip=1.5).loss(given)[0].sum(),
        lambda given: importance_weighted(given)[0].sum(),
        lambda given: Imitation().loss(given)[0].sum(),
        lambda given: kl_to_reference(given, "k1").sum(),
        lambda given: kl_to_reference(given, "k2").sum(),
        lambda given: kl_to_reference(given, "k3").sum(),
    ],
    ids=["clipped", "dual", "importance", "imitation", "k1", "k2", "k3"],
)
def test_gradients_equal_finite_differences(loss):
    now = (torch.tensor(OLD, dtype=torch.float64) + torch.tensor(SHIFTS, dtype=torch.float64)).requires_grad_()
    loss(inputs(now)).backward()
    assert now.grad is not None
    numeric = numeric_gradient(lambda at: loss(inputs(at)), now.detach())
    assert now.grad.tolist() == pytest.approx(numeric, abs=1e-6)
