from earl.parallel.load import Load, load_of, memory_metrics
from earl.parallel.memory import ModelShape, activation_bytes, kv_bytes

QWEN_7B = ModelShape(7_615_616_512, 28, 3584, 28, 4, 128, 18_944, 152_064, 32_768, float_bytes=2)
SMALL = ModelShape(186_240, 3, 64, 4, 4, 32, 128, 40, 1024)


def test_keys_and_values_of_one_token():
    # 2 (keys and values) x 28 layers x 4 heads x 128 x 2 bytes = 56 KiB, as is published for Qwen2.5-7B.
    assert kv_bytes(QWEN_7B) == 56 * 1024
    # Its 4 heads stop shrinking past TP4: one head is the least a rank holds.
    assert [kv_bytes(QWEN_7B, tp) // 1024 for tp in (1, 2, 4, 8)] == [56, 28, 14, 14]


def test_activations_of_a_pass():
    # 34 x 3 layers x 100 tokens x 64 wide x 4 bytes / 2 = 1,305,600, and logits of 4 x 100 x 40 = 16,000.
    assert activation_bytes(SMALL, 100) == 1_305_600 + 16_000
    assert activation_bytes(SMALL, 100, tp=2) == (1_305_600 + 16_000) // 2


def test_what_a_step_implies():
    load = load_of({"episodes": 10, "context/window/mean": 50.0, "context/window/max": 90, "context/limit": 120})
    assert load == Load(sequences=10, mean_tokens=50.0, longest_tokens=90, limit_tokens=120)
    numbers = memory_metrics(load, SMALL, micro_batch_tokens=64)
    assert numbers["memory/kv_bytes"] == 10 * 50 * 2 * 3 * 4 * 32 * 4
    assert numbers["memory/activation_bytes"] == activation_bytes(SMALL, 90)  # the longest is a micro-batch alone
    assert memory_metrics(load, SMALL, 2048)["memory/activation_bytes"] == activation_bytes(SMALL, 500)  # all there is
