"""Every algorithm against sums written out token by token and episode by episode, on 200 random batches."""

from collections import defaultdict
from math import exp, sqrt

import numpy as np
import pytest
import torch

from earl.algorithms.base import TokenInputs
from earl.algorithms.loss import aggregated
from earl.algorithms.registry import algorithm

BATCHES = range(200)
GROUPED = {
    "grpo": {},
    "dr_grpo": {},
    "dapo": {"overlong_limit": 5, "overlong_buffer": 3},
    "gigpo": {"gamma": 0.9, "omega": 0.7},
    "rloo": {},
    "reinforce++": {},
    "reinforce++ alone": {"baseline": "none"},
    "grpo by batch": {"scale": "batch"},
}
LOSSES = {
    "grpo": {"clip": 0.2, "clip_high": 0.3},
    "ppo": {"dual_clip": 1.5},
    "dr_grpo": {"constant_tokens": 7},
    "gspo": {"clip": 0.1, "clip_high": 0.15},
    "cispo": {"clip": 0.5, "clip_high": 0.3},
    "rloo": {},
}


def made(name, options):
    return algorithm(name.split()[0], **options)


def mean(numbers):
    return sum(numbers) / len(numbers)


def deviation(numbers):
    return sqrt(mean([(number - mean(numbers)) ** 2 for number in numbers]))


def scaled(numbers):
    return [(number - mean(numbers)) / (deviation(numbers) + 1e-4) for number in numbers]


def naive_group(name, group, options):
    """The advantages of the episodes of one group, before the batch is normalised."""
    returns = [sum(episode) for episode in group]
    if name == "dapo":
        # A turn has one token; the penalty goes from 0 at 5 - 3 tokens to 1 at 5.
        returns = [own - min(1, max(0, (len(e) - 2) / 3)) for own, e in zip(returns, group, strict=True)]
    if name in ("grpo", "dapo", "gigpo"):
        return scaled(returns)
    if name == "rloo":
        others = [returns[:place] + returns[place + 1 :] for place in range(len(returns))]
        return [own - mean(rest) for own, rest in zip(returns, others, strict=True)]
    return returns if name == "reinforce++ alone" else [own - mean(returns) for own in returns]


def naive_states(group, states, gamma):
    """GiGPO's advantage of each turn among the turns of its group with the same state."""
    to_go = [[sum(gamma ** (k - t) * e[k] for k in range(t, len(e))) for t in range(len(e))] for e in group]
    met = defaultdict(list)
    for values, own in zip(to_go, states, strict=True):
        for value, state in zip(values, own, strict=True):
            met[state].append(value)
    return [
        [(value - mean(met[state])) / (deviation(met[state]) + 1e-4) for value, state in zip(values, own, strict=True)]
        for values, own in zip(to_go, states, strict=True)
    ]


@pytest.mark.parametrize("name", GROUPED)
def test_advantages(name, group, in_states):
    options = GROUPED[name]
    for seed in BATCHES:
        rng = np.random.default_rng(seed)
        rewards = [[rng.normal(size=rng.integers(1, 7)).tolist() for _ in range(rng.integers(2, 6))] for _ in range(3)]
        states = [[rng.integers(0, 3, len(episode)).tolist() for episode in one] for one in rewards]
        groups = [in_states(group(*one), own) for one, own in zip(rewards, states, strict=True)]
        flat = [value for one in rewards for value in naive_group(name, one, options)]
        if name.startswith("reinforce++") or options.get("scale") == "batch":
            flat = [(value - mean(flat)) / deviation(flat) for value in flat]
        expected = np.repeat(flat, [len(episode) for one in rewards for episode in one])
        if name == "gigpo":
            pairs = zip(rewards, states, strict=True)
            inside = [v for one, own in pairs for e in naive_states(one, own, options["gamma"]) for v in e]
            expected = expected + options["omega"] * np.array(inside)
        found = made(name, options).advantages(groups, np.zeros(len(expected), np.float32)).turns
        assert np.abs(found - expected).max() <= 1e-5


def random_inputs(seed):
    """Rows of 1 to 9 tokens; one advantage for each row, as an episode has it."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 10, rng.integers(1, 6))
    rows = np.repeat(np.arange(len(lengths)), lengths)
    old = -rng.exponential(size=len(rows))
    columns = (old + rng.normal(0, 0.3, len(rows)), np.zeros(len(rows)), old, rng.normal(size=len(lengths))[rows])
    now, entropy, old, worth = (torch.tensor(column, dtype=torch.float64) for column in columns)
    keys = torch.tensor(rows), torch.arange(len(rows))
    return TokenInputs(now.requires_grad_(), entropy, old, worth, old - 0.1, *keys)


def naive_tokens(name, options, now, old, worth):
    """The loss of each token of one row, and its derivative by the token's log-prob."""
    shifts = [a - b for a, b in zip(now, old, strict=True)]
    ratios = [exp(mean(shifts))] * len(shifts) if name == "gspo" else [exp(shift) for shift in shifts]
    clip = options.get("clip", 0.2)
    low, high = 1 - clip, 1 + options.get("clip_high", clip)
    for ratio, logprob in zip(ratios, now, strict=True):
        clipped = min(max(ratio, low), high)
        if name == "rloo":
            yield -ratio * worth, -ratio * worth
        elif name == "cispo":
            yield -clipped * worth * logprob, -clipped * worth
        elif name == "ppo" and worth < 0 and ratio > options["dual_clip"]:
            yield -options["dual_clip"] * worth, 0.0
        elif clipped * worth < ratio * worth:
            yield -clipped * worth, 0.0
        else:
            yield -ratio * worth, -ratio * worth


def weight_of(how, length, lengths):
    """What a token of a row of `length` tokens weighs in the mean of a minibatch."""
    return {
        "token": 1 / sum(lengths),
        "sequence": 1 / (length * len(lengths)),
        "constant": 1 / (how.constant_tokens * len(lengths)),
    }[how.aggregation]


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients(name):
    how = algorithm(name, **LOSSES[name])
    for seed in BATCHES:
        inputs = random_inputs(seed)
        lengths = torch.bincount(inputs.rows).tolist()
        total, gradient, start = 0.0, [], 0
        for length in lengths:
            own = slice(start, start + length)
            columns = inputs.logprobs[own].tolist(), inputs.old_logprobs[own].tolist(), float(inputs.advantages[start])
            weight = weight_of(how, length, lengths)
            for loss, slope in naive_tokens(name, LOSSES[name], *columns):
                total += weight * loss
                gradient.append(weight * slope)
            start += length
        counts = len(inputs.logprobs), len(lengths), how.constant_tokens
        found = aggregated(how.loss(inputs)[0], inputs.rows, how.aggregation, *counts) / len(inputs.logprobs)
        found.backward()
        assert float(found.detach()) == pytest.approx(total, abs=1e-5)
        assert inputs.logprobs.grad.tolist() == pytest.approx(gradient, abs=1e-4)


@pytest.mark.parametrize("mode", ["token", "sequence", "constant"])
def test_micro_batches_add_up_to_the_minibatch(mode):
    inputs = random_inputs(3)
    losses, counts = inputs.logprobs.detach(), (len(inputs.rows), int(inputs.rows.max()) + 1, 16)
    whole = aggregated(losses, inputs.rows, mode, *counts)
    parts = [inputs.rows == row for row in range(counts[1])]
    summed = sum(aggregated(losses[own], inputs.rows[own] * 0, mode, *counts) for own in parts)
    assert float(whole) == pytest.approx(float(summed))


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "cispo", "rloo", "ppo"])
@pytest.mark.parametrize("chance", [0.5, 0.8, 0.1])
def test_on_a_two_armed_bandit_the_gradient_is_the_analytic_one(name, chance):
    """Arms that pay 1 and 0, π(first) = σ(θ): d/dθ E[R] = σ(θ)·(1 - σ(θ)), whatever constant is the baseline."""
    theta = torch.tensor(chance / (1 - chance), dtype=torch.float64).log().requires_grad_()
    logprobs = torch.nn.functional.logsigmoid(torch.stack([theta, -theta]))
    chances, keys = logprobs.detach().exp(), (torch.arange(2), torch.arange(2))
    worth = torch.tensor([1.0, 0.0], dtype=torch.float64) - 0.3
    zeros = torch.zeros_like(worth)
    loss, _ = algorithm(name).loss(TokenInputs(logprobs, zeros, logprobs.detach(), worth, zeros, *keys))
    (loss * chances).sum().backward()  # the expectation over draws of the policy itself
    assert -float(theta.grad) == pytest.approx(chance * (1 - chance), abs=1e-6)
