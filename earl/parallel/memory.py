"""What a model's contexts cost in memory: pure arithmetic on its shape.

`earl bench footprint` compares what follows from it with measured processes. Two numbers are fitted there: what
libraries keep.
"""

from dataclasses import dataclass
from math import ceil

WIDE_BYTES = 4
"""Of a number that is in 32 bits whatever a model computes in: logits, and what norms keep."""
RESIDUE_BYTES = 6 << 20
"""Of a process on CPUs, beside its tensors: the C library's small pieces and MKL's buffers, measured."""
KERNEL_BYTES = 12 << 20
"""Of one that computes in 16 bits: oneDNN compiles and keeps a kernel for each of some twenty shapes of products."""
LOGITS_AT_ONCE = 1 << 24
"""The learner makes logits in slices of so many numbers: 64 MiB."""

PRODUCT_AT_ONCE = 1 << 22
"""Of the output layer's gradient, where it is computed in 16 bits, so many numbers: 24 MiB with their 32 bits."""


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
    tied: bool = False
    """Whether the output layer is the embeddings."""
    head_norms: bool = False
    """Whether queries and keys are normed head by head, as in Qwen3."""
    float_bytes: int = 4
    """Of one number in weights, keys, values and activations."""
    experts: int = 1
    """Feed-forward networks of a layer; 1: no mixture of experts."""
    experts_per_token: int = 1
    """That one token passes; together they are `intermediate` wide."""


def kv_bytes(shape: ModelShape, tp: int = 1) -> int:
    """Keys and values of one token on one rank of a tensor-parallel group.

    Example:
        >>> qwen = ModelShape(72_706_203_648, 80, 8192, 64, 8, 128, 29_568, 152_064, 32_768, float_bytes=2)
        >>> kv_bytes(qwen) // 1024, kv_bytes(qwen, tp=8) // 1024   # KiB: heads are split, 8 over 8 ranks
        (320, 40)
    """
    return 2 * shape.layers * ceil(shape.kv_heads / tp) * shape.head_dim * shape.float_bytes


def logit_bytes(shape: ModelShape, tokens: int, tp: int = 1) -> int:
    """Logits of a pass on one rank, in 32 bits: they are made in slices, each in two copies."""
    return min(tokens * ceil(shape.vocab / tp), LOGITS_AT_ONCE) * 2 * WIDE_BYTES
