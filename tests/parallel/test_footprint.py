"""What devices hold: the arithmetic written out, and what must shrink when work is shared."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.parallel.footprint import Training, adapter_parameters, forward_bytes, learner_bytes
from earl.parallel.memory import KERNEL_BYTES, RESIDUE_BYTES, known

QWEN = known("Qwen2.5-72B").shape
MIXTURE = known("Qwen3-30B-A3B").shape
SMALL = known("Qwen2.5-0.5B").shape
SHARDS = Training(1, 1, 2048, 4, recompute=False, offload=False, lora_rank=0, reference=False)
PLAIN = replace(SHARDS, whole=True)
WORDS = 151_936 * 896
LAYER = (494_032_768 - WORDS) / 24
# Of a layer and token, in numbers of 4 bytes: two norms keep 3 x 896 each, attention 2 x 14 x 64 for queries and its
# result, 2 x 2 x 64 for keys and values, 14 for its heads; the feed-forward layer 4 x 4,864.
KEPT = 6 * 896 + 2 * 14 * 64 + 2 * 2 * 64 + 14 + 4 * 4864


def test_a_whole_model_on_one_device() -> None:
    held = learner_bytes(SMALL, PLAIN)
    # Adam in 32 bits: 4 bytes for a weight, 8 for its two moments.
    assert held.weights == 4 * 494_032_768
    assert held.optimizer == 8 * 494_032_768
    assert held.gathered == held.buffers == held.reference == held.residue == 0
    # Fullest where the output layer's gradient is made: beside gradients of earlier micro-batches lies that one.
    assert held.moment == "head"
    assert held.gradients == pytest.approx(4 * (494_032_768 + WORDS), abs=100)
    # 2,048 positions x 151,936 words are more than a slice of 2^24 logits, of which there are two in 32 bits.
    assert held.logits == 8 * 2**24
    # Beside the layers the last norm's two tensors, and the states that log-probs are wanted of with their gradients.
    assert held.activations == 2048 * (24 * KEPT + 4 * 896) * 4
    parts = (held.weights, held.optimizer, held.gradients, held.activations, held.logits)
    assert held.peak == sum(parts)


def test_a_model_shared_by_128_devices() -> None:
    training = replace(SHARDS, dp=32, tp=4, float_bytes=2, recompute=True, tokens=16_384, learned=100)
    held = learner_bytes(QWEN, training)
    assert held.weights == -(-4 * 72_706_203_648 // 128)
    # A layer of (72,706,203,648 - 2 x 152,064 x 8,192) / 80, embeddings and head, in 16 bits, split over 4. The next
    # layer has been sent for, and the last one's gradients are on their way in 32 bits, where its input was.
    words = 2 * 152_064 * 8192
    layer = (72_706_203_648 - words) / 80 / 4
    assert held.moment == "layer"
    assert held.gathered == pytest.approx((layer + words / 4) * 2, abs=100)
    assert held.buffers == pytest.approx(layer * (2 + 4) - 16_384 * 8192 * 2, abs=100)


def test_each_replica_holds_the_whole_model() -> None:
    whole, replicated = (learner_bytes(QWEN, replace(SHARDS, dp=128, replicas=count)) for count in (1, 4))
    assert replicated.weights == pytest.approx(4 * whole.weights) == pytest.approx(4 * 72_706_203_648 / 32)
    assert replicated.optimizer == pytest.approx(4 * whole.optimizer)


def test_experts_lie_whole_on_the_ranks_that_share_them() -> None:
    # Of 30,532,122,624 parameters 48 layers x 128 experts x 3 x 2,048 x 768 are of experts. Over 32 ranks, 8 of them an
    # ep group: each has 16 experts of every layer, sharded over 32 / 8 = 4 ranks, so 4 each.
    expert = 3 * 2048 * 768
    dense = 30_532_122_624 - 48 * 128 * expert
    spread = replace(SHARDS, dp=32, ep=8)
    assert learner_bytes(MIXTURE, spread).weights == -(-4 * dense // 32) + 4 * 48 * 4 * expert
    # Over 96 ranks 16 experts lie on 12 ranks: 2 on eight of them, and four have none.
    assert learner_bytes(MIXTURE, replace(spread, dp=96)).weights == -(-4 * dense // 96) + 4 * 48 * 2 * expert
    # A rank gathers 16 experts of a layer, or all 128.
    alone, own = (forward_bytes(MIXTURE, replace(spread, ep=ep, tokens=32_768, learned=100)) for ep in (1, 8))
    assert {alone.moment, own.moment} == {"layer"}
    assert alone.gathered - own.gathered == 4 * expert * (128 - 16)


def test_few_tokens_and_many_words_are_fullest_in_the_exchange() -> None:
    shape, words = known("Qwen2.5-7B").shape, 152_064 * 3584
    held = learner_bytes(shape, replace(SHARDS, dp=8, tokens=16, on_host=True))
    assert held.moment == "exchange"
    # Of embeddings and output layer what is sent, gloo's copy of it, and what is received, in 32 bits.
    assert held.buffers == 4 * 2 * words * (2 + 1 / 8)
    # NCCL needs no copy, and then another moment is the fullest.
    assert learner_bytes(shape, replace(SHARDS, dp=8, tokens=16)).peak < held.peak - words


def test_gradients_of_earlier_micro_batches_count_only_where_there_are_any() -> None:
    held, first = (learner_bytes(SMALL, replace(PLAIN, accumulated=several)) for several in (True, False))
    assert first.gradients == 4 * WORDS == pytest.approx(held.gradients - 4 * 494_032_768, abs=100)


def test_recomputed_activations_are_a_layer_and_the_inputs_of_all() -> None:
    held = learner_bytes(SMALL, replace(PLAIN, recompute=True, tokens=20_000, learned=100))
    assert held.moment == "layer"
    # Of the layer at work also the gradients of gate and up, and that of its result.
    assert held.activations == 20_000 * (24 * 896 + KEPT + 2 * 4864 + 896) * 4


def test_a_pass_without_gradients_holds_one_layer() -> None:
    held = forward_bytes(SMALL, replace(PLAIN, tokens=20_000, learned=100, reference=True))
    assert (held.moment, held.gradients) == ("layer", 0)
    # Embeddings, two tensors of the stream and the norm's; the activated gate, up, and their product.
    assert held.activations == 20_000 * (4 * 896 + 3 * 4864) * 4
    assert held.reference == held.weights


def test_adapters_need_no_moments_of_the_rest() -> None:
    held = learner_bytes(SMALL, replace(PLAIN, lora_rank=8, reference=True))
    # Rank 8 x 24 layers x (queries and output 2 x (896 + 896), keys and values 2 x (896 + 128), 3 x (896 + 4,864)).
    assert adapter_parameters(SMALL, 8) == 8 * 24 * (3584 + 2048 + 17_280) == 4_399_104
    assert held.optimizer == 8 * 4_399_104
    assert held.gradients == 4 * 4_399_104
    assert held.weights == 4 * (494_032_768 + 4_399_104)
    assert held.reference == 0  # the reference is the model without its adapters


def test_moments_in_host_memory_come_back_for_the_step_alone() -> None:
    here, away = (learner_bytes(SMALL, replace(PLAIN, tokens=16, offload=offload)) for offload in (False, True))
    assert (away.moment, away.peak) == ("step", pytest.approx(16 * 494_032_768, abs=100))
    host = learner_bytes(SMALL, replace(PLAIN, tokens=16, offload=True, on_host=True))
    assert host.peak == here.peak + RESIDUE_BYTES  # there is nowhere else to put them


def test_a_host_joins_the_attention_of_rows_of_several_lengths() -> None:
    alike, ragged = (learner_bytes(SMALL, replace(PLAIN, on_host=True, ragged=ragged)) for ragged in (False, True))
    assert ragged.activations - alike.activations == 2048 * 24 * 14 * 64 * 4


def test_16_bits_on_a_host_leave_kernels_behind() -> None:
    wide, narrow = (learner_bytes(SMALL, replace(SHARDS, on_host=True, float_bytes=size)) for size in (4, 2))
    assert narrow.residue - wide.residue == KERNEL_BYTES


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
