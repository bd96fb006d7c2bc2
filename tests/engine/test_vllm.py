"""vLLM's log-probs against plain `transformers`, over turns and weight syncs; what it must refuse."""

import copy
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import earl.agents.scripted.connect4  # noqa: F401  numba's library once kept vLLM from starting
from earl.config import ModelConfig, SamplerConfig
from earl.dispatch.transports.peers import join
from earl.dispatch.transports.rendezvous import Rendezvous, join_store, open_store
from earl.dispatch.weights import SentWeights, Weight, WeightManifest
from earl.engine.local import split_axes
from earl.engine.model import Policy, character_tokenizer, make, tensors_once
from earl.engine.sampler import Probe, StaleWeights, Truncation, check
from earl.engine.vllm import device as vllm_device
from earl.engine.vllm.device import Cpu
from earl.errors import EarlError
from earl.parallel.layout import Layout
from earl.placement.ray.inventory import installed
from earl.trajectory import Prompt

pytestmark = pytest.mark.skipif(not installed("vllm"), reason="vLLM is an extra")

TOLERANCE = 1e-4
CASES = {"untied": ("untied", 1), "tied-tp2": ("tied", 2)}
"""Untied weights over two processes are probed in `placement/test_vllm_placed.py`."""
EVEN = {"even-tp2": ("even", 2)}
"""128 words, which vLLM cuts as a plan does: 64 and 64. Of 106 it gives the first worker 64, a plan 53."""


def policy_of(kind):
    if kind == "untied":
        policy = make(ModelConfig(hidden=64, layers=2, heads=2, head_dim=32, intermediate=96), seed=1)
    else:
        shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 512}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
        words = 128 if kind == "even" else 106
        config = Qwen2Config(vocab_size=words, tie_word_embeddings=True, **shape, **heads)
        policy = Policy(Qwen2ForCausalLM(config), character_tokenizer())
    shake(policy, seed=2)
    return policy


def shake(policy, seed):
    """Other weights, far enough apart that no tolerance covers the difference."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.12, generator=generator)


@pytest.fixture(scope="module")
def engine(request):
    """A policy with its sampler; tests of the same case share them, and one engine is there at a time."""
    from earl.engine.vllm.sampler import VllmSampler

    kind, tp = {**CASES, **EVEN}[request.param]
    policy = policy_of(kind)
    config = SamplerConfig(engine="vllm", tp=tp, kv_cache_gib=0.1)
    sampler = VllmSampler(policy, config, temperature=1.3, max_tokens=512)
    yield policy, sampler
    sampler.close()


def cases(*names):
    """For a test of these cases alone."""
    return pytest.mark.parametrize("engine", names, indirect=True)


def prompts_of(count, length=40, max_tokens=6):
    return [
        Prompt(i, [2, *(10 + (7 * i + j * j) % 90 for j in range(length)), 3], seed=1000 + i, max_tokens=max_tokens)
        for i in range(count)
    ]


def assert_logprobs(plain, policy, prompts, completions, version):
    for prompt, completion in zip(prompts, completions, strict=True):
        tokens = [*prompt.tokens, *completion.tokens]
        expected = plain(policy.model, tokens, 1.3)[len(prompt.tokens) - 1 :]
        own = [float(expected[place, token]) for place, token in enumerate(completion.tokens)]
        assert completion.logprobs == pytest.approx(own, abs=TOLERANCE)
        assert completion.versions == [version] * len(completion.tokens)


@pytest.mark.slow
@cases(*CASES)
def test_logprobs_are_the_learners_before_and_after_every_sync(engine, plain):
    policy, sampler = engine
    prompts = prompts_of(12)
    assert_logprobs(plain, policy, prompts, sampler.generate(prompts), sampler.version)
    for version in (sampler.version + 1, sampler.version + 2):
        shake(policy, seed=version)
        sampler.load(policy.model.state_dict(), version)
        assert_logprobs(plain, policy, prompts, sampler.generate(prompts), version)


@pytest.mark.slow
@cases("untied")
def test_logprobs_are_of_the_truncated_distribution_as_the_learner_has_it(engine, plain, monkeypatch):
    policy, sampler = engine
    cut = Truncation(0.8, 30)
    monkeypatch.setattr(sampler, "_truncation", cut)
    for prompt, completion in zip(prompts_of(12), sampler.generate(prompts_of(12)), strict=True):
        logits = plain(policy.model, [*prompt.tokens, *completion.tokens], 1.3)[len(prompt.tokens) - 1 : -1]
        left = torch.log_softmax(logits.masked_fill(logits < cut.lowest(logits), -torch.inf), dim=-1)
        own = [float(left[place, token]) for place, token in enumerate(completion.tokens)]
        assert completion.logprobs == pytest.approx(own, abs=TOLERANCE)


@pytest.mark.slow
@cases(*CASES)
def test_each_worker_reads_the_slices_of_its_own_rank_and_nothing_else(engine):
    policy, sampler = engine
    sampler.load(policy.model.state_dict(), sampler.version + 1)
    # What tensor parallelism splits, all workers together read once; norms, each reads whole.
    axes, tensors = split_axes(policy.model.config), tensors_once(policy.model)
    tp = sampler._engine.vllm_config.parallel_config.tensor_parallel_size
    needed = sum(tensor.nbytes * (1 if name in axes else tp) for name, tensor in tensors.items())
    assert sampler.received_bytes == needed
    # vLLM computes with 128 words in place of 106: 22 more rows of 64 numbers, once for each untied matrix.
    padding = 22 * 64 * 4 * (1 if policy.model.config.tie_word_embeddings else 2)
    assert sampler.needed_bytes == needed + padding


def sending(policy, sampler, version):
    """Send a policy's weights from two ranks, here threads, straight to an engine's workers."""
    layout, config = Layout(2), sampler._engine.vllm_config.parallel_config
    whole = tensors_once(policy.model)
    boxes = [{name: layout.box(tensor.shape, None, rank) for name, tensor in whole.items()} for rank in range(2)]
    weights = [
        Weight(name, (*t.shape,), t.dtype, None, split_axes(policy.model.config).get(name)) for name, t in whole.items()
    ]
    sent = SentWeights(WeightManifest(tuple(weights), layout, 1 << 14, config.tensor_parallel_size), copies=1)
    store, hosts = open_store(Rendezvous("127.0.0.1")), np.zeros(sent.processes, np.int64)

    def rank(number):
        peers = join(join_store(store.place), number, hosts, "127.0.0.1", 20.0)
        held = {name: whole[name].detach()[box.slices] for name, box in boxes[number].items()}
        try:
            for messages, sizes in zip(sent.messages(number, held), sent.exchanges(), strict=True):
                peers.exchange(messages, sizes)
        finally:
            peers.close()

    with ThreadPoolExecutor(2) as threads:
        ranks = [threads.submit(rank, number) for number in range(2)]
        sampler.join_weights(store.place, 2, hosts, "127.0.0.1", 20.0)
        sampler.load(sent, version, Probe.of(policy.model))
        for own in ranks:
            own.result(30)
    return len(sent.manifest.plan.buckets)


@pytest.mark.exhaustive
@pytest.mark.slow
@cases("even-tp2")
def test_ranks_send_each_worker_its_slices_and_nothing_else(engine, plain):
    policy, sampler = engine
    prompts = prompts_of(6)
    for version in (sampler.version + 1, sampler.version + 2):  # the workers leave the first group, and join another
        shake(policy, seed=version)
        assert sending(policy, sampler, version) > 3
        assert sampler.received_bytes == sampler.needed_bytes > 0
        assert_logprobs(plain, policy, prompts, sampler.generate(prompts), version)
    sampler.load(policy.model.state_dict(), sampler.version + 1)
    assert sampler.received_bytes == sampler.needed_bytes, "as many as out of files"


@pytest.mark.slow
@cases("tied-tp2")
def test_an_engine_that_splits_otherwise_than_was_sent_refuses_and_reads_files_then(engine, plain):
    policy, sampler = engine
    with pytest.raises(EarlError, match=r"vLLM needs other parts of 'model\.embed_tokens\.weight' than were sent"):
        sending(policy, sampler, sampler.version + 1)
    sampler.load(policy.model.state_dict(), sampler.version + 1)
    prompts = prompts_of(2)
    assert_logprobs(plain, policy, prompts, sampler.generate(prompts), sampler.version)


@pytest.mark.slow
def test_weights_are_received_in_16_bits_where_an_engine_computes_in_them(monkeypatch):
    from earl.engine.vllm import sampler as vllm_sampler

    monkeypatch.setattr(vllm_sampler, "device", lambda: Cpu(tolerance=0.1, dtype=torch.bfloat16))
    policy = policy_of("even")
    sampler = vllm_sampler.VllmSampler(policy, SamplerConfig(engine="vllm", kv_cache_gib=0.1), 1.3, 512)
    try:
        needed = 2 * sum(tensor.numel() for tensor in tensors_once(policy.model).values())
        assert sampler.received_bytes == sampler.needed_bytes == needed
    finally:
        sampler.close()


@pytest.mark.slow
@cases(*CASES)
def test_slices_of_a_layer_that_is_not_whole_yet_outlast_their_file(engine, plain, monkeypatch):
    policy, sampler = engine
    monkeypatch.setattr(vllm_device, "CHUNK_BYTES", 1 << 10)  # vLLM lays a layer's weights out once all are there
    shake(policy, seed=5)
    before, version = sampler.received_bytes, sampler.version + 1
    sampler.load(policy.model.state_dict(), version)
    assert sampler.received_bytes == before, "each slice was read once"
    prompts = prompts_of(6)
    assert_logprobs(plain, policy, prompts, sampler.generate(prompts), version)


@pytest.mark.slow
@cases("untied")
def test_the_same_seed_gives_the_same_reply_alone_and_among_others(engine):
    _, sampler = engine
    prompts = prompts_of(30)
    together = sampler.generate(prompts)
    assert [sampler.generate([prompt])[0].tokens for prompt in prompts[:4]] == [c.tokens for c in together[:4]]
    assert len({tuple(c.tokens) for c in together}) > 20


@pytest.mark.slow
@cases("untied")
def test_a_reply_ends_with_the_stop_token_or_at_its_bound(engine):
    policy, sampler = engine
    [stop] = policy.stop_ids
    prompts = [Prompt(i, [2, 20, 30, 5, 3], seed=i, max_tokens=1 + i % 7) for i in range(200)]
    completions = sampler.generate(prompts)
    for prompt, completion in zip(prompts, completions, strict=True):
        assert 1 <= len(completion.tokens) == len(completion.logprobs) <= prompt.max_tokens
        assert stop not in completion.tokens[:-1]
        assert completion.finished == (completion.tokens[-1] == stop)
        assert completion.finished or len(completion.tokens) == prompt.max_tokens
    assert 0 < sum(completion.finished for completion in completions) < 200


@pytest.mark.slow
@cases("untied")
def test_greedy_takes_the_most_likely_token(engine, plain):
    policy, sampler = engine
    prompts = [Prompt(p.session, p.tokens, p.seed, p.max_tokens, greedy=True) for p in prompts_of(8)]
    for prompt, completion in zip(prompts, sampler.generate(prompts), strict=True):
        expected = plain(policy.model, [*prompt.tokens, *completion.tokens])[len(prompt.tokens) - 1 : -1]
        assert expected.argmax(dim=-1).tolist() == completion.tokens


@pytest.mark.slow
@cases("untied")
def test_later_turns_find_the_earlier_ones_in_the_prefix_cache(engine):
    _, sampler = engine
    sampler.load(engine[0].model.state_dict(), sampler.version + 1)  # forgets what other tests left
    before, asked = sampler.cached_tokens, prompts_of(6, length=70)
    replies = sampler.generate(asked)
    assert sampler.cached_tokens == before
    later = [
        Prompt(p.session, [*p.tokens, *c.tokens, 4, 5, 6], p.seed + 1, 3) for p, c in zip(asked, replies, strict=True)
    ]
    sampler.generate(later)
    # 72 tokens were there before: two whole blocks of 32 for each.
    assert sampler.cached_tokens == before + 6 * 64


@pytest.mark.slow
@cases("untied", "tied-tp2")
def test_replies_on_their_way_go_on_under_new_weights(engine, plain):
    policy, sampler = engine
    old = copy.deepcopy(policy.model)
    first, second = sampler.version, sampler.version + 1
    prompts = prompts_of(8, max_tokens=120)
    sampler_stop, sampler._stop_ids = sampler._stop_ids, []  # none ends by itself
    running = sampler.submit(prompts)
    sampler.generate(prompts_of(1, max_tokens=3))  # by now the others have begun
    shake(policy, seed=77)
    sampler.load(policy.model.state_dict(), second)
    replies = [reply.result(timeout=60) for reply in running]
    sampler._stop_ids = sampler_stop
    assert any(set(reply.versions) == {first, second} for reply in replies)
    for prompt, reply in zip(prompts, replies, strict=True):
        assert len(reply.tokens) == 120
        assert reply.versions == sorted(reply.versions)
        tokens, turned = [*prompt.tokens, *reply.tokens], reply.versions.count(first)
        new = plain(policy.model, tokens, 1.3)[len(prompt.tokens) - 1 :]
        before = plain(old, tokens, 1.3)[len(prompt.tokens) - 1 :]
        own = [float((before if place < turned else new)[place, token]) for place, token in enumerate(reply.tokens)]
        assert reply.logprobs == pytest.approx(own, abs=TOLERANCE)


@pytest.mark.slow
@cases("untied", "tied-tp2")
def test_weights_that_were_not_taken_are_caught(engine, monkeypatch):
    policy, sampler = engine
    version = sampler.version
    shake(policy, seed=91)
    monkeypatch.setattr(type(sampler._device), "hand_over", lambda self, engine, weights: 0)
    with pytest.raises(StaleWeights, match=r"log-prob -\d+\.\d+, the learner -\d+\.\d+"):
        sampler.load(policy.model.state_dict(), version + 1)
    assert sampler.version == version
    with pytest.raises(StaleWeights):  # nobody knows what it would sample with
        sampler.generate(prompts_of(1))
    monkeypatch.undo()
    sampler.load(policy.model.state_dict(), version + 1)
    assert sampler.generate(prompts_of(1))[0].versions[0] == version + 1


@pytest.mark.slow
@cases("tied-tp2")
def test_a_head_that_stayed_behind_is_caught(engine, monkeypatch):
    # What vLLM's own reload does to tied embeddings on a CPU: everything is new but the output layer.
    policy, sampler = engine
    whole = type(sampler._device).hand_over

    def without_embeddings(self, engine, weights):
        return whole(self, engine, {name: tensor for name, tensor in weights.items() if "embed" not in name})

    shake(policy, seed=92)
    weights = {name: t for name, t in policy.model.state_dict().items() if name != "lm_head.weight"}
    monkeypatch.setattr(type(sampler._device), "hand_over", without_embeddings)
    with pytest.raises(StaleWeights):
        sampler.load(weights, sampler.version + 1)
    monkeypatch.undo()
    sampler.load(weights, sampler.version + 1)


@pytest.mark.slow
@cases("untied")
def test_weights_that_are_not_numbers_are_refused(engine):
    policy, sampler = engine
    sound = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    broken = {**sound, "model.norm.weight": torch.full_like(sound["model.norm.weight"], torch.nan)}
    with pytest.raises(StaleWeights, match="nan"):
        sampler.load(broken, sampler.version + 1)
    sampler.load(sound, sampler.version + 1)


@pytest.mark.slow
@cases("untied")
def test_a_prompt_that_does_not_fit_is_refused_and_others_are_not(engine):
    _, sampler = engine
    with pytest.raises(EarlError, match="600 tokens"):
        sampler.generate([Prompt(0, [7] * 600, seed=1, max_tokens=4)])
    assert sampler.generate(prompts_of(1))[0].tokens


def test_the_probe_names_both_numbers():
    probe = Probe([1, 2, 3], [-1.0, -2.0])
    check(probe, [-1.0, -2.00005], 1e-4, version=3)
    with pytest.raises(StaleWeights, match=r"version 3 .* -2\.500000, the learner -2\.000000"):
        check(probe, [-1.0, -2.5], 1e-4, version=3)
    with pytest.raises(StaleWeights, match="nan"):
        check(probe, [-2.0, float("nan")], 1e-4, version=3)


@pytest.mark.slow
def test_heads_that_vllm_cannot_compute_are_refused_before_it_starts():
    from earl.engine.vllm.sampler import VllmSampler

    policy = make(ModelConfig(hidden=16, layers=1, heads=2, head_dim=8, intermediate=24), seed=0)
    with pytest.raises(EarlError, match=r"size 8, .* set model\.head_dim to 32"):
        VllmSampler(policy, SamplerConfig(engine="vllm"), 1.0, 64)


ALONE = """
import os
import torch
from earl.config import ModelConfig, SamplerConfig
from earl.engine.model import make
from earl.engine.vllm.sampler import VllmSampler

if __name__ == "__main__":
    policy = make(ModelConfig(hidden=64, layers=1, heads=2, head_dim=32, intermediate=64), seed=0)
    sampler = VllmSampler(policy, SamplerConfig(engine="vllm", tp=2, kv_cache_gib=0.1), 1.0, 128)
    print(os.getpid(), flush=True)
    input()
"""


def children_of(pid):
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found = {pid}
    while more := {child for child, parent in pairs if parent in found} - found:
        found |= more
    return found - {pid}


def alive(pid):
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return listed.strip()[:1] not in ("", "Z")


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("how", ["end", "kill"])
def test_engine_processes_end_with_us(tmp_path, how):
    script = tmp_path / "alone.py"
    script.write_text(ALONE)
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        engine = int(process.stdout.readline())  # not `process`, which asks for a fork
        workers = children_of(engine)
        assert len(workers) >= 2
        if how == "kill":
            os.kill(engine, signal.SIGKILL)
        else:
            process.stdin.write("\n")
            process.stdin.close()
        process.wait(timeout=60)
    deadline = time.monotonic() + 30
    while (left := [pid for pid in workers if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left
