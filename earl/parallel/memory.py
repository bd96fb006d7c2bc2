"""Memory of activations, contexts and earl's own sampler, and the load of a step: arithmetic on a model's shape.

`earl bench footprint` compares the results with measured processes. Only what libraries keep (RESIDUE_BYTES,
KERNEL_BYTES) is fitted there.
"""

import csv
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from math import ceil
from typing import Literal

WIDE_BYTES = 4
"""Of a number that is always in 32 bits: logits, and what norms keep."""
RESIDUE_BYTES = 6 << 20
"""Memory of a process on CPUs outside its tensors, measured: small pieces of the C library, buffers of MKL."""
KERNEL_BYTES = 12 << 20
"""More of that when computing in 16 bits: oneDNN compiles and keeps kernels for some twenty shapes of products."""
LOGIT_SLICE = 1 << 24  # numbers in a slice of the learner's logits: 64 MiB

PRODUCT_SLICE = 1 << 22
"""Numbers of the output layer's gradient at once, when computed in 16 bits: 24 MiB with their 32-bit copies."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The architecture of a model, known before its weights are made or read."""

    parameters: int
    layers: int
    hidden: int  # width of the residual stream
    heads: int  # attention heads
    kv_heads: int
    head_dim: int
    intermediate: int  # width of the feed-forward layers that one token passes
    vocab: int
    max_positions: int  # longest context that the model was made for
    tied: bool = False  # whether the output layer shares the embeddings
    head_norms: bool = False  # whether queries and keys are normed per head, as in Qwen3
    float_bytes: int = 4  # of one number in weights, keys, values and activations
    experts: int = 1  # feed-forward networks of a layer; 1: no mixture of experts
    experts_per_token: int = 1  # experts that one token passes; together `intermediate` wide
    indivisible: str = ""
    """Why earl's own layers of this family cannot be split by tensor parallelism; empty if they can."""

    @property
    def expert_parameters(self) -> int:
        """The parameters of one expert of one layer; 0 without a mixture."""
        return 3 * self.hidden * (self.intermediate // self.experts_per_token) if self.experts > 1 else 0


def kv_bytes(shape: ModelShape, tp: int = 1) -> int:
    """Keys and values of one token on one rank of a tensor-parallel group."""
    return 2 * shape.layers * ceil(shape.kv_heads / tp) * shape.head_dim * shape.float_bytes


def logit_bytes(shape: ModelShape, tokens: int, tp: int = 1) -> int:
    """Logits of a pass on one rank, in 32 bits: made in slices, each in two copies."""
    return min(tokens * ceil(shape.vocab / tp), LOGIT_SLICE) * 2 * WIDE_BYTES


# Memory of a pass on one rank: the tensors that the engine's passes make, counted as they are alive together.
# There are no fitted coefficients.


@dataclass(frozen=True, slots=True)
class Layer:
    """Bytes per token of one layer on one rank."""

    stream: int  # the incoming residual stream
    kept: int  # everything that its backward pass reads, with the stream
    backward: int
    """Peak of the backward pass beside `kept`: gradients of the feed-forward layer, or of attention."""
    forward: int
    """Peak of a pass without gradients, with the embeddings, which it keeps."""
    attended: int  # of `kept` what is kept before the feed-forward layer


def layer(
    shape: ModelShape,
    tp: int,
    float_bytes: int,
    ragged: bool,
    frozen: bool,
    cp: int = 1,
    ep: int = 1,
    fused: bool = False,
) -> Layer:
    """A layer of a model that computes in `float_bytes`.

    A norm keeps its input and the normalised value (unless its weights are frozen), both in 32 bits, and its output.
    Attention keeps queries, keys, values, its result, and a number per head.

    Args:
        ragged: whether rows of several lengths share a pass, so that their attention is joined into one tensor.
        frozen: whether the model's own weights are.
        cp: ranks that share the tokens: each gathers keys and values of all, and joins the attention of its pieces.
        ep: ranks that share the experts: tokens travel to them, to each rank as many as it has.
        fused: whether the layers are earl's own, whose norms keep only their input and output.
    """
    wide, stream = WIDE_BYTES, shape.hidden * float_bytes
    queries, keys = ceil(shape.heads / tp) * shape.head_dim, ceil(shape.kv_heads / tp) * shape.head_dim
    inner = ceil(shape.intermediate / tp) * float_bytes
    normed = wide + (0 if frozen or fused else float_bytes)  # per number that a norm passes
    joined = queries if ragged or cp > 1 else 0
    attention = (2 * queries + 2 * keys * cp + joined) * float_bytes + ceil(shape.heads / tp) * wide
    heads = (queries + keys) * normed if shape.head_norms else 0
    routed = ceil(shape.experts_per_token * 2 * stream / tp) if shape.experts > 1 else 0
    # Gate and up are one product of experts; those that come from other ranks lie beside it. At the end there are a
    # token's states for each of its experts, before and after them, weighed, and weighed in the order of tokens.
    mixed = inner + (0 if ep > 1 else -routed // 2) if routed else 0
    passed = max(3 * inner + routed + mixed, (5 if ep > 1 else 4) * routed // 2)
    kept = 2 * (shape.hidden * normed + stream) + heads + attention + 4 * inner + routed
    rotated = (3 * queries + 2 * keys) * float_bytes + 3 * stream
    gathered = 4 * keys * cp * float_bytes if cp > 1 else 0  # by rank, and by place
    narrow = float_bytes < wide  # then a norm computes in copies of 32 bits, over the whole stream
    widened, scaled = (2 * wide * shape.hidden, 5 * wide * shape.hidden) if narrow else (0, 0)
    given = (queries + 6 * keys) * float_bytes + 3 * stream if cp > 1 else 0  # with keys and values as they are sent
    return Layer(
        stream=stream,
        kept=kept,
        attended=kept - shape.hidden * normed - stream - 4 * inner - routed,
        # After the feed-forward layer: gradients of its norm; those of gathered tensors, from those of the pieces.
        backward=max(2 * inner, scaled - 2 * stream - 4 * inner - routed, 2 * gathered - 4 * inner) + stream,
        forward=max(3 * stream + passed, rotated, given + gathered, widened + 2 * stream) + stream,
    )


def activation_bytes(shape: ModelShape, tokens: int) -> int:
    """Activations kept for the backward pass over `tokens` tokens of rows of several lengths."""
    return tokens * shape.layers * layer(shape, 1, shape.float_bytes, ragged=True, frozen=False).kept


# Memory of earl's own sampler: weights, keys and values in slots that grow by doubling, and the current pass.

PASS_TOKENS = 1 << 14
"""Most new tokens in a pass over prompts, unless a single prompt is longer."""
FIRST_ROOM = 16


def room_for(count: int) -> int:
    """Allocated slots, or positions of a slot, for `count`: 16, 32, 64 …; 0 for none."""
    return max(FIRST_ROOM, 1 << (count - 1).bit_length()) if count else 0


@dataclass(frozen=True, slots=True)
class Sampling:
    contexts: int
    prompt_tokens: int  # of the longest new piece of a context: first prompt or turn
    tokens: int  # of the longest context, with its reply
    on_host: bool = True  # whether host memory kept by libraries counts


@dataclass(frozen=True, slots=True)
class SlotBytes:
    """Memory of one sampling process at its peak."""

    weights: int
    slots: int  # keys and values, with allocated spare slots
    activations: int  # of the current pass, with its mask and the keys and values read
    logits: int
    residue: int  # kept by libraries
    moment: str  # `prompts`, `reply` or `draw`

    @property
    def parts(self) -> dict[str, int]:
        return {name: size for name, size in asdict(self).items() if name != "moment"}

    @property
    def peak(self) -> int:
        return sum(self.parts.values())


def slot_bytes(shape: ModelShape, sampling: Sampling) -> SlotBytes:
    """Memory of earl's own sampler; it computes in 32 bits, on one device. The peak is at one of:

    prompts   a pass reads prompts: activations of its tokens, its mask, the attended keys and values
    reply     a pass adds a token to every context
    draw      tokens are drawn: logits, log-probs, and their sum in 64 bits
    """
    many, piece = sampling.contexts, sampling.prompt_tokens
    read, longest = room_for(piece), room_for(sampling.tokens)
    slot = room_for(many) * kv_bytes(shape)
    before = longest // 2 if longest > read else 0  # old keys and values of one layer during the copy
    growing = slot * before // shape.layers
    at_once = max(1, min(many, PASS_TOKENS // piece))
    logits = many * shape.vocab * WIDE_BYTES
    moments = {
        "prompts": (slot * read, _pass(shape, at_once, piece, piece), logits),
        "reply": (slot * longest + growing, _pass(shape, many, 1, sampling.tokens), 2 * logits),
        "draw": (slot * longest, 0, 4 * logits),
    }
    moment = max(moments, key=lambda name: sum(moments[name]))
    residue = RESIDUE_BYTES if sampling.on_host else 0
    return SlotBytes(WIDE_BYTES * shape.parameters, *moments[moment], residue, moment)


def _pass(shape: ModelShape, rows: int, width: int, length: int) -> int:
    """Memory of a pass over `rows` x `width` tokens that attend to `length` each: the larger half of a layer, and the
    mask."""
    one = layer(shape, 1, WIDE_BYTES, ragged=False, frozen=True)
    tokens, attended = rows * width, rows * length * kv_bytes(shape) // shape.layers
    queries = tokens * (4 * shape.hidden + 3 * shape.heads * shape.head_dim) * WIDE_BYTES
    return max(tokens * one.forward, queries + attended) + rows * width * length * WIDE_BYTES


Origin = Literal["predicted", "corrected", "measured"]
"""`corrected`: a prediction scaled by measurements of the same layout elsewhere; `measured`: the layout was in use."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted value with its 80 % interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> "Estimate":
        return Estimate(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class Load:
    """Contexts of one step, for which a layout is chosen."""

    sequences: int  # episodes of a step, all of which may be held at once
    mean_tokens: float  # of an episode's longest context
    longest_tokens: int
    limit_tokens: int
    """Largest possible length of an episode. With `context.limit = "auto"` it stays ahead of growth."""


def load_of(metrics: Mapping[str, float]) -> Load:
    return Load(
        sequences=int(metrics["episodes"]),
        mean_tokens=metrics["context/window/mean"],
        longest_tokens=int(metrics["context/window/max"]),
        limit_tokens=int(metrics["context/limit"]),
    )


def memory_metrics(load: Load, shape: ModelShape, micro_batch_tokens: int) -> dict[str, float]:
    """Estimated bytes of the contexts on one device that holds all.

    Keys and values: every episode's longest context held at once. Activations and logits: those of the largest
    micro-batch; a context longer than `micro_batch_tokens` forms one alone.
    """
    held = load.sequences * load.mean_tokens * kv_bytes(shape)
    learned = min(load.sequences * load.mean_tokens, max(micro_batch_tokens, load.longest_tokens))
    passed = activation_bytes(shape, int(learned)) + logit_bytes(shape, int(learned))
    return {"memory/kv_bytes": held, "memory/activation_bytes": float(passed)}


def peak_metrics(peaks: Mapping[str, float]) -> dict[str, float]:
    """Measured peak memory of any process, by stage and over the step."""
    own = {f"memory/peak_bytes/{stage}": float(count) for stage, count in peaks.items()}
    return {**own, "memory/peak_bytes": max(own.values())} if own else {}


def taught_load(lengths: Sequence[int], limit: int) -> Load:
    return Load(len(lengths), float(sum(lengths)) / len(lengths), int(max(lengths)), limit)


HEAD_NORMS = ("qwen3", "qwen3_moe")  # families with norms of queries and keys


@dataclass(frozen=True, slots=True)
class Known:
    name: str
    hub: str  # hub id of the chat variant
    type: str  # name of the family in `transformers`
    shape: ModelShape


@cache
def catalogue() -> dict[str, Known]:
    text = files("earl.parallel").joinpath("models.csv").read_text(encoding="utf-8")
    return {row["name"]: _known(row) for row in csv.DictReader(text.splitlines())}


def known(name: str) -> Known | None:
    """The model of that catalogue name or hub id, ignoring case; None: unknown."""
    wanted = name.lower()
    for model in catalogue().values():
        if wanted in (model.name.lower(), model.hub.lower(), model.hub.lower().split("/")[1]):
            return model
    return None


def nearest(name: str) -> str | None:
    """The known name that is most similar to `name`, if any."""
    names = {model.lower(): model for model in catalogue()}
    near = difflib.get_close_matches(name.lower().split("/")[-1].removesuffix("-instruct"), names, n=1)
    return names[near[0]] if near else None


def _known(row: dict[str, str]) -> Known:
    numbers = {field.name: int(row[field.name]) for field in fields(ModelShape) if row.get(field.name, "").isdecimal()}
    numbers["intermediate"] *= numbers["experts_per_token"]
    tied, norms = row["tied"] == "true", row["type"] in HEAD_NORMS
    shape = ModelShape(**numbers, tied=tied, head_norms=norms, indivisible="")
    return Known(row["name"], row["hub"], row["type"], shape)
