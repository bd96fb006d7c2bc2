"""What a pass over tokens takes on one rank: what it keeps for the backward pass, and what a layer at work needs.

The terms are the tensors that the engine's passes make, counted one by one as they are alive together; per token, in
bytes, of a rank of a tensor-parallel group. There are no fitted coefficients.
"""

from dataclasses import dataclass
from math import ceil

from earl.parallel.memory import WIDE_BYTES, ModelShape


@dataclass(frozen=True, slots=True)
class Layer:
    """Bytes per token of one layer on one rank."""

    stream: int
    """The residual stream that comes in."""
    kept: int
    """All that its backward pass reads, the stream with it."""
    backward: int
    """What the backward pass has beside `kept` at its fullest: gradients of the feed-forward layer, or of attention."""
    forward: int
    """What a pass without gradients has at its fullest, the embeddings with it, which it holds on to."""


def layer(shape: ModelShape, tp: int, float_bytes: int, ragged: bool, frozen: bool, cp: int = 1) -> Layer:
    """A layer of a model that computes in `float_bytes`.

    A norm keeps what comes in and what it is before the norm's weights, unless these are frozen, both in the type of
    the norm, 32 bits, and what goes out. Attention keeps queries, keys, values, its result, and a number a head.

    Args:
        ragged: whether rows of several lengths share a pass, so that their attention is joined into one tensor.
        frozen: whether the model's own weights are.
        cp: ranks that share the tokens: each gathers keys and values of all, and joins the attention of its pieces.
    """
    wide, stream = WIDE_BYTES, shape.hidden * float_bytes
    queries, keys = ceil(shape.heads / tp) * shape.head_dim, ceil(shape.kv_heads / tp) * shape.head_dim
    inner = ceil(shape.intermediate / tp) * float_bytes
    normed = wide + (0 if frozen else float_bytes)  # of one number that a norm passes
    joined = queries if ragged or cp > 1 else 0
    attention = (2 * queries + 2 * keys * cp + joined) * float_bytes + ceil(shape.heads / tp) * wide
    heads = (queries + keys) * normed if shape.head_norms else 0
    routed = shape.experts_per_token * 2 * stream if shape.experts > 1 else 0
    kept = 2 * (shape.hidden * normed + stream) + heads + attention + 4 * inner + routed
    rotated = (3 * queries + 2 * keys) * float_bytes + 3 * stream
    gathered = 4 * keys * cp * float_bytes if cp > 1 else 0  # by rank, and by place
    given = (queries + 6 * keys) * float_bytes + 3 * stream if cp > 1 else 0  # and keys and values as they are sent
    return Layer(
        stream=stream,
        kept=kept,
        # Gradients of what is gathered are put together from those of the pieces when the feed-forward layer is done.
        backward=max(2 * inner, 2 * gathered - 4 * inner) + stream,
        forward=max(4 * stream + 3 * inner + routed, rotated + stream, given + gathered + stream),
    )


def activation_bytes(shape: ModelShape, tokens: int, tp: int = 1, recompute: bool = False) -> int:
    """What the passes over `tokens` tokens of rows of several lengths keep on one rank for the backward pass.

    Args:
        recompute: whether a layer keeps its input only, and one at a time computes the rest again.
    """
    one = layer(shape, tp, shape.float_bytes, ragged=True, frozen=False)
    return tokens * (shape.layers * one.stream + one.kept if recompute else shape.layers * one.kept)
