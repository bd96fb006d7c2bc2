"""What devices hold: the arithmetic written out, and what must shrink when work is shared."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.parallel.catalogue import known
from earl.parallel.footprint import Training, adapter_parameters, learner_bytes, sampler_bytes

QWEN = known("Qwen2.5-72B").shape
SMALL = known("Qwen2.5-0.5B").shape
PLAIN = Training(1, 1, 2048, 4, recompute=False, offload=False, lora_rank=0, reference=False)


def test_a_whole_model_on_one_device() -> None:
    held = learner_bytes(SMALL, PLAIN)
    # Adam in 32 bits: 4 bytes each for weight and gradient, 8 for two moments.
    assert held.weights == held.gradients == 4 * 494_032_768
    assert held.optimizer == 8 * 494_032_768
    assert held.gathered == held.reference == 0
    # 2,048 positions x 151,936 words are more than a slice of 2^24 logits, of which there are two in 32 bits.
    assert held.logits == 8 * 2**24
    # A layer: 4 x 896 of the stream, 2 x (14 + 2) x 64 of attention, 4 x 4,864 of the feed-forward: 25,088 numbers.
    assert held.activations == 2048 * 24 * 25_088 * 4
    assert held.peak == 16 * 494_032_768 + held.activations + held.logits


def test_a_model_shared_by_128_devices() -> None:
    held = learner_bytes(QWEN, replace(PLAIN, dp=32, tp=4, float_bytes=2))
    assert held.weights == -(-4 * 72_706_203_648 // 128)
    # Two layers of (72,706,203,648 - 2 x 152,064 x 8,192) / 80, embeddings and head, in 16 bits, split over 4.
    words = 2 * 152_064 * 8192
    assert held.gathered == pytest.approx((2 * (72_706_203_648 - words) / 80 + words) * 2 / 4, abs=1)
    # Qwen2.5-0.5B has one matrix for both.
    words = 151_936 * 896
    held = learner_bytes(SMALL, replace(PLAIN, dp=2))
    assert held.gathered == pytest.approx((2 * (494_032_768 - words) / 24 + words) * 4, abs=1)
    # 2,048 x 38,016 words are more than a slice too.
    assert held.logits == 8 * 2**24


def test_recomputed_activations_are_a_layer_and_the_inputs_of_all() -> None:
    held = learner_bytes(SMALL, replace(PLAIN, recompute=True))
    assert held.activations == 2048 * (24 * 896 + 25_088) * 4


def test_adapters_need_no_moments_of_the_rest() -> None:
    held = learner_bytes(SMALL, replace(PLAIN, lora_rank=8, reference=True))
    # Rank 8 x 24 layers x (queries and output 2 x (896 + 896), keys and values 2 x (896 + 128), 3 x (896 + 4,864)).
    assert adapter_parameters(SMALL, 8) == 8 * 24 * (3584 + 2048 + 17_280) == 4_399_104
    assert held.optimizer == 8 * 4_399_104
    assert held.weights == 4 * (494_032_768 + 4_399_104)
    assert held.reference == 0  # the reference is the model without its adapters


def test_moments_in_host_memory_come_back_for_the_step_alone() -> None:
    here, away = learner_bytes(SMALL, PLAIN), learner_bytes(SMALL, replace(PLAIN, offload=True))
    assert away.resting == away.weights < here.resting == here.weights + here.optimizer
    assert away.peak == away.weights + away.gradients + max(away.optimizer, away.activations + away.logits)


def test_a_sampler() -> None:
    held = sampler_bytes(QWEN, 4, 2, 32_768, 10)
    assert held.weights == 72_706_203_648 * 2 // 4
    # 2 x 80 layers x 2 of 8 heads x 128 x 2 bytes = 80 KiB for each of 32,768 tokens.
    assert held.context == 32_768 * 80 * 1024
    assert (held.least, held.wanted) == (held.weights + held.context, held.weights + 10 * held.context)


@given(
    dp=st.sampled_from([1, 2, 8, 32]),
    tp=st.sampled_from([1, 2, 4]),
    tokens=st.integers(16, 65_536),
    bits=st.sampled_from([2, 4]),
    recompute=st.booleans(),
    offload=st.booleans(),
    rank=st.sampled_from([0, 8]),
    reference=st.booleans(),
)
def test_more_devices_never_hold_more(dp, tp, tokens, bits, recompute, offload, rank, reference) -> None:
    training = Training(dp, tp, tokens, bits, recompute, offload, rank, reference)
    held = learner_bytes(QWEN, training)
    wider, deeper = (learner_bytes(QWEN, replace(training, **more)) for more in ({"dp": 2 * dp}, {"tp": 2 * tp}))
    assert deeper.peak <= held.peak
    assert wider.peak - wider.gathered <= held.peak - held.gathered
    assert learner_bytes(QWEN, replace(training, recompute=True)).peak <= held.peak
    assert learner_bytes(QWEN, replace(training, offload=True)).peak <= held.peak
    assert held.resting <= held.peak
