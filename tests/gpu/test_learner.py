"""A learner on one device against a whole copy on the CPU: updates, scores, offloading, checkpoints, weights."""

import numpy as np
import pytest
import torch

from earl.algorithms.registry import algorithm
from earl.benchmarks.footprint import MemoryCase, model, occupied, predicted
from earl.benchmarks.layouts import policy
from earl.dispatch.weights import pack
from earl.engine.learner import Update
from earl.engine.local import LocalSampler
from earl.engine.sampler import Probe, probe_rows, probe_tokens
from earl.placement.ray.learner import RankState
from earl.placement.ray.weight_sync import manifest_of
from earl.trajectory import Prompt
from tests.gpu.small import SHAPE

UPDATE = Update(1e-3, entropy=0.01, minibatches=1, epochs=2, seed=0)


def losses(learner, rows, name="grpo", update=UPDATE):
    """Statistics of two updates in a row: the second one tells whether the first one's step was right."""
    return [learner.update(rows, algorithm(name), update) for _ in range(2)]


def assert_alike(ours, theirs, tolerance):
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=tolerance, abs=tolerance)


def test_an_update_gives_the_losses_of_one_process_on_a_cpu(sharded, plain, rows):
    assert_alike(losses(sharded(), rows), losses(plain(), rows), 1e-3)


def test_an_update_in_16_bits_is_near_the_one_in_32(sharded, plain, rows):
    # 8 bits of mantissa: 1/256 in a number, which sums of 157 tokens average out.
    assert_alike(losses(sharded(dtype="bfloat16"), rows), losses(plain(), rows), 0.05)


def test_a_value_head_learns_on_the_device(sharded, plain, rows):
    assert_alike(losses(sharded(values=True), rows, "ppo"), losses(plain(values=True), rows, "ppo"), 1e-3)


def test_recomputed_activations_give_the_same_losses(sharded, plain, rows):
    assert_alike(losses(sharded(recompute=True), rows), losses(plain(), rows), 1e-3)


def test_adapters_learn_on_the_device(sharded, plain, rows):
    assert_alike(losses(sharded(lora_rank=4), rows), losses(plain(lora_rank=4), rows), 1e-3)


def test_a_reference_stays_what_it_was(sharded, rows):
    learner = sharded()
    before = learner.logprobs(rows, reference=True)
    losses(learner, rows)
    assert learner.logprobs(rows, reference=True) == pytest.approx(before, abs=1e-6)
    assert learner.logprobs(rows) != pytest.approx(before, abs=1e-3)


def test_an_offloaded_reference_waits_in_host_memory(sharded, rows):
    learner = sharded(offload=True)
    before = learner.logprobs(rows)
    assert learner.logprobs(rows, reference=True) == pytest.approx(before, abs=1e-5)
    assert {tensor.device.type for tensor in learner.state.frozen.parameters()} == {"cpu"}


def test_offloaded_moments_wait_in_host_memory(sharded, plain, rows):
    learner = sharded(offload=True)
    assert_alike(losses(learner, rows), losses(plain(), rows), 1e-3)
    states = learner.state.optimizer.state.values()
    assert {state["exp_avg"].device.type for state in states} == {"cpu"}


def test_a_learner_goes_to_host_memory_and_comes_back(sharded, plain, rows, device):
    learner, other = sharded(), plain()
    learner.update(rows, algorithm("grpo"), UPDATE), other.update(rows, algorithm("grpo"), UPDATE)
    learner.state.move(hosted=True)
    assert {part.numbers.device.type for part in learner.state.held().parts.values()} == {"cpu"}
    learner.state.move(hosted=False)
    assert {parameter.device.type for parameter in learner.scorer.parameters()} == {device.type}
    assert_alike(losses(learner, rows), losses(other, rows), 1e-3)


@pytest.mark.parametrize("device", [pytest.param(torch.device("cuda:0"), marks=pytest.mark.gpu)])
def test_a_learner_in_host_memory_leaves_the_device(sharded, rows, device):
    learner = sharded()
    learner.update(rows, algorithm("grpo"), UPDATE)
    full = torch.cuda.memory_allocated()
    learner.state.move(hosted=True)
    assert torch.cuda.memory_allocated() < full / 4


def test_scores_and_values_are_those_of_a_cpu(sharded, plain, rows):
    ours, theirs = sharded(values=True), plain(values=True)
    assert ours.logprobs(rows) == pytest.approx(theirs.logprobs(rows), abs=1e-4)
    losses(ours, rows, "ppo"), losses(theirs, rows, "ppo")
    assert ours.values(rows) == pytest.approx(theirs.values(rows), abs=1e-2)


def test_a_checkpoint_of_the_device_loads_on_a_cpu(sharded, plain, rows, tmp_path):
    learner, other = sharded(), plain()
    learner.logprobs(rows, reference=True)
    losses(learner, rows)
    learner.snapshot()(tmp_path)
    other.restore(tmp_path)
    assert other.state.steps == 0 and len(other.state.optimizer.state) == len(other.state.trained)
    assert_alike(losses(learner, rows), losses(other, rows), 1e-3)


def test_a_checkpoint_of_a_cpu_loads_on_the_device(sharded, plain, rows, tmp_path, device):
    learner, other = sharded(), plain()
    losses(other, rows)
    other.snapshot()(tmp_path)
    learner.restore(tmp_path)
    assert {state["exp_avg"].device.type for state in learner.state.optimizer.state.values()} == {device.type}
    assert_alike(losses(learner, rows), losses(other, rows), 1e-3)


def test_an_offloaded_reference_is_written_into_a_checkpoint(sharded, plain, rows, tmp_path):
    # Its shards lie in host memory.
    learner, other = sharded(offload=True), plain()
    before = learner.logprobs(rows, reference=True)
    losses(learner, rows)
    learner.snapshot()(tmp_path)
    other.restore(tmp_path)
    assert other.logprobs(rows, reference=True) == pytest.approx(before, abs=1e-4)


def test_weights_are_packed_from_the_device(sharded, plain):
    held, other = sharded().state.held(), plain().state.held()
    plan = manifest_of(held, bucket_bytes=1 << 14).plan
    assert len(plan.buckets) > 2
    for pieces in plan.buckets:
        ours, theirs = (
            pack(plan, 0, pieces, {name: part.numbers for name, part in own.parts.items()}) for own in (held, other)
        )
        assert ours.tobytes() == theirs.tobytes()


def test_state_leaves_the_device_for_another_layout(sharded, rows, monkeypatch):
    from earl.placement.ray import learner as placed

    learner = sharded()
    losses(learner, rows)
    monkeypatch.setattr(placed.ray, "put", lambda arrays: arrays)
    given = placed.put_state(learner.state.carried(), steps=0)
    assert isinstance(given, RankState)
    assert all(isinstance(array, np.ndarray) for arrays in given.references for array in arrays)


def test_a_sampler_on_the_cpu_takes_the_weights_of_the_device(sharded, rows):
    learner = sharded()
    losses(learner, rows)
    tokens = probe_tokens(learner.vocab)
    logprobs = learner.logprobs(probe_rows(tokens), temperature=1.0)
    sampler = LocalSampler(policy(SHAPE))
    sampler.load(learner.weights(), 1, Probe(tokens, logprobs[1:].tolist()))
    [completion] = sampler.generate([Prompt(0, tokens, seed=3, max_tokens=4)])
    assert completion.versions == [1] * len(completion.tokens)


@pytest.mark.parametrize("device", [pytest.param(torch.device("cuda:0"), marks=pytest.mark.gpu)])
@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}, {"recompute": True, "dtype": "bfloat16"}])
def test_peak_memory_is_what_the_model_of_memory_says(mesh, settings, device):
    shape = model(hidden_size=1024, num_hidden_layers=6, intermediate_size=4096, vocab_size=32_000)
    case = MemoryCase("update", "update", shape, settings, dp=1, tokens=4096, micro_batches=2)
    before, peak = occupied(case, mesh)
    assert peak == pytest.approx(predicted(case).peak, rel=0.1), (before, predicted(case).parts)
