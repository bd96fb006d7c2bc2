"""How long a step of a serving engine takes: it adds a token to every sequence and reads some of the next prompts."""

from dataclasses import dataclass, replace
from math import log2

from earl.parallel.throughput.coefficients import Values
from earl.parallel.throughput.parts import parts
from earl.parallel.throughput.room import Engine

SHARPNESS = 3.0
"""How sharply the roofline bends where reading weights and multiplying them take equally long: 1 adds the two, infinity
takes the larger. Per-layer times of matrix products near the bend lie 1.2 times above either (2^(1/3.5))."""
ACTIVATION_BYTES = 2
EXPERT_TILE_ROWS = 64
"""Tokens of a tile in the products of experts, which are given few each."""
MANY_HEADS = 8
"""Of keys and values on a device: as many as are read at full speed."""
LARGE_BYTES = 1 << 20
"""Of an all-reduce that is neither small nor large."""
TILE_ROWS = 256
"""Tokens of a tile; with fewer it is smaller."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step works on."""

    sequences: float
    """That are given one token each."""
    context: float
    """Tokens of a sequence, on average."""
    prompt_tokens: float = 0.0
    """That are read beside."""
    prompt_context: float = 0.0
    """Tokens that each of these attends to, on average."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """By cause."""

    weights: float
    """Reading and multiplying them."""
    contexts: float
    """Reading keys and values."""
    prompts: float
    """Attention of prompts."""
    all_reduce: float
    activations: float
    """Norms, gates, residual streams."""
    overhead: float
    """Between kernels and between steps."""

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.contexts + self.prompts + self.all_reduce + self.activations + self.overhead

    def mixed(self, other: "StepSeconds", share: float) -> "StepSeconds":
        """The mean of such steps and others, of which there is this share."""
        own = 1.0 - share
        return StepSeconds(
            self.weights * own + other.weights * share,
            self.contexts * own + other.contexts * share,
            self.prompts * own + other.prompts * share,
            self.all_reduce * own + other.all_reduce * share,
            self.activations * own + other.activations * share,
            self.overhead * own + other.overhead * share,
        )


def average_step(engine: Engine, batch: Batch, prompt: float, own: Values) -> StepSeconds:
    """The mean of steps that read `batch.prompt_tokens` on average: a prompt at once in some, and none in the others.

    Example:
        27 sequences, of each 2,048 tokens read and 128 written: 432 tokens of prompts a step, in 0.21 of the steps
    """
    whole = min(max(prompt, batch.prompt_tokens), engine.software.step_tokens - batch.sequences)
    if whole <= batch.prompt_tokens:
        return step_seconds(engine, batch, own)
    share = batch.prompt_tokens / whole
    without = step_seconds(engine, replace(batch, prompt_tokens=0.0), own)
    reading = step_seconds(engine, replace(batch, prompt_tokens=whole), own)
    return without.mixed(reading, share)


def step_seconds(engine: Engine, batch: Batch, own: Values) -> StepSeconds:
    """How long a step takes."""
    shape, device, tp = engine.shape, engine.device, engine.tp
    tokens = batch.sequences + batch.prompt_tokens
    queries = shape.heads * shape.head_dim
    attended = 4 * queries * shape.layers * batch.prompt_tokens * batch.prompt_context
    width = shape.hidden + (shape.intermediate + queries) / tp
    between = own["step"] + own["sequence"] * batch.sequences
    between *= own[engine.software.overhead] if engine.software.overhead else 1.0
    return StepSeconds(
        weights=_weights(engine, batch, own),
        contexts=batch.sequences * batch.context * _token_seconds(engine, own),
        prompts=attended / tp / (engine.precision.kv_flops(device) * own["attention"]),
        all_reduce=2 * shape.layers * all_reduce_seconds(engine, tokens * shape.hidden * ACTIVATION_BYTES, own),
        activations=shape.layers * tokens * width * ACTIVATION_BYTES * own["passes"] / device.memory_bandwidth,
        overhead=shape.layers * own["layer"] + between,
    )


def _token_seconds(engine: Engine, own: Values) -> float:
    """To read one token's keys and values: the fewer heads a device has, the further from its bandwidth."""
    halvings = max(0.0, log2(MANY_HEADS / max(1.0, engine.shape.kv_heads / engine.tp)))
    return engine.token_bytes * (1 + own["heads"] * halvings) / (engine.device.memory_bandwidth * own["kv"])


def all_reduce_seconds(engine: Engine, size_bytes: float, own: Values) -> float:
    """One sum of so many bytes over the devices of a copy: each sends and takes 2 (tp − 1) / tp of them."""
    if engine.tp == 1:
        return 0.0
    sent = size_bytes * 2 * (engine.tp - 1) / engine.tp
    large = size_bytes / (size_bytes + LARGE_BYTES)
    return own["all_reduce"] + own["all_reduce_large"] * large + sent / (engine.device.link_bandwidth * own["link"])


def _weights(engine: Engine, batch: Batch, own: Values) -> float:
    """Whatever is longer of reading and multiplying, with a bend between."""
    part, precision, device = parts(engine.shape), engine.precision, engine.device
    tokens = batch.sequences + batch.prompt_tokens
    size = part.read(tokens) * precision.weight_bytes + part.head * precision.word_bytes
    reading = size / engine.tp / (device.memory_bandwidth * own["memory"])
    speed = precision.flops(device) * own["compute_8" if precision.narrow(device) else "compute_16"]
    products = (part.dense * tokens + _expert_products(engine, tokens) / own["experts"]) / engine.tp
    head = part.head * batch.sequences / engine.tp / (device.bf16_flops * own["compute_16"])
    multiplying = 2 * (products + _idle_products(engine, tokens, own)) / speed + 2 * head
    return float((reading**SHARPNESS + multiplying**SHARPNESS) ** (1 / SHARPNESS))


def _expert_products(engine: Engine, tokens: float) -> float:
    """Of a mixture: each expert that is hit has a product of its own, whose last tile of tokens is half empty."""
    part = parts(engine.shape)
    if not part.experts:
        return 0.0
    hit = part.read(tokens) - part.dense
    rows = tokens * part.share * part.experts / hit
    return hit * (rows + min(rows, EXPERT_TILE_ROWS) / 2)


def _idle_products(engine: Engine, tokens: float, own: Values) -> float:
    """Products that could have been made while multipliers waited for the last tiles of each matrix product.

    An output is cut into tiles, and as many as there are multipliers are worked on at once: of the last round some have
    none. How long that takes depends on the inner dimension alone, so it weighs more the more devices share the rest.
    """
    shape = engine.shape
    inner = 2 * shape.hidden + (shape.heads * shape.head_dim + shape.intermediate) / engine.tp
    return shape.layers * inner * own["tile"] * min(1.0, tokens / TILE_ROWS)
