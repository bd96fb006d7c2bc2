"""What a model's contexts cost in memory: pure arithmetic on its shape.

Estimates from the usual formulas, not measurements: they leave out fragmentation and what a library keeps for itself.
"""

from dataclasses import dataclass
from math import ceil

ACTIVATION_FACTOR = 34
"""Bytes per layer, token and unit of width at 16 bits, with flash attention (Korthikanti et al., arXiv 2205.05198)."""
LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What can be known of a model before its weights are made or read.

    Example:
        Qwen2.5-72B: layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, intermediate=29568, vocab=152064
    """

    parameters: int
    layers: int
    hidden: int
    """Width of the residual stream."""
    heads: int
    """Attention heads."""
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width inside the feed-forward layers that one token passes."""
    vocab: int
    max_positions: int
    """Tokens of the longest context that its positions and its attention were made for."""
    float_bytes: int = 4
    """Of one number in weights, keys, values and activations."""


def kv_bytes(shape: ModelShape, tp: int = 1) -> int:
    """Keys and values of one token on one rank of a tensor-parallel group.

    Example:
        >>> qwen = ModelShape(72_706_203_648, 80, 8192, 64, 8, 128, 29_568, 152_064, 32_768, float_bytes=2)
        >>> kv_bytes(qwen) // 1024, kv_bytes(qwen, tp=8) // 1024   # KiB: heads are split, 8 over 8 ranks
        (320, 40)
    """
    return 2 * shape.layers * ceil(shape.kv_heads / tp) * shape.head_dim * shape.float_bytes


def activation_bytes(shape: ModelShape, tokens: int, tp: int = 1) -> int:
    """Activations of one training pass over `tokens` tokens on one rank, and its logits in 32 bits."""
    layers = ACTIVATION_FACTOR * shape.layers * tokens * shape.hidden * shape.float_bytes // 2
    return (layers + LOGIT_BYTES * tokens * shape.vocab) // tp
