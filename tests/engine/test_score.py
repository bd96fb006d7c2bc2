"""Packed scoring against one plain forward pass per row."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from earl.engine.local import LocalSampler
from earl.engine.model import hidden_states
from earl.engine.score import Scorer, score, spread
from earl.rollout.drivers import play
from earl.rollout.pack import pack


@pytest.fixture
def rows(policy, episodes):
    return pack(play(episodes(policy, 7), LocalSampler(policy)))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_and_entropy_equal_a_pass_per_row(policy, rows, plain, temperature):
    scores = score(Scorer(policy.model), rows, temperature)
    logprobs, entropy = [], []
    for start, end in pairwise(rows.offsets):
        tokens, learned = rows.tokens[start:end], np.flatnonzero(rows.mask[start:end])
        whole = plain(policy.model, tokens, temperature)[learned - 1]
        logprobs += whole[range(len(learned)), tokens[learned]].tolist()
        entropy += [-sum(p * log for p, log in zip(row.exp(), row, strict=True)).item() for row in whole]
    assert scores.logprobs.tolist() == pytest.approx(logprobs, abs=1e-5)
    assert scores.entropy.tolist() == pytest.approx(entropy, abs=1e-4)


def test_scores_equal_what_the_sampler_said(policy, rows):
    assert score(Scorer(policy.model), rows, 1.0).logprobs.tolist() == pytest.approx(
        rows.logprobs[rows.mask].tolist(), abs=1e-5
    )


def test_targets_need_not_be_the_tokens(policy, rows, plain):
    rows.targets[rows.mask] = 7
    first = rows.tokens[: rows.offsets[1]]
    learned = np.flatnonzero(rows.mask[: rows.offsets[1]])
    expected = plain(policy.model, first)[learned - 1, 7]
    assert score(Scorer(policy.model), rows, 1.0).logprobs[: len(learned)].tolist() == pytest.approx(
        expected.tolist(), abs=1e-5
    )


def test_values_are_read_before_each_reply(policy, rows):
    scorer = Scorer(policy.model, values=True)
    torch.nn.init.normal_(scorer.value_head.weight)
    values = score(scorer, rows, 1.0).values
    first = torch.from_numpy(rows.tokens[: rows.offsets[1]]).long()[None]
    own = hidden_states(policy.model, first, use_cache=False)[0][rows.value_mask[: rows.offsets[1]]]
    assert torch.allclose(values[: len(own)], scorer.value_head(own)[:, 0], atol=1e-4)
    assert len(values) == rows.value_mask.sum()


def test_entropy_of_a_uniform_model_is_the_log_of_its_vocabulary(small, episodes):
    policy = small()
    rows = pack(play(episodes(policy, 2), LocalSampler(policy)))
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.zero_()
    scores = score(Scorer(policy.model), rows, 1.0)
    assert scores.entropy.tolist() == pytest.approx([np.log(106)] * len(scores.entropy), rel=1e-6)
    assert scores.logprobs.tolist() == pytest.approx([-np.log(106)] * len(scores.logprobs), rel=1e-6)


def test_scores_of_rows_that_come_again(policy, rows):
    chosen = np.array([4, 0, 0, 2])
    scorer = Scorer(policy.model, values=True)
    torch.nn.init.normal_(scorer.value_head.weight)
    spread_out = spread(score(scorer, rows, 1.0), rows, chosen)
    scored = score(scorer, rows.select(chosen), 1.0)
    assert torch.allclose(spread_out.logprobs, scored.logprobs, atol=1e-5)
    assert torch.allclose(spread_out.entropy, scored.entropy, atol=1e-5)
    assert torch.allclose(spread_out.values, scored.values, atol=1e-4)
