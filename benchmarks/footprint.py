"""The memory model against measured processes: predicted and measured peaks of training, scoring and sampling.

For each case in turn, the parent starts its ranks as fresh processes (memory_use.py); several are joined by gloo.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from earl.benchmarks.layouts import free_ports
from earl.benchmarks.memory_use import MemoryCase
from earl.engine.heap import GIVE_BACK
from earl.engine.model import shape_of
from earl.errors import EarlError
from earl.parallel.footprint import LearnerBytes, Training, forward_bytes, learner_bytes
from earl.parallel.memory import ModelShape, Sampling, SlotBytes, slot_bytes

# Cases are small enough for a laptop, but larger than what libraries allocate: 100 to 700 MB a process.


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
    """A model configuration with four heads, with the keys of `transformers`."""
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
    MemoryCase("qwen3, kept", "update", model(), micro_batches=2),
    MemoryCase(
        "qwen3, recomputed", "update", model(layers=8, intermediate=1024), RECOMPUTE, tokens=3072, micro_batches=2
    ),
    MemoryCase("llama, words apart", "update", model("llama", kv_heads=1, vocab=30_000, tied=False)),
    MemoryCase("qwen2, many words", "update", model("qwen2", kv_heads=2, vocab=60_000), tokens=256, micro_batches=2),
    MemoryCase("llama, wide", "update", model("llama", 768, 3, 2, 2048), tokens=512, micro_batches=2),
    MemoryCase("mistral, deep", "update", model("mistral", 192, 14, 2, 768, sliding_window=None), tokens=1024),
    MemoryCase("qwen3, several rows", "update", model(kv_heads=2, layers=6), rows=4),
    MemoryCase("qwen3, adapters", "update", model(hidden=512, intermediate=2048), {"lora_rank": 8}, tokens=1024),
    MemoryCase("qwen2, reference", "update", model("qwen2", vocab=20_000), micro_batches=2, reference=True),
    MemoryCase("gemma", "update", GEMMA, tokens=1024, micro_batches=2),
    MemoryCase("mixture of qwen3", "update", MIXTURE, tokens=1024, micro_batches=2),
    MemoryCase("mixtral", "update", MIXTRAL, tokens=1024, micro_batches=2),
)
SHARDED = (
    MemoryCase("1 x 1, 16 bits", "update", model(intermediate=1024), NARROW, 1, tokens=3072, micro_batches=2),
    MemoryCase("1 x 1, recomputed", "update", model("llama", layers=10, vocab=8000), RECOMPUTE, 1, micro_batches=2),
    MemoryCase(
        "2 x 1", "update", model(vocab=20_000, intermediate=1024, tied=False), {}, 2, tokens=1024, micro_batches=2
    ),
    MemoryCase("2 x 1, wide", "update", model(hidden=512, intermediate=4096), {}, 2, tokens=128, micro_batches=2),
    MemoryCase(
        "2 x 1, wide, 16 bits", "update", model(hidden=512, intermediate=4096), NARROW, 2, tokens=256, micro_batches=2
    ),
    MemoryCase("2 x 1, recomputed", "update", model("llama", layers=10, kv_heads=2), RECOMPUTE, 2, tokens=3072),
    MemoryCase("2 x 1, many words", "update", model(vocab=60_000, tied=False), {}, 2, tokens=128, micro_batches=2),
    MemoryCase(
        "2 x 1, many words, tied", "update", model("qwen2", vocab=60_000), NARROW, 2, tokens=512, micro_batches=2
    ),
    MemoryCase(
        "2 x 1, adapters", "update", model(hidden=512, intermediate=2048, layers=6), {"lora_rank": 8}, 2, tokens=1024
    ),
    MemoryCase(
        "1 x 2", "update", model("qwen2", vocab=20_000, intermediate=1024, tied=False), {}, 1, 2, micro_batches=2
    ),
    MemoryCase("1 x 2, 16 bits", "update", model(hidden=384, intermediate=1536), NARROW, 1, 2, micro_batches=2),
    MemoryCase("2 x 2", "update", model(hidden=512, intermediate=2048), {}, 2, 2, tokens=1024, micro_batches=2),
    MemoryCase("4 x 1", "update", model("llama", 512, 4, 2, 2048, 8000), {}, 4, tokens=512, micro_batches=2),
    MemoryCase(
        "1 x 4", "update", model(hidden=512, intermediate=2048, tied=False, vocab=16_000), {}, 1, 4, tokens=1024
    ),
)
SPLIT = (
    MemoryCase("cp 2", "update", model(kv_heads=2, intermediate=1024), {}, 1, tokens=4096, micro_batches=2, cp=2),
    MemoryCase("cp 2, as many keys", "update", model("llama", 256, 6), {}, 1, tokens=4096, cp=2),
    MemoryCase("cp 2, several rows", "update", model(kv_heads=1, layers=6), {}, 1, tokens=4096, rows=6, cp=2),
    MemoryCase("cp 2, recomputed", "update", model("llama", layers=10, kv_heads=2), RECOMPUTE, 1, tokens=6144, cp=2),
    MemoryCase(
        "cp 2, 16 bits", "update", model(hidden=384, intermediate=1536), NARROW, 1, tokens=4096, micro_batches=2, cp=2
    ),
    MemoryCase("cp 4", "update", model(hidden=512, kv_heads=2, intermediate=2048), {}, 1, tokens=4096, cp=4),
    MemoryCase(
        "dp 2, cp 2", "update", model("llama", 512, 4, 2, 2048, 8000), {}, 2, tokens=1024, micro_batches=2, cp=2
    ),
    MemoryCase(
        "tp 2, cp 2", "update", model(hidden=512, intermediate=2048), {}, 1, 2, tokens=2048, micro_batches=2, cp=2
    ),
    MemoryCase("cp 2 reads", "forward", model(hidden=512, intermediate=2048), {}, 1, tokens=6144, cp=2),
)
READING = (
    MemoryCase("reads", "forward", model(intermediate=2048), tokens=3072, micro_batches=2),
    MemoryCase("reads many words", "forward", model("llama", vocab=30_000, kv_heads=1), micro_batches=2),
    MemoryCase("reads its reference", "reference", model("llama", 512, 6, 2, 1536, 8000), reference=True),
    MemoryCase("gemma reads", "forward", GEMMA, tokens=1536),
    MemoryCase("mixture reads", "forward", MIXTURE, tokens=3072),
    MemoryCase(
        "2 x 1 reads", "forward", model(hidden=512, vocab=20_000, intermediate=2048, tied=False), {}, 2, tokens=512
    ),
    MemoryCase("2 x 1 reads, 16 bits", "forward", model(hidden=512, intermediate=4096), NARROW, 2, tokens=3072),
    MemoryCase(
        "1 x 2 reads its reference", "reference", model(hidden=512, intermediate=2048), {}, 1, 2, 3072, reference=True
    ),
)
SAMPLING = (
    MemoryCase("prompts", "sample", model(kv_heads=2, intermediate=1024), tokens=250, contexts=60, new_tokens=4),
    MemoryCase(
        "many words drawn", "sample", model("llama", kv_heads=2, vocab=60_000), tokens=40, contexts=64, new_tokens=4
    ),
    MemoryCase("many contexts", "sample", model("qwen2", layers=8), tokens=250, contexts=64, new_tokens=16),
    MemoryCase("long prompts", "sample", model("mistral", 256, 6, 2, sliding_window=None), tokens=3000, contexts=6),
    MemoryCase("wide", "sample", model("llama", 768, 6, 1, 2048), tokens=200, contexts=32, new_tokens=4),
    MemoryCase("gemma samples", "sample", GEMMA, tokens=120, contexts=100, new_tokens=6),
    MemoryCase("mixture samples", "sample", MIXTURE, tokens=200, contexts=64, new_tokens=6),
)
CASES = (*WHOLE, *SHARDED, *SPLIT, *READING, *SAMPLING)


def cases_of(only: str | None, path: Path | None) -> list[MemoryCase]:
    """The benchmark's cases, or those in a JSON file, filtered by name. Raises EarlError if none is left or valid."""
    try:
        cases = [MemoryCase(**one) for one in json.loads(path.read_text())] if path else CASES
    except (TypeError, ValueError) as error:
        raise EarlError(f"{str(path)!r} is not a JSON list of configurations: {error}; see `case` of a row") from error
    chosen = [case for case in cases if only is None or only in case.name]
    if torch.cuda.is_available():  # sharded cases of one process only; on GPUs the sampler is vLLM
        chosen = [case for case in chosen if case.dp and case.processes == 1 and case.stage != "sample"]
    if not chosen:
        raise EarlError(f"no configuration's name has {only!r} in it; leave --only out to see all of them")
    return chosen


def run(only: str | None, cases: Path | None) -> dict[str, Any]:
    """Measure each case of `cases_of` in separate processes. For the result see `earl bench footprint --help`.

    Bytes are beyond those of a process before it makes a model; `error` is relative to the measured peak.
    """
    rows = [_row(case) for case in cases_of(only, cases)]
    errors = [row["error"] for row in rows]
    return {
        "device": _device(),
        "rows": rows,
        "configurations": len(rows),
        "under": min(0.0, *errors),
        "over": max(0.0, *errors),
        "mean": sum(map(abs, errors)) / len(errors),
    }


def predicted(case: MemoryCase) -> LearnerBytes | SlotBytes:
    shape, host = shape_made(case.model), not torch.cuda.is_available()
    if case.stage == "sample":
        longest = case.tokens + case.new_tokens - 1  # the last token of a reply is not fed
        return slot_bytes(shape, Sampling(case.contexts, case.tokens, longest, on_host=host))
    training = Training(
        dp=max(1, case.dp),
        tp=case.tp,
        cp=case.cp,
        tokens=case.tokens,
        float_bytes=2 if case.learner.get("dtype") == "bfloat16" else 4,
        recompute=case.learner.get("recompute", False),
        offload=case.learner.get("offload", False),
        lora_rank=case.learner.get("lora_rank", 0),
        reference=case.reference,
        whole=not case.dp,
        on_host=host,
        learned=case.learned,
        accumulated=case.micro_batches > 1,
        ragged=case.rows > 1,
    )
    return (learner_bytes if case.stage == "update" else forward_bytes)(shape, training)


def shape_made(model: dict[str, Any]) -> ModelShape:
    keys = dict(model)
    with torch.device("meta"):
        config = AutoConfig.for_model(keys.pop("model_type"), max_position_embeddings=1 << 17, **keys)
        return shape_of(AutoModelForCausalLM.from_config(config))


def _row(case: MemoryCase) -> dict[str, Any]:
    ranks, parts = _measured(case), predicted(case)
    peak = max(rank["peak_bytes"] for rank in ranks)
    return {
        "name": case.name,
        "case": asdict(case),
        "predicted_bytes": parts.peak,
        "measured_bytes": peak,
        "before_bytes": max(rank["before_bytes"] for rank in ranks),
        "error": parts.peak / peak - 1,
        "parts": parts.parts,
        "moment": parts.moment,
    }


def _measured(case: MemoryCase) -> list[dict[str, int]]:
    environment = {**os.environ, **GIVE_BACK, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "earl.benchmarks.memory_use", json.dumps(asdict(case))]
    port = str(free_ports(1)[0])
    ranks = [
        subprocess.Popen([*command, str(rank), port], env=environment, stdout=subprocess.PIPE)
        for rank in range(case.processes)
    ]
    try:
        said = [rank.communicate()[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a process of the case {case.name!r} ended early; its message stands above")
    return [json.loads(text) for text in said]


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
