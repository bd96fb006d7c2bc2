"""The embedded sampler against plain `transformers`, token by token."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
import torch

from earl.engine.local import LocalSampler
from earl.engine.model import tensors_once
from earl.rollout.drivers import Greedy, play
from earl.rollout.pack import pack
from earl.trajectory import Prompt, StopReason


def held_bytes(sampler):
    """Of weights, and of keys and values."""
    stores = [store for layer in sampler._contexts._cache.layers for store in (layer.keys, layer.values)]
    weights = tensors_once(sampler._model).values()
    return sum(tensor.nbytes for tensor in weights), sum(store.nbytes for store in stores if store is not None)


def assert_logprobs(trajectories, model, plain, temperature=1.0):
    """What the sampler recorded equals a full forward pass over each context."""
    rows = pack(trajectories)
    for start, end in pairwise(rows.offsets):
        tokens, mask = rows.tokens[start:end], rows.mask[start:end]
        learned = np.flatnonzero(mask)
        expected = plain(model, tokens, temperature)[learned - 1, tokens[learned]]
        assert rows.logprobs[start:end][mask].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("rules", [{}, {"history": "board_only"}, {"context_limit": 60}], ids=str)
def test_logprobs_equal_a_full_forward_pass(policy, plain, episodes, rules):
    played = play(episodes(policy, 12, **rules), LocalSampler(policy))
    assert_logprobs(played, policy.model, plain)
    assert len({len(trajectory.tokens) for trajectory in played}) > 3
    assert any(trajectory.illegal for trajectory in played)  # cut replies, closed by the template and retried
    assert any(trajectory.stop is StopReason.CONTEXT_LIMIT for trajectory in played) == ("context_limit" in rules)


def test_logprobs_are_of_the_tempered_distribution(small, plain, episodes):
    policy = small()
    played = play(episodes(policy, 8), LocalSampler(policy, temperature=1.7))
    assert_logprobs(played, policy.model, plain, temperature=1.7)


@pytest.mark.slow
def test_the_cache_follows_the_number_of_episodes(small, plain, episodes):
    policy = small()
    sampler = LocalSampler(policy)
    for count, first in ((3, 0), (40, 100), (5, 200), (41, 300)):
        assert_logprobs(play(episodes(policy, count, first), sampler), policy.model, plain)
    assert not sampler._contexts._slots
    # 41 contexts side by side at most; slots double from 16: 64.
    assert sampler._contexts._cache.layers[0].keys.shape[0] == 64


def test_an_interrupted_rollout_leaves_nothing_that_shows(small, plain, episodes):
    # Its sessions were never released; the next rollout has the same sessions and other contexts.
    policy = small()
    sampler = LocalSampler(policy)
    sampler.generate([episode.prompt() for episode in episodes(policy, 5, first=900)])
    assert_logprobs(play(episodes(policy, 8), sampler), policy.model, plain)


@pytest.mark.slow
def test_an_episode_is_the_same_alone_and_among_others(policy, episodes):
    together = play(episodes(policy, 20), LocalSampler(policy))
    for number in (0, 7, 19):
        alone = play(episodes(policy, 20)[number : number + 1], LocalSampler(policy))[0]
        assert alone.tokens.tolist() == together[number].tokens.tolist()
        assert alone.logprobs.tolist() == pytest.approx(together[number].logprobs.tolist(), abs=1e-5)


def test_the_same_rollout_is_the_same_to_the_bit(small, episodes):
    policy = small()
    first, second = (play(episodes(policy, 20), LocalSampler(policy)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.tokens.tobytes() == b.tokens.tobytes()
        assert a.logprobs.tobytes() == b.logprobs.tobytes()


def test_greedy_takes_the_most_likely_token(policy, plain, episodes):
    played = play(episodes(policy, 6), Greedy(LocalSampler(policy)))
    rows = pack(played)
    for start, end in pairwise(rows.offsets):
        tokens, learned = rows.tokens[start:end], np.flatnonzero(rows.mask[start:end])
        assert plain(policy.model, tokens)[learned - 1].argmax(dim=-1).tolist() == tokens[learned].tolist()
    assert_logprobs(played, policy.model, plain)


def test_new_weights_leave_nothing_of_the_old(policy, plain, episodes):
    sampler = LocalSampler(policy)
    running = episodes(policy, 6)
    for episode, completion in zip(running, sampler.generate([e.prompt() for e in running]), strict=True):
        episode.receive(completion)
    waiting = [episode for episode in running if episode.stop is None]
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(0.7)
    sampler.load(policy.model.state_dict(), version=5)
    completions = sampler.generate([episode.prompt() for episode in waiting])
    for episode, completion in zip(waiting, completions, strict=True):
        prompt = list(episode.prompt().tokens)
        expected = plain(policy.model, prompt + completion.tokens)[len(prompt) - 1 :]
        own = [float(expected[i, token]) for i, token in enumerate(completion.tokens)]
        assert completion.logprobs == pytest.approx(own, abs=1e-5)
        assert completion.versions == [5] * len(completion.tokens)


def test_the_sampler_keeps_its_own_copy_of_the_weights(small, episodes):
    policy = small()
    sampler = LocalSampler(policy)
    before = play(episodes(policy, 4), sampler)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.zero_()
    again = play(episodes(policy, 4), sampler)
    assert [t.tokens.tolist() for t in before] == [t.tokens.tolist() for t in again]


def test_a_completion_ends_with_the_stop_token_or_at_its_bound(small):
    policy = small()
    stop = policy.tokenizer.eos_token_id
    prompts = [Prompt(i, [3, 20, 30, 5, 4], seed=i, max_tokens=1 + i % 7) for i in range(200)]
    completions = LocalSampler(policy, temperature=3.0).generate(prompts)
    for prompt, completion in zip(prompts, completions, strict=True):
        assert 1 <= len(completion.tokens) == len(completion.logprobs) <= prompt.max_tokens
        assert stop not in completion.tokens[:-1]
        assert completion.finished == (completion.tokens[-1] == stop)
        assert completion.finished or len(completion.tokens) == prompt.max_tokens
    assert 0 < sum(completion.finished for completion in completions) < 200


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_tokens_come_as_often_as_their_probabilities_say(small, plain, temperature):
    policy, context, draws = small(), [2, 20, 30, 5, 3], 20_000
    prompts = [Prompt(i, context, seed=12345 + i, max_tokens=1) for i in range(draws)]
    completions = LocalSampler(policy, temperature).generate(prompts)
    counts = np.bincount([completion.tokens[0] for completion in completions], minlength=106)
    expected = plain(policy.model, context, temperature)[-1].double().exp().numpy() * draws
    # Cells with fewer than 5 expected draws are taken together.
    rare = expected < 5
    observed = [*counts[~rare], counts[rare].sum()]
    wanted = [*expected[~rare], max(expected[rare].sum(), 1e-9)]
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, wanted, strict=True))
    cells = len(wanted) - 1
    assert cells > 20
    assert statistic < cells + 4 * (2 * cells) ** 0.5  # mean and four deviations of chi-square


def test_contexts_that_are_alike_are_computed_once(small, plain, monkeypatch):
    policy = small()
    sampler = LocalSampler(policy, temperature=2.0)
    forward, batches = sampler._contexts._forward, []
    counted = lambda slots, new: batches.append(len(slots)) or forward(slots, new)  # noqa: E731
    monkeypatch.setattr(sampler._contexts, "_forward", counted)
    contexts = {session: [2, 20, 30, 5, 3] if session % 2 else [2, 21, 3] for session in range(40)}
    for turn in range(3):
        prompts = [Prompt(session, tokens, 100 * turn + session, 3) for session, tokens in contexts.items()]
        completions = sampler.generate(prompts)
        for prompt, completion in zip(prompts, completions, strict=True):
            tokens = [*prompt.tokens, *completion.tokens]
            expected = plain(policy.model, tokens, 2.0)[len(prompt.tokens) - 1 :]
            own = [float(expected[i, token]) for i, token in enumerate(completion.tokens)]
            assert completion.logprobs == pytest.approx(own, abs=1e-5)
            contexts[prompt.session] = [*tokens, 7, 8]
        if turn == 0:  # some histories meet again, others stay apart
            assert batches[:2] == [1, 1]  # one of 3 tokens, one of 5
            assert 2 < batches[2] <= 40
            contexts |= {session: list(contexts[1]) for session in range(0, 40, 3)}
    assert len({tuple(tokens) for tokens in contexts.values()}) > 20


@pytest.mark.slow
def test_whatever_sessions_come_in_whatever_order(small, plain):
    # Contexts go on, fall back, restart and meet; sessions stay away for a while, end, and begin anew.
    policy, rng = small(), Random(5)
    sampler, contexts = LocalSampler(policy, temperature=0.3), {}
    for turn in range(60):
        for session in rng.sample(range(8), rng.randint(0, 3)):
            sampler.release([session])
            contexts.pop(session, None)
        for session in rng.sample(range(8), rng.randint(1, 8)):
            own = contexts.get(session, [2])
            base = rng.choice([own, own, own[: len(own) // 2] or [2], [2], *contexts.values()])
            contexts[session] = [*base, *rng.choices([7, 8], k=rng.randint(1, 5))]
        asked = rng.sample(sorted(contexts), rng.randint(1, len(contexts)))
        prompts = [Prompt(session, contexts[session], 100 * turn + session, rng.randint(1, 4)) for session in asked]
        for prompt, completion in zip(prompts, sampler.generate(prompts), strict=True):
            tokens = [*prompt.tokens, *completion.tokens]
            expected = plain(policy.model, tokens, 0.3)[len(prompt.tokens) - 1 :]
            own = [float(expected[i, token]) for i, token in enumerate(completion.tokens)]
            assert completion.logprobs == pytest.approx(own, abs=5e-5)  # temperature 0.3 enlarges the rounding
            contexts[prompt.session] = tokens
    assert sampler._contexts._cache.layers[0].keys.shape[0] == 16  # 8 sessions never take more than the first 16 slots


def test_a_session_that_stays_away_finds_its_context_again(small, monkeypatch):
    sampler = LocalSampler(small())
    forward, fed = sampler._contexts._forward, []
    counted = lambda slots, new: fed.append([len(n.new) for n in new]) or forward(slots, new)  # noqa: E731
    monkeypatch.setattr(sampler._contexts, "_forward", counted)
    long = [2, *range(30, 80), 3]
    for session in range(4):
        sampler.generate([Prompt(session, [*long, 20 + session], seed=session, max_tokens=1)])
    fed.clear()
    sampler.generate([Prompt(session, [*long, 20 + session, 7, 8], seed=9, max_tokens=1) for session in range(4)])
    assert fed == [[2, 2, 2, 2]]  # what was new since, and nothing of the 53 tokens before


def test_a_sampler_that_is_closed_holds_nothing(small, episodes):
    policy = small()
    sampler = LocalSampler(policy)
    play(episodes(policy, 4), sampler)
    assert min(held_bytes(sampler)) > 0
    model = sampler._model  # whoever else knows it does not keep the memory
    sampler.close()
    assert held_bytes(sampler) == (0, 0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 0
