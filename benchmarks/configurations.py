"""What the benchmark of memory models measures: families, widths, depths, vocabularies, layouts, and settings.

Small enough for a laptop, large enough that what libraries keep is not what is measured: 100 to 700 MB a process.
"""

from typing import Any

from earl.benchmarks.occupied import Case


def model(
    kind: str = "qwen3",
    hidden: int = 256,
    layers: int = 4,
    kv_heads: int = 4,
    intermediate: int = 512,
    vocab: int = 2000,
    tied: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """A configuration with four heads, as `transformers` calls its keys."""
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // 4,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        **more,
    }


NARROW, RECOMPUTE = {"dtype": "bfloat16"}, {"recompute": True}
MIXTURE = model("qwen3_moe", 256, 3, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=256)
MIXTRAL = model("mixtral", 256, 3, 2, 256, num_local_experts=4, num_experts_per_tok=2)
GEMMA = model("gemma", 256, 3, 1, 1024, vocab=40_000) | {"head_dim": 256}
WHOLE = (
    Case("qwen3, kept", "update", model(), micro_batches=2),
    Case("qwen3, recomputed", "update", model(layers=8, intermediate=1024), RECOMPUTE, tokens=3072, micro_batches=2),
    Case("llama, words apart", "update", model("llama", kv_heads=1, vocab=30_000, tied=False)),
    Case("qwen2, many words", "update", model("qwen2", kv_heads=2, vocab=60_000), tokens=256, micro_batches=2),
    Case("llama, wide", "update", model("llama", 768, 3, 2, 2048), tokens=512, micro_batches=2),
    Case("mistral, deep", "update", model("mistral", 192, 14, 2, 768, sliding_window=None), tokens=1024),
    Case("qwen3, several rows", "update", model(kv_heads=2, layers=6), rows=4),
    Case("qwen3, adapters", "update", model(hidden=512, intermediate=2048), {"lora_rank": 8}, tokens=1024),
    Case("qwen2, reference", "update", model("qwen2", vocab=20_000), micro_batches=2, reference=True),
    Case("gemma", "update", GEMMA, tokens=1024, micro_batches=2),
    Case("mixture of qwen3", "update", MIXTURE, tokens=1024, micro_batches=2),
    Case("mixtral", "update", MIXTRAL, tokens=1024, micro_batches=2),
)
SHARDED = (
    Case("1 x 1, 16 bits", "update", model(intermediate=1024), NARROW, 1, tokens=3072, micro_batches=2),
    Case("1 x 1, recomputed", "update", model("llama", layers=10, vocab=8000), RECOMPUTE, 1, micro_batches=2),
    Case("2 x 1", "update", model(vocab=20_000, intermediate=1024, tied=False), {}, 2, tokens=1024, micro_batches=2),
    Case("2 x 1, wide", "update", model(hidden=512, intermediate=4096), {}, 2, tokens=128, micro_batches=2),
    Case(
        "2 x 1, wide, 16 bits", "update", model(hidden=512, intermediate=4096), NARROW, 2, tokens=256, micro_batches=2
    ),
    Case("2 x 1, recomputed", "update", model("llama", layers=10, kv_heads=2), RECOMPUTE, 2, tokens=3072),
    Case("2 x 1, many words", "update", model(vocab=60_000, tied=False), {}, 2, tokens=128, micro_batches=2),
    Case("2 x 1, many words, tied", "update", model("qwen2", vocab=60_000), NARROW, 2, tokens=512, micro_batches=2),
    Case("2 x 1, adapters", "update", model(hidden=512, intermediate=2048, layers=6), {"lora_rank": 8}, 2, tokens=1024),
    Case("1 x 2", "update", model("qwen2", vocab=20_000, intermediate=1024, tied=False), {}, 1, 2, micro_batches=2),
    Case("1 x 2, 16 bits", "update", model(hidden=384, intermediate=1536), NARROW, 1, 2, micro_batches=2),
    Case("2 x 2", "update", model(hidden=512, intermediate=2048), {}, 2, 2, tokens=1024, micro_batches=2),
    Case("4 x 1", "update", model("llama", 512, 4, 2, 2048, 8000), {}, 4, tokens=512, micro_batches=2),
    Case("1 x 4", "update", model(hidden=512, intermediate=2048, tied=False, vocab=16_000), {}, 1, 4, tokens=1024),
)
SPLIT = (
    Case("cp 2", "update", model(kv_heads=2, intermediate=1024), {}, 1, tokens=4096, micro_batches=2, cp=2),
    Case("cp 2, as many keys", "update", model("llama", 256, 6), {}, 1, tokens=4096, cp=2),
    Case("cp 2, several rows", "update", model(kv_heads=1, layers=6), {}, 1, tokens=4096, rows=6, cp=2),
    Case("cp 2, recomputed", "update", model("llama", layers=10, kv_heads=2), RECOMPUTE, 1, tokens=6144, cp=2),
    Case(
        "cp 2, 16 bits", "update", model(hidden=384, intermediate=1536), NARROW, 1, tokens=4096, micro_batches=2, cp=2
    ),
    Case("cp 4", "update", model(hidden=512, kv_heads=2, intermediate=2048), {}, 1, tokens=4096, cp=4),
    Case("dp 2, cp 2", "update", model("llama", 512, 4, 2, 2048, 8000), {}, 2, tokens=1024, micro_batches=2, cp=2),
    Case("tp 2, cp 2", "update", model(hidden=512, intermediate=2048), {}, 1, 2, tokens=2048, micro_batches=2, cp=2),
    Case("cp 2 reads", "forward", model(hidden=512, intermediate=2048), {}, 1, tokens=6144, cp=2),
)
READING = (
    Case("reads", "forward", model(intermediate=2048), tokens=3072, micro_batches=2),
    Case("reads many words", "forward", model("llama", vocab=30_000, kv_heads=1), micro_batches=2),
    Case("reads its reference", "reference", model("llama", 512, 6, 2, 1536, 8000), reference=True),
    Case("gemma reads", "forward", GEMMA, tokens=1536),
    Case("mixture reads", "forward", MIXTURE, tokens=3072),
    Case("2 x 1 reads", "forward", model(hidden=512, vocab=20_000, intermediate=2048, tied=False), {}, 2, tokens=512),
    Case("2 x 1 reads, 16 bits", "forward", model(hidden=512, intermediate=4096), NARROW, 2, tokens=3072),
    Case(
        "1 x 2 reads its reference", "reference", model(hidden=512, intermediate=2048), {}, 1, 2, 3072, reference=True
    ),
)
SAMPLING = (
    Case("prompts", "sample", model(kv_heads=2, intermediate=1024), tokens=250, contexts=60, new_tokens=4),
    Case("many words drawn", "sample", model("llama", kv_heads=2, vocab=60_000), tokens=40, contexts=64, new_tokens=4),
    Case("many contexts", "sample", model("qwen2", layers=8), tokens=250, contexts=64, new_tokens=16),
    Case("long prompts", "sample", model("mistral", 256, 6, 2, sliding_window=None), tokens=3000, contexts=6),
    Case("wide", "sample", model("llama", 768, 6, 1, 2048), tokens=200, contexts=32, new_tokens=4),
    Case("gemma samples", "sample", GEMMA, tokens=120, contexts=100, new_tokens=6),
    Case("mixture samples", "sample", MIXTURE, tokens=200, contexts=64, new_tokens=6),
)
CASES = (*WHOLE, *SHARDED, *SPLIT, *READING, *SAMPLING)
