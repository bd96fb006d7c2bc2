"""top_p and top_k: what is sampled, what is learned, and the bias of a learner that does not know of it."""

import numpy as np
import pytest
import torch

from earl.algorithms.base import TokenInputs
from earl.algorithms.registry import algorithm
from earl.engine.local import LocalSampler
from earl.engine.sampler import NOTHING_CUT, Truncation
from earl.engine.score import Scorer, TokenScores, review, score
from earl.rollout.drivers import play
from earl.rollout.pack import pack
from tests.sampling import sampled


def naive_kept(chances, truncation):
    """The tokens that are kept, most likely first, one after the other until top_p of what top_k left is reached."""
    order = sorted(range(len(chances)), key=lambda token: -chances[token])[: truncation.top_k or None]
    whole, kept, reached = sum(chances[token] for token in order), [], 0.0
    for token in order:
        if kept and reached >= truncation.top_p:
            break
        kept.append(token)
        reached += chances[token] / whole
    return kept


def drawn_at_random(number):
    rng = np.random.default_rng(number)
    logits = torch.from_numpy(rng.normal(scale=2, size=(6, 11))).float()
    truncation = Truncation(float(rng.choice([0.3, 0.8, 0.95, 1.0])), int(rng.choice([0, 1, 3, 20])))
    return rng, logits, truncation


def naive_logprobs(logits, targets, truncation):
    """The log-probs of targets, and the entropies, row by row; a target is kept in any case."""
    found = []
    for row, target in zip(logits, targets.tolist(), strict=True):
        kept = {*naive_kept(row.softmax(-1).tolist(), truncation), target}
        own = torch.stack([row[token] for token in sorted(kept)])
        shares = own - own.exp().sum().log()
        found.append((row[target] - own.exp().sum().log(), -(shares.exp() * shares).sum()))
    return [torch.stack(column) for column in zip(*found, strict=True)]


@pytest.mark.parametrize("number", sampled(range(200), every=20))
def test_scores_and_gradients_are_those_of_the_distribution_that_is_left(number):
    rng, logits, truncation = drawn_at_random(number)
    targets = torch.from_numpy(rng.integers(11, size=6))
    weights = torch.from_numpy(rng.normal(size=(2, 6))).float()
    given, known = logits.double().requires_grad_(), logits.clone().requires_grad_()
    # Logits as states times the unit matrix.
    scores = TokenScores.apply(known, torch.eye(11), None, targets, 1.0, None, (truncation, 11))
    naive = naive_logprobs(given, targets, truncation)
    for ours, theirs in zip(scores, naive, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-5, rtol=1e-5)
    sum((own * part).sum() for own, part in zip(scores, weights, strict=True)).backward()
    sum((own * part).sum() for own, part in zip(naive, weights.double(), strict=True)).backward()
    torch.testing.assert_close(known.grad.double(), given.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("truncation", [Truncation(0.8), Truncation(1.0, 5), Truncation(0.9, 20)], ids=str)
def test_the_learner_gives_every_sampled_token_the_samplers_logprob(small, plain, episodes, truncation):
    policy = small()
    rows = pack(play(episodes(policy, 8), LocalSampler(policy, 1.3, truncation=truncation)))
    said = rows.logprobs[rows.mask]
    assert score(Scorer(policy.model), rows, 1.3, truncation).logprobs.tolist() == pytest.approx(
        said.tolist(), abs=1e-5
    )
    known, below = review(policy.model, rows, 1.3, truncation)
    assert known[rows.mask].tolist() == pytest.approx(said.tolist(), abs=1e-5)
    assert (below >= -1e-9).all()
    assert (below + np.exp(known) <= 1 + 1e-6)[rows.mask].all()
    whole = score(Scorer(policy.model), rows, 1.3).logprobs.detach().numpy()
    first = rows.tokens[: rows.offsets[1]]
    for place in np.flatnonzero(rows.mask[: rows.offsets[1]]):
        chances = plain(policy.model, first[:place], 1.3)[-1].exp().tolist()
        kept = naive_kept(chances, truncation)
        assert first[place] in kept
        assert rows.logprobs[place] == pytest.approx(
            np.log(chances[first[place]] / sum(chances[t] for t in kept)), abs=1e-5
        )
    assert (said >= whole - 1e-6).all()
    assert (said > whole + 0.05).any(), "what was cut off counts"


def bandit(theta, behaviour, rewards, learned, kind):
    """The expected gradient of an algorithm's loss on a bandit whose arms are tokens, by enumeration of the arms that
    `behaviour` [V] plays, with the mean reward as the baseline."""
    arms = np.flatnonzero(behaviour)
    states, targets = torch.ones(len(arms), 1), torch.from_numpy(arms)
    weight = theta.clone()[:, None].requires_grad_()  # logits = 1 · theta
    logprobs, entropy = TokenScores.apply(states, weight, None, targets, 1.0, None, (learned, len(theta)))
    chances = torch.from_numpy(behaviour[arms]).float()
    advantages = torch.tensor(rewards)[arms] - (chances * torch.tensor(rewards)[arms]).sum()
    zeros, numbers = torch.zeros(len(arms)), torch.arange(len(arms))
    inputs = TokenInputs(logprobs, entropy, chances.log(), advantages, zeros, numbers, numbers)
    losses, _ = kind.loss(inputs)
    (-(chances * losses).sum()).backward()
    return weight.grad[:, 0].double().numpy()


def truncated(theta, truncation):
    chances = theta.double().softmax(-1).numpy()
    kept = naive_kept(chances.tolist(), truncation)
    left = np.zeros(len(chances))
    left[kept] = chances[kept] / chances[kept].sum()
    return left


def analytic(theta, truncation, rewards):
    """∇ Σ q(a)·R(a) of the truncated policy q: q(a)·(R(a) - Σ q·R)."""
    q = truncated(theta, truncation)
    return q * (np.array(rewards) - (q * rewards).sum())


CUT, REWARDS = Truncation(0.8), [1.0, 0.0, -1.0, 2.0, 0.5]
THETA = torch.log(torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05]))  # top-p 0.8 keeps the first three, 85 %
MOVED = THETA + torch.tensor([0.15, -0.1, 0.05, 0.0, 0.0])  # after an update, with the same three kept


@pytest.mark.parametrize("now", [THETA, MOVED], ids=["on policy", "after an update"])
@pytest.mark.parametrize("kind", [algorithm("rloo"), algorithm("grpo", clip=0.9)], ids=["rloo", "grpo"])
def test_top_p_leaves_no_bias_in_the_gradient_on_a_bandit(now, kind):
    played = truncated(THETA, CUT)
    assert played[3:].tolist() == [0, 0]
    # Σ q_old·(q/q_old)·A·∇log q: the old policy's baseline is a constant, which has no gradient.
    assert bandit(now, played, REWARDS, CUT, kind) == pytest.approx(analytic(now, CUT, REWARDS), abs=1e-6)


def test_a_learner_that_does_not_know_of_top_p_is_biased():
    played, right = truncated(THETA, CUT), analytic(THETA, CUT, REWARDS)
    found = bandit(THETA, played, REWARDS, NOTHING_CUT, algorithm("rloo"))
    # Every ratio is 0.85 in place of 1: contexts count by the mass that was kept in each.
    assert found == pytest.approx(0.85 * right, abs=1e-6)
    # A narrow clip takes that for an update, and holds every arm that is worse than the mean: the best one alone moves.
    clipped = bandit(THETA, played, REWARDS, NOTHING_CUT, algorithm("grpo", clip=0.1))
    assert bandit(THETA, played, REWARDS, CUT, algorithm("grpo", clip=0.1)) == pytest.approx(right, abs=1e-6)
    assert np.abs(clipped - right).max() > 0.2 * np.abs(right).max()
    assert clipped[3] < -1e-3, "arms that were never played are moved"
    after, wanted = bandit(MOVED, played, REWARDS, NOTHING_CUT, algorithm("rloo")), analytic(MOVED, CUT, REWARDS)
    assert np.abs(after - wanted).max() > 0.1 * np.abs(wanted).max()


def test_labels_are_learned_under_the_whole_distribution():
    assert algorithm("grpo").on_samples
    theta = torch.zeros(4)
    theta[0] = 5.0
    weight = theta[:, None].requires_grad_()
    for cut, mass in ((NOTHING_CUT, theta.exp().sum()), (CUT, theta[[0, 3]].exp().sum())):
        logprobs, _ = TokenScores.apply(torch.ones(1, 1), weight, None, torch.tensor([3]), 1.0, None, (cut, 4))
        assert logprobs.item() == pytest.approx(-mass.log().item(), abs=1e-6)
