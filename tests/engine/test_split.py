"""A sampler over several processes against one that is whole: the same episodes, and its share of the memory."""

import os

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from earl.benchmarks.layouts import free_port
from earl.benchmarks.placements import RECIPE
from earl.benchmarks.processes import run
from earl.config import ModelConfig
from earl.engine.attention import ATTENTION
from earl.engine.local import LocalSampler
from earl.engine.model import Policy, character_tokenizer, make, tensors_once
from earl.engine.sampler import Probe, StaleWeights
from earl.errors import EarlError
from earl.placement.fragment import RolloutFragment
from earl.recipe import build
from earl.rollout.tasks import draw

pytestmark = pytest.mark.slow

MODEL = ModelConfig(hidden=32, layers=2, heads=4, head_dim=8, intermediate=48)


def held_bytes(sampler):
    """Of weights, and of keys and values."""
    stores = [store for layer in sampler._contexts._cache.layers for store in (layer.keys, layer.values)]
    weights = tensors_once(sampler._model).values()
    return sum(tensor.nbytes for tensor in weights), sum(store.nbytes for store in stores if store is not None)


def wide(seed):
    """earl's own architecture: 106 words over 4 processes are 27 + 27 + 27 + 25."""
    return make(MODEL, seed)


def tied(seed):
    """Four query heads share two key-value heads, and the output layer shares the embeddings' weights."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    tokenizer = character_tokenizer()
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=106, eos_token_id=tokenizer.eos_token_id, **shape, **heads))
    model.set_attn_implementation(ATTENTION)
    return Policy(model, tokenizer)


def mixture(seed):
    """Four experts in a layer, of which a token passes two."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "head_dim": 8, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_experts_per_tok": 2, "num_experts": 4}
    tokenizer = character_tokenizer()
    config = Qwen3MoeConfig(
        vocab_size=106, eos_token_id=tokenizer.eos_token_id, moe_intermediate_size=24, **shape, **heads
    )
    model = Qwen3MoeForCausalLM(config)
    model.set_attn_implementation(ATTENTION)
    return Policy(model, tokenizer)


POLICIES = {"wide": wide, "tied": tied, "mixture": mixture}


def fragment(policy, sampler):
    return RolloutFragment(build(RECIPE), policy.tokenizer, sampler)


def played(own):
    """A step's episodes: tokens, and log-probs."""
    drawn = draw(own.config, 11)
    groups = own.play(drawn.step, dict(enumerate(drawn.slots)), drawn.seed)
    return [(t.tokens.tolist(), t.logprobs.tolist()) for group in groups.values() for t in group.trajectories]


def ours(seat, kind, tp, port, room):
    """What one process holds, and what the first one plays: with the first weights, and with others."""
    from earl.dispatch.transports.rendezvous import Rendezvous
    from earl.engine.local import Meeting, SplitSampler, TpGroup

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = seat.interface
    policy, other = (POLICIES[kind](seed) for seed in (3, 4))
    sampler = SplitSampler(
        policy, TpGroup(Meeting(seat.process, tp, Rendezvous(seat.address, port, "secret"))), room_bytes=room
    )
    own = fragment(policy, sampler)
    first = sampler.together(lambda: played(own))
    sampler.load(other.model.state_dict(), 1, Probe.of(other.model))
    second = sampler.together(lambda: played(own))
    held = held_bytes(sampler)
    try:
        sampler.load(other.model.state_dict(), 2, Probe.of(policy.model))
    except StaleWeights:
        stale = True
    else:
        stale = False
    return first, second, held, stale, own.costs.get("sampler/waves")


def assert_alike(one, other):
    assert [tokens for tokens, _ in one] == [tokens for tokens, _ in other]
    for (_, ours), (_, theirs) in zip(one, other, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize(("kind", "tp"), [("tied", 2), ("wide", 4), ("mixture", 2)])
def test_the_same_episodes_and_a_share_of_the_memory(kind, tp):
    told = run(None, (0,) * tp, ours, kind, tp, free_port(), None)
    policy, other = (POLICIES[kind](seed) for seed in (3, 4))
    sampler = LocalSampler(policy)
    own = fragment(policy, sampler)
    assert_alike(told[0][0], played(own))
    sampler.load(other.model.state_dict(), 1)
    assert_alike(told[0][1], played(own))
    assert all(stale for _, _, _, stale, _ in told)
    assert all(first is None and second is None for first, second, *_ in told[1:])
    weights, cache = held_bytes(sampler)
    # All hold the norms: two of 32 numbers in each of 2 layers and one at the end, and two of 8 in a layer that norms
    # heads; and routers, of 32 numbers for each of 4 experts. Of 106 words over 4 processes, in two tensors, the first
    # has 27 and not 26.5.
    norms = 4 * (5 * 32 + (0 if kind == "tied" else 2 * 2 * 8) + (2 * 4 * 32 if kind == "mixture" else 0))
    words = 4 * 2 * 32 * (27 - 106 / 4) if tp == 4 else 0
    assert told[0][2][0] == (weights - norms) / tp + norms + words
    assert all(own <= told[0][2][0] for _, _, (own, _), _, _ in told)
    assert all(own == cache / tp > 0 for _, _, (_, own), _, _ in told)


def test_episodes_that_do_not_fit_wait_and_none_is_lost():
    # A token takes 2 layers x 2 x 4 heads x 8 numbers x 4 bytes = 512 B, half of it on each of two processes.
    policy = wide(3)
    expected = played(fragment(policy, LocalSampler(policy)))
    longest = max(len(tokens) for tokens, _ in expected)
    room = 512 * 5 * longest  # five of the longest at a time, of 32
    sampler = LocalSampler(policy, room_bytes=room)
    own = fragment(policy, sampler)
    assert_alike(played(own), expected)
    assert 1 < own.costs["sampler/waves"] <= 32
    assert held_bytes(sampler)[1] <= room
    told = run(None, (0, 0), ours, "wide", 2, free_port(), room // 2)
    assert_alike(told[0][0], expected)
    assert all(cache <= room // 2 for _, _, (_, cache), _, _ in told)
    assert told[0][4] > 1
    with pytest.raises(EarlError, match=r"has room for \d+; raise it, split the sampler over more processes"):
        played(fragment(policy, LocalSampler(policy, room_bytes=512 * 8)))
