"""What devices hold: the arithmetic written out, and what must shrink when work is shared."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.parallel.footprint import Moments, Training, adapter_parameters, forward_bytes, learner_bytes
from earl.parallel.layout import Layout
from earl.parallel.memory import KERNEL_BYTES, RESIDUE_BYTES, ModelShape, known
from earl.recipe import build

QWEN = known("Qwen2.5-72B").shape
MIXTURE = known("Qwen3-30B-A3B").shape
SMALL = known("Qwen2.5-0.5B").shape
SHARDS = Training(Layout(), 2048, 4, recompute=False, offload=False, lora_rank=0, reference=False)
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
    training = replace(SHARDS, layout=Layout(32, 4), float_bytes=2, recompute=True, tokens=16_384, learned=100)
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
    whole, replicated = (learner_bytes(QWEN, replace(SHARDS, layout=Layout(128, replicas=count))) for count in (1, 4))
    assert replicated.weights == pytest.approx(4 * whole.weights) == pytest.approx(4 * 72_706_203_648 / 32)
    assert replicated.optimizer == pytest.approx(4 * whole.optimizer)


def test_experts_lie_whole_on_the_ranks_that_share_them() -> None:
    # Of 30,532,122,624 parameters 48 layers x 128 experts x 3 x 2,048 x 768 are of experts. Over 32 ranks, 8 of them an
    # ep group: each has 16 experts of every layer, sharded over 32 / 8 = 4 ranks, so 4 each.
    expert = 3 * 2048 * 768
    dense = 30_532_122_624 - 48 * 128 * expert
    spread = replace(SHARDS, layout=Layout(32, ep=8))
    assert learner_bytes(MIXTURE, spread).weights == -(-4 * dense // 32) + 4 * 48 * 4 * expert
    # Over 96 ranks 16 experts lie on 12 ranks: 2 on eight of them, and four have none.
    assert (
        learner_bytes(MIXTURE, replace(spread, layout=Layout(96, ep=8))).weights
        == -(-4 * dense // 96) + 4 * 48 * 2 * expert
    )
    # A rank gathers 16 experts of a layer, or all 128.
    alone, own = (
        forward_bytes(MIXTURE, replace(spread, layout=Layout(32, ep=ep), tokens=32_768, learned=100)) for ep in (1, 8)
    )
    assert {alone.moment, own.moment} == {"layer"}
    assert alone.gathered - own.gathered == 4 * expert * (128 - 16)


def test_few_tokens_and_many_words_are_fullest_in_the_exchange() -> None:
    shape, words = known("Qwen2.5-7B").shape, 152_064 * 3584
    held = learner_bytes(shape, replace(SHARDS, layout=Layout(8), tokens=16, on_host=True))
    assert held.moment == "exchange"
    # Of embeddings and output layer what is sent, gloo's copy of it, and what is received, in 32 bits.
    assert held.buffers == 4 * 2 * words * (2 + 1 / 8)
    # NCCL needs no copy, and then another moment is the fullest.
    assert learner_bytes(shape, replace(SHARDS, layout=Layout(8), tokens=16)).peak < held.peak - words


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


def test_a_running_mean_of_the_weights_is_as_large_as_a_moment() -> None:
    config = build({"env": {"name": "tictactoe"}, "learner": {"ema": 0.99}})
    # 4 bytes for each of the mean and the two moments.
    assert learner_bytes(SMALL, Training.of(config, Layout())).optimizer == 12 * 494_032_768


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


TINY = ModelShape(3480, 3, 8, 4, 2, 2, 20, 30, 64)
"""3,480 parameters: 2 x 30 x 8 of embeddings and output layer, 3 x 1,000 of layers."""
HALVES = Training(Layout(2, 2), tokens=10, float_bytes=4, recompute=False, offload=False, lora_rank=0, reference=False)
# Bytes at each moment, where the last layer begins and then the first: gradients, gathered, buffers, activations,
# logits.
SHARDED = {
    # Of each tensor-parallel half: layers of 500 parameters, embeddings and output layer of 120 each. A shard of all
    # gradients is 4 x (3 x 500 + 240) / 2 = 3,480. A token keeps 2 x (8 x 8 + 32) of norms, 4 x (8 + 4) + 2 x 4 of
    # attention and 4 x 40 of the feed-forward layer: 408, and the backward pass 2 x 40 + 32.
    "gather": (3480, 960 + 2000, 960 + 2000, 0, 0),
    "experts": (
        3480,
        960 + 2000,
        0,
        10 * 152,
        0,
    ),  # there are none; of 408 a token keeps 152 before its feed-forward layer
    "head": (3480 + 480, 960, 2000, 3 * 4080 + 2 * 320 + 320 + 320, 8 * 10 * 15),
    "layer": (3480 + 480 + 2000, 960 + 2000, 2000, 3 * 4080 + 1120, 0),
    "first layer": (3480 + 480 + 2000, 960 + 2000, 2000, 4080 + 1120, 0),
    "send": (3480 + 480, 960, 2000 + 2000 + 2000 // 2, 2 * 4080, 0),
    "words": (3480 + 480 + 480, 960, 2000, 320, 0),
    "exchange": (3480 + 480, 0, 960 + 960 // 2, 0, 0),
    "step": (3480, 0, 0, 0, 0),
}
TIED = {
    # One table of 120, layers of 540. Only inputs of 32 are kept, and a layer's 408 are made again; gloo copies what
    # it sums; and without earlier micro-batches the first layers' gradients are the first.
    "gather": (0, 480 + 2160, 480 + 2160, 0, 0),
    "experts": (0, 480 + 2160, 0, 10 * 152, 0),
    "head": (480, 480, 2160, 3 * 320 + 2 * 320 + 320 + 320, 8 * 10 * 15),
    "layer": (480 + 2160, 480 + 2160, 2160 + 2160 - 320, 3 * 320 + 4080 + 1120, 0),
    "first layer": (2 * 3480 // 3 + 480 + 2160, 480 + 2160, 2160 + 2160 - 320, 320 + 4080 + 1120, 0),
    "send": (480, 480, 2160 + 2 * 2160 + 2160 // 2, 2 * 320, 0),
    "words": (2 * 3480 // 3 + 3 * 480, 480, 2160, 320, 0),
    "exchange": (3480 + 480, 0, 2 * 480 + 480 // 2, 0, 0),
    "step": (3480, 0, 0, 0, 0),
}
ADAPTED = {
    # Adapters of rank 2: 2 x 3 x (2 x 16 + 2 x 12 + 3 x 28) = 840 parameters, nothing gathered. Norms keep 4 bytes
    # less; a token 2 x (8 x 4 + 32) + 4 x (16 + 8) + 4 x 4 + 4 x 80 = 560.
    "gather": (3360, 0, 0, 0, 0),
    "experts": (3360, 0, 0, 10 * (560 - 8 * 4 - 32 - 4 * 80), 0),
    "head": (3360, 0, 0, 3 * 5600 + 2 * 320 + 320 + 320, 8 * 10 * 30),
    "layer": (3360, 0, 0, 3 * 5600 + 10 * 192, 0),
    "first layer": (3360, 0, 0, 5600 + 10 * 192, 0),
    "send": (3360, 0, 0, 2 * 5600, 0),
    "words": (3360, 0, 0, 320, 0),
    "exchange": (3360, 0, 0, 0, 0),
    "step": (3360, 0, 0, 0, 0),
}
NARROW = {
    # In 16 bits, each half of the tokens on another rank: 5 of 256 bytes; 2 of them learned. Of the output layer's
    # gradient 120 numbers in both types, 6 bytes, beside the slice's, 120 // 4 x 6. Gradients of a norm: five copies of
    # 8 numbers in 32 bits where two tensors of the stream and 4 x 20 bytes of the feed-forward layer were, 48 bytes.
    "gather": (1740, 480 + 1000, 480 + 1000, 0, 0),
    "experts": (1740, 480 + 1000, 0, 5 * (256 - 8 * 6 - 16 - 4 * 20), 0),
    "head": (1740 + 480, 480, 1000, 3 * 1280 + 2 * 160 + 32 + 32, 180 + 720),
    "layer": (1740 + 240 + 1000, 480 + 1000, 1000 + 2000 - 1280, 3 * 1280 + 5 * (48 + 16), 0),
    "first layer": (1740 + 240 + 1000, 480 + 1000, 1000 + 2000 - 1280, 1280 + 5 * (48 + 16), 0),
    "send": (1740 + 240, 480, 1000 + 2000 + 2000 // 4, 2 * 1280, 0),
    "words": (1740 + 240 + 240, 480, 2000, 80, 0),
    "exchange": (1740 + 240, 0, 960 + 960 // 4, 0, 0),
    "step": (1740, 0, 0, 0, 0),
}


@pytest.mark.parametrize(
    ("shape", "training", "expected"),
    [
        (TINY, HALVES, SHARDED),
        (
            replace(TINY, tied=True),
            replace(HALVES, recompute=True, on_host=True, ragged=False, accumulated=False),
            TIED,
        ),
        (TINY, replace(HALVES, layout=Layout(2), whole=True, lora_rank=2), ADAPTED),
        (TINY, replace(HALVES, layout=Layout(2, 2, 2), float_bytes=2, learned=4), NARROW),
    ],
)
def test_the_moments_of_an_update(shape, training, expected) -> None:
    found = [
        (one.moment, (one.gradients, one.gathered, one.buffers, one.activations, one.logits))
        for one in Moments(shape, training).update()
    ]
    assert found == [(moment.removeprefix("first "), row) for moment, row in expected.items()]


def test_the_moments_of_a_pass() -> None:
    moments = [(one.moment, one.gathered, one.buffers, one.activations, one.logits) for one in forward(HALVES)]
    # A token without gradients: the stream four times, 4 x 32, and 3 x 40 of the feed-forward layer.
    assert moments == [
        ("gather", 960 + 2000, 960 + 2000, 2 * 320, 0),
        ("layer", 960 + 2000, 2000, 10 * 248, 0),
        ("head", 960, 2000, 320 + 320, 8 * 10 * 15),
    ]
    assert [one.gradients for one in forward(HALVES)] == [0, 0, 0]
    alone = forward(replace(HALVES, layout=Layout(1, 2)))
    assert [one.buffers for one in alone] == [0, 0, 0]  # no other rank has what it lacks
    # Half of 10 tokens each, of which 4 are learned from; a layer's keys and values are gathered: 80 + 32 + 16 bytes.
    halved = forward(replace(HALVES, layout=Layout(2, 2, 2), float_bytes=2, learned=4))
    assert [one.activations for one in halved] == [160, 5 * 128, 80 + 32]


def forward(training):
    return Moments(TINY, training).forward()


def test_shares_of_weights_and_moments_are_rounded_up() -> None:
    shape = replace(TINY, parameters=3481)
    held = learner_bytes(shape, replace(HALVES, layout=Layout(3), reference=True))
    assert (held.weights, held.optimizer, held.reference) == (4642, 9283, 4642)  # 4 x 3,481 / 3 and twice that
    whole = learner_bytes(shape, replace(HALVES, layout=Layout(3, 2), whole=True))
    assert (whole.weights, whole.optimizer) == (2 * 3481, 4 * 3481)  # split by tensor parallelism alone
    away = forward_bytes(shape, replace(HALVES, offload=True, reference=True))
    assert (away.optimizer, away.reference) == (0, 0)
    # Rank 2 at every linear layer, 840 parameters: they are weights beside the model's, and have moments alone.
    adapted = learner_bytes(shape, replace(HALVES, layout=Layout(), lora_rank=2))
    assert (adapted.weights, adapted.optimizer) == (4 * (3481 + 840), 8 * 840)


def test_a_recipe_s_training() -> None:
    config = build(
        {"env": {"name": "tictactoe"}, "algorithm": {"kl": 0.1}, "learner": {"dtype": "bfloat16", "lora_rank": 4}}
    )
    own = config.learner
    made = Training.of(config, Layout(2, 3, 2), learned=7)
    assert (made.layout, made.tokens, made.float_bytes) == (Layout(2, 3, 2), own.micro_batch_tokens, 2)
    assert (made.recompute, made.offload, made.lora_rank, made.reference) == (own.recompute, own.offload, 4, True)
    assert (made.learned, made.layout.shards, made.portion) == (7, 4, -(-own.micro_batch_tokens // 2))


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
    training = Training(Layout(dp, tp), tokens, bits, recompute, offload, rank, reference)
    held = learner_bytes(QWEN, training)
    wider, deeper = (
        learner_bytes(QWEN, replace(training, layout=layout)) for layout in (Layout(2 * dp, tp), Layout(dp, 2 * tp))
    )
    assert deeper.peak <= held.peak
    assert wider.peak - wider.gathered <= held.peak - held.gathered
    assert learner_bytes(QWEN, replace(training, recompute=True)).peak <= held.peak
    assert learner_bytes(QWEN, replace(training, offload=True)).peak <= held.peak
