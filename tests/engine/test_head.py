"""Log-probs and entropies in slices against the logits of everything at once."""

import pytest
import torch

from earl.engine import score
from earl.engine.score import TokenScores


def plainly(states, weight, bias, targets, temperature):
    distribution = torch.log_softmax(torch.nn.functional.linear(states, weight, bias) / temperature, dim=-1)
    chosen = distribution.gather(1, targets[:, None])[:, 0]
    return chosen, -(distribution.exp() * distribution).sum(dim=-1)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("numbers", [1, 40, 10_000])  # one position at a time, 40 // 13 = 3, all
def test_values_and_gradients_are_those_of_plain_logits(monkeypatch, numbers, with_bias):
    monkeypatch.setattr(score, "LOGIT_SLICE", numbers)
    torch.manual_seed(0)
    inputs = [torch.randn(8, 5, dtype=torch.double), torch.randn(13, 5, dtype=torch.double)]
    inputs += [torch.randn(13, dtype=torch.double)] if with_bias else []
    targets, weights = torch.randint(0, 13, (8,)), torch.randn(2, 8)
    results = []
    for scored in (
        lambda states, weight, bias=None: TokenScores.apply(states, weight, bias, targets, 0.7, None),
        lambda states, weight, bias=None: plainly(states, weight, bias, targets, 0.7),
    ):
        leaves = [tensor.float().requires_grad_() for tensor in inputs]
        logprobs, entropy = scored(*leaves)
        ((weights[0] * logprobs).sum() + (weights[1] * entropy).sum()).backward()
        results.append([logprobs.detach(), entropy.detach(), *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
    assert results[0][2].abs().max() > 0.1


def test_logits_of_all_positions_never_exist_together(monkeypatch):
    monkeypatch.setattr(score, "LOGIT_SLICE", 26)
    made, plain = [], score._logits
    monkeypatch.setattr(score, "_logits", lambda states, *rest: made.append(len(states)) or plain(states, *rest))
    states = torch.randn(7, 5, requires_grad=True)
    logprobs, _ = TokenScores.apply(states, torch.randn(13, 5), None, torch.zeros(7, dtype=torch.long), 1.0, None)
    logprobs.sum().backward()
    assert made == [2, 2, 2, 1] * 2  # 26 // 13 = 2 at once, forward and backward


def test_narrow_weights_give_narrow_gradients_and_wide_scores():
    states, weight = (torch.randn(4, 6, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    logprobs, entropy = TokenScores.apply(states, weight, None, torch.tensor([0, 1, 2, 3]), 1.0, None)
    (logprobs.sum() + entropy.sum()).backward()
    assert (logprobs.dtype, entropy.dtype) == (torch.float32, torch.float32)
    assert (states.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.bfloat16)
