"""What a model's contexts cost in memory: pure arithmetic on its shape.

`earl bench footprint` compares what follows from it with measured processes. Two numbers are fitted there: what
libraries keep.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

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


# What a pass over tokens takes on one rank: what it keeps for the backward pass, and what a layer at work needs.
#
# The terms are the tensors that the engine's passes make, counted one by one as they are alive together; per token, in
# bytes, of a rank of a tensor-parallel group. There are no fitted coefficients.


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


# What earl's own sampler takes: weights, keys and values in slots that grow by doubling, and the pass at work.

PASS_TOKENS = 1 << 14
"""Prompts are read in passes of at most so many new tokens, or one at a time."""
FIRST_ROOM = 16


def room_for(count: int) -> int:
    """Slots, or positions of a slot, that are there for `count`: 16, 32, 64 …

    Example:
        >>> room_for(3), room_for(33), room_for(0)
        (16, 64, 0)
    """
    return max(FIRST_ROOM, 1 << (count - 1).bit_length()) if count else 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is sampled at once."""

    contexts: int
    prompt_tokens: int
    """Of the longest new piece of a context: a first prompt, or what a turn adds."""
    tokens: int
    """Of the longest context, with its reply."""
    held_tokens: int = 0
    """Of a context, that its slot holds already when the new piece is read."""
    on_host: bool = True
    """Whether what libraries keep of host memory counts."""


@dataclass(frozen=True, slots=True)
class SlotBytes:
    """Of one process that samples, at the fullest moment."""

    weights: int
    slots: int
    """Keys and values, and the room that is there for more."""
    activations: int
    """Of the pass at work, with its mask and the keys and values that it reads."""
    logits: int
    residue: int
    """What libraries keep."""
    moment: str
    """`prompts`, `reply` or `draw`."""

    @property
    def parts(self) -> dict[str, int]:
        """By what they are for."""
        return {name: getattr(self, name) for name in ("weights", "slots", "activations", "logits", "residue")}

    @property
    def peak(self) -> int:
        """The most at once."""
        return sum(self.parts.values())


def slot_bytes(shape: ModelShape, sampling: Sampling) -> SlotBytes:
    """What earl's own sampler takes; it computes in 32 bits, on one device.

    prompts   a pass reads prompts: activations of its tokens, its mask, what it attends to
    reply     a pass adds a token to every context
    draw      tokens are drawn: logits, log-probs, and their sum in 64 bits
    """
    many, piece = sampling.contexts, sampling.prompt_tokens
    read, longest = room_for(sampling.held_tokens + piece), room_for(sampling.tokens)
    slot = room_for(many) * kv_bytes(shape)
    before = longest // 2 if longest > read else 0  # keys or values of one layer, as they were, while they are copied
    growing = slot * before // (2 * shape.layers)
    at_once = max(1, min(many, PASS_TOKENS // piece))
    logits = many * shape.vocab * WIDE_BYTES
    moments = {
        "prompts": (slot * read, _pass(shape, at_once, piece, sampling.held_tokens + piece), logits),
        "reply": (slot * longest + growing, _pass(shape, many, 1, sampling.tokens), 2 * logits),
        "draw": (slot * longest, 0, 4 * logits),
    }
    moment = max(moments, key=lambda name: sum(moments[name]))
    residue = RESIDUE_BYTES if sampling.on_host else 0
    return SlotBytes(WIDE_BYTES * shape.parameters, *moments[moment], residue, moment)


def _pass(shape: ModelShape, rows: int, width: int, length: int) -> int:
    """Of a pass over `rows` x `width` tokens that attend to `length` each: the fuller half of a layer, and the mask."""
    one = layer(shape, 1, WIDE_BYTES, ragged=False, frozen=True)
    tokens, attended = rows * width, rows * length * kv_bytes(shape) // shape.layers
    queries = tokens * (4 * shape.hidden + 3 * shape.heads * shape.head_dim) * WIDE_BYTES
    return max(tokens * one.forward, queries + attended) + rows * width * length * WIDE_BYTES


# A number that was measured or is predicted: the two are never mixed unmarked.

Origin = Literal["measured", "predicted", "corrected"]
"""`corrected`: a prediction, moved by what was measured next to it."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, and where the true one is expected in four of five cases.

    Example:
        Estimate(412.0, 371.0, 458.0, "predicted")   # tokens per GPU per second
    """

    value: float
    low: float
    """Lower end of the 80 % interval."""
    high: float
    """Upper end of the 80 % interval."""
    origin: Origin


# What a step asks of the machines, in numbers: what a layout is chosen for.


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
