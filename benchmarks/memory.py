"""Peak memory of an update on one long sample, in a separate process, compared with the predicted minimum."""

from typing import Any

from earl.benchmarks import footprint
from earl.benchmarks.memory_use import MemoryCase

BUDGET_BYTES = 8 << 30
FLOAT_BYTES = 4


def run(tokens: int = 32_768, vocab: int = 150_000, hidden: int = 128, layers: int = 4) -> dict[str, Any]:
    """Measure an update with activations kept, then recomputed. For the result see `earl bench memory --help`."""
    shape = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": 2 * hidden, "vocab_size": vocab}
    model = footprint.model(**shape)
    cases = [
        MemoryCase(name, "update", model, {"recompute": name == "recompute"}, tokens=tokens, prompt=tokens // 2)
        for name in ("kept", "recompute")
    ]
    return {
        "tokens": tokens,
        "vocab": vocab,
        "hidden": hidden,
        "layers": layers,
        **{row["name"]: _told(row) for row in map(footprint.row_of, cases)},
        "full_logits_bytes": tokens * vocab * FLOAT_BYTES,
        "budget_bytes": BUDGET_BYTES,
    }


def _told(row: dict[str, Any]) -> dict[str, Any]:
    peak, floor = row["measured_bytes"], row["predicted_bytes"]
    return {"peak_bytes": peak, "floor_bytes": floor, "ratio": peak / floor, "parts": row["parts"]}
