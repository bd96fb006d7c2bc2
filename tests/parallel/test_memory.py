from dataclasses import replace

from earl.parallel.memory import (
    Load,
    ModelShape,
    activation_bytes,
    kv_bytes,
    layer,
    load_of,
    logit_bytes,
    memory_metrics,
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
