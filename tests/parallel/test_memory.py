from dataclasses import replace

from earl.parallel.memory import (
    Estimate,
    Known,
    Load,
    ModelShape,
    Sampling,
    _known,
    _pass,
    activation_bytes,
    kv_bytes,
    layer,
    load_of,
    logit_bytes,
    memory_metrics,
    peak_metrics,
    slot_bytes,
    taught_load,
)

QWEN_7B = ModelShape(7_615_616_512, 28, 3584, 28, 4, 128, 18_944, 152_064, 32_768, float_bytes=2)
SMALL = ModelShape(186_240, 3, 64, 4, 4, 32, 128, 40, 1024)


def test_keys_and_values_of_one_token():
    # 2 (keys and values) x 28 layers x 4 heads x 128 x 2 bytes = 56 KiB, as is published for Qwen2.5-7B.
    assert kv_bytes(QWEN_7B) == 56 * 1024
    # Its 4 heads stop shrinking past TP4: one head is the least a rank holds.
    assert [kv_bytes(QWEN_7B, tp) // 1024 for tp in (1, 2, 4, 8)] == [56, 28, 14, 14]


def test_activations_of_a_pass():
    # A layer and token: two norms of 3 x 64; queries, result, all rows' results, keys and values, 5 x 4 x 32; 4 heads'
    # sums; 4 x 128 of the feed-forward: 1,540 numbers.
    assert activation_bytes(SMALL, 100) == 3 * 100 * 1540 * 4
    # Of two ranks each has the stream and half of the rest: 384 + 578.
    assert layer(SMALL, 2, 4, ragged=True, frozen=False).kept == 962 * 4
    # Norms of queries and keys keep 2 x (4 + 4) x 32 more.
    assert activation_bytes(replace(SMALL, head_norms=True), 100) == 3 * 100 * (1540 + 512) * 4
    # In 16 bits norms keep what comes in with 32: 2 x 64 x (4 + 2 + 2) bytes, 640 x 2, 4 x 4 and 512 x 2.
    assert activation_bytes(replace(SMALL, float_bytes=2), 100) == 3 * 100 * (1024 + 1280 + 16 + 1024)


def test_logits_of_a_pass():
    assert logit_bytes(SMALL, 100) == 2 * 4 * 100 * 40
    assert logit_bytes(SMALL, 100, tp=2) == 2 * 4 * 100 * 20
    # 32,768 x 152,064 words never exist together: two slices of 64 MiB do.
    assert logit_bytes(QWEN_7B, 32_768) == 128 << 20


def passes(tokens):
    return activation_bytes(SMALL, tokens) + logit_bytes(SMALL, tokens)


def test_what_a_step_implies():
    load = load_of({"episodes": 10, "context/window/mean": 50.0, "context/window/max": 90, "context/limit": 120})
    assert load == Load(sequences=10, mean_tokens=50.0, longest_tokens=90, limit_tokens=120)
    numbers = memory_metrics(load, SMALL, micro_batch_tokens=64)
    assert numbers["memory/kv_bytes"] == 10 * 50 * 2 * 3 * 4 * 32 * 4
    assert numbers["memory/activation_bytes"] == passes(90)  # the longest is a micro-batch alone
    assert memory_metrics(load, SMALL, 2048)["memory/activation_bytes"] == passes(500)  # all there is


def test_a_layer_whose_keys_are_gathered():
    # Of 4 heads of 32 one rank of 2 has 64 numbers of queries and as many of keys; 3 ranks share the tokens.
    own = layer(SMALL, 2, 4, ragged=False, frozen=True, cp=3)
    # Two norms keep 4 bytes a number, and their output: 2 x (64 x 4 + 256); attention 64 x 2 + 2 x 64 x 3, and 64 that
    # join its pieces, and 2 sums; the feed-forward layer 4 x 64.
    assert own.kept == 2 * (256 + 256) + (2 * 64 + 2 * 64 * 3 + 64) * 4 + 2 * 4 + 4 * 256
    assert own.stream == 256
    # Gathered by rank and by place: 4 x 64 x 3; gradients of both, where the feed-forward layer's four were.
    assert own.backward == 2 * (4 * 64 * 3 * 4) - 4 * 256 + 256
    # Queries, keys and values as they are sent, three tensors of the stream; what is gathered; the stream.
    assert own.forward == (64 + 6 * 64) * 4 + 3 * 256 + 4 * 64 * 3 * 4 + 256


def test_norms_of_a_layer_in_eight_parts():
    # In 16 bits norms compute in 32, over all 64 numbers of the stream: forward two copies beside three tensors of it;
    # backward five, where two tensors of the stream and 4 x 16 numbers of the feed-forward layer were.
    own = layer(SMALL, 8, 2, ragged=False, frozen=False)
    assert own.forward == 2 * 64 * 4 + 3 * 128
    assert own.backward == 5 * 64 * 4 - 2 * 128 - 4 * 16 * 2 + 128
    # In 32 bits there are no copies: queries and keys of a head of 32 as they are rotated, 3 + 2, and the stream.
    wide = layer(SMALL, 8, 4, ragged=False, frozen=False)
    assert (wide.forward, wide.backward) == ((3 + 2) * 32 * 4 + 4 * 256, 2 * 64 + 256)


def test_a_layer_of_a_mixture():
    mixture = replace(SMALL, experts=8, experts_per_token=2)
    alone, routed = (layer(shape, 1, 4, ragged=False, frozen=False) for shape in (SMALL, mixture))
    assert routed.kept - alone.kept == 2 * 2 * 256  # each of two experts has its input and its output
    assert routed.forward == 4 * 256 + 3 * 512 + 2 * 2 * 256
    wide = layer(replace(SMALL, heads=16), 1, 4, ragged=False, frozen=False)
    assert wide.forward == (3 * 512 + 2 * 128) * 4 + 3 * 256 + 256  # queries and keys as they are rotated
    assert alone.backward == 2 * 512 + 256


def test_a_pass_holds_the_larger_half_of_a_layer_and_its_mask():
    # 3 x 5 tokens that attend to 7 each; the stream four times and 3 x 128 of the feed-forward layer, or queries.
    queries, attended = 15 * (4 * 64 + 3 * 4 * 32) * 4, 21 * 2 * 4 * 32 * 4
    assert _pass(SMALL, 3, 5, 7) == queries + attended + 3 * 5 * 7 * 4
    broad = replace(SMALL, intermediate=4096)
    assert _pass(broad, 3, 5, 7) == 15 * (4 * 64 + 3 * 4096) * 4 + 3 * 5 * 7 * 4


def test_a_sampler_at_the_moments_of_a_step():
    token = 2 * 3 * 4 * 32 * 4
    # One context of 17 tokens, the first prompt of 17: 16 slots of 32 positions, none of them copied.
    held = slot_bytes(SMALL, Sampling(1, 17, 17, on_host=False))
    assert (held.moment, held.slots, held.logits) == ("prompts", 16 * 32 * token, 40 * 4)
    assert held.activations == _pass(SMALL, 1, 17, 17)
    # From 16 to 32 positions a layer is copied; a reply has logits and log-probs.
    held = slot_bytes(SMALL, Sampling(1, 16, 17, on_host=False))
    assert (held.moment, held.slots, held.logits) == ("reply", 16 * 32 * token + 16 * 16 * token // 3, 2 * 40 * 4)
    assert held.activations == _pass(SMALL, 1, 1, 17)
    assert held.parts == {
        "weights": 4 * 186_240,
        "slots": held.slots,
        "activations": held.activations,
        "logits": 320,
        "residue": 0,
    }
    assert held.peak == sum(held.parts.values())
    assert {type(size) for size in held.parts.values()} == {int}
    # A prompt longer than a pass is read alone.
    assert slot_bytes(SMALL, Sampling(3, 20_000, 20_000)).activations == _pass(SMALL, 1, 20_000, 20_000)


def test_loads_and_peaks():
    assert taught_load([3, 5, 10], 64) == Load(3, 6.0, 10, 64)
    assert peak_metrics({"rollout": 3, "update": 7}) == {
        "memory/peak_bytes/rollout": 3.0,
        "memory/peak_bytes/update": 7.0,
        "memory/peak_bytes": 7.0,
    }
    assert peak_metrics({}) == {}
    assert Estimate(2.0, 1.0, 4.0).scaled(1.5) == Estimate(3.0, 1.5, 6.0)


def test_a_row_of_the_catalogue():
    row = {
        **{"name": "Mixed-1B", "hub": "who/Mixed-1B-chat", "type": "qwen3_moe", "parameters": "99", "layers": "2"},
        **{"hidden": "8", "heads": "4", "kv_heads": "2", "head_dim": "3", "intermediate": "5", "vocab": "7"},
        **{"max_positions": "16", "tied": "true", "experts": "6", "experts_per_token": "3", "float_bytes": ""},
    }
    # Each token passes 3 experts of 5.
    shape = ModelShape(
        *(99, 2, 8, 4, 2, 3, 15, 7, 16),
        tied=True,
        head_norms=True,
        experts=6,
        experts_per_token=3,
    )
    assert _known(row) == Known("Mixed-1B", "who/Mixed-1B-chat", "qwen3_moe", shape)
    plain = _known(row | {"type": "llama", "tied": "false", "experts": "1", "experts_per_token": "1"}).shape
    assert (plain.tied, plain.head_norms, plain.intermediate) == (False, False, 5)
