"""What a step asks of the machines, in numbers: what a layout is chosen for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from earl.parallel.memory import ModelShape, kv_bytes, logit_bytes
from earl.parallel.passes import activation_bytes


@dataclass(frozen=True, slots=True)
class Load:
    """Contexts of one step.

    Example:
        Load(sequences=384, mean_tokens=61.5, longest_tokens=104, limit_tokens=120)
    """

    sequences: int
    """Episodes of a step, all of which may be held at once."""
    mean_tokens: float
    """Of an episode's longest context."""
    longest_tokens: int
    limit_tokens: int
    """What an episode may grow to. It moves ahead of growth under `context.limit = "auto"`."""


def load_of(metrics: Mapping[str, float]) -> Load:
    """The load of a step, from its metrics."""
    return Load(
        sequences=int(metrics["episodes"]),
        mean_tokens=metrics["context/window/mean"],
        longest_tokens=int(metrics["context/window/max"]),
        limit_tokens=int(metrics["context/limit"]),
    )


def memory_metrics(load: Load, shape: ModelShape, micro_batch_tokens: int) -> dict[str, float]:
    """Bytes that the contexts imply on one device that holds all: estimates, see memory.py.

    Keys and values: every episode's longest context held at once. Activations: those of the largest micro-batch, which
    a context longer than `micro_batch_tokens` forms alone, and its logits.
    """
    held = load.sequences * load.mean_tokens * kv_bytes(shape)
    learned = min(load.sequences * load.mean_tokens, max(micro_batch_tokens, load.longest_tokens))
    passed = activation_bytes(shape, int(learned)) + logit_bytes(shape, int(learned))
    return {"memory/kv_bytes": held, "memory/activation_bytes": float(passed)}


def peak_metrics(peaks: Mapping[str, float]) -> dict[str, float]:
    """The most memory that any process took of its own, measured: over the step, and by stage."""
    own = {f"memory/peak_bytes/{stage}": float(count) for stage, count in peaks.items()}
    return {**own, "memory/peak_bytes": max(own.values())} if own else {}


def taught_load(lengths: Sequence[int], limit: int) -> Load:
    """The load of rows that a teacher made, from their tokens."""
    return Load(len(lengths), float(sum(lengths)) / len(lengths), int(max(lengths)), limit)
