"""How long a step of a serving engine takes: it adds a token to every sequence and reads some of the next prompts."""

from dataclasses import astuple, dataclass, replace
from math import log2

from earl.parallel.throughput.coefficients import Values
from earl.parallel.throughput.parts import parts
from earl.parallel.throughput.room import Engine

SHARPNESS = 3.0
"""How sharply the roofline bends where reading weights and multiplying them take equally long: 1 adds the two, infinity
takes the larger. Per-layer times of matrix products near the bend lie 1.2 times above either (2^(1/3.5))."""
ACTIVATION_BYTES = 2


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
        return float(sum(astuple(self)))


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
    both = zip(astuple(without), astuple(reading), strict=True)
    return StepSeconds(*(none * (1 - share) + some * share for none, some in both))


def step_seconds(engine: Engine, batch: Batch, own: Values) -> StepSeconds:
    """How long a step takes."""
    shape, device, tp = engine.shape, engine.device, engine.tp
    tokens = batch.sequences + batch.prompt_tokens
    queries = shape.heads * shape.head_dim
    attended = 4 * queries * shape.layers * batch.prompt_tokens * batch.prompt_context
    width = shape.hidden + (shape.intermediate + queries) / tp
    between = own["step"] + own["sequence"] * batch.sequences
    return StepSeconds(
        weights=_weights(engine, batch, own),
        contexts=batch.sequences * batch.context * engine.token_bytes / (device.memory_bandwidth * own["kv"]),
        prompts=attended / tp / (device.bf16_flops * own["attention"]),
        all_reduce=2 * shape.layers * all_reduce_seconds(engine, tokens * shape.hidden * ACTIVATION_BYTES, own),
        activations=shape.layers * tokens * width * ACTIVATION_BYTES * own["passes"] / device.memory_bandwidth,
        overhead=shape.layers * own["layer"] + between * own[engine.software.overhead],
    )


def all_reduce_seconds(engine: Engine, size_bytes: float, own: Values) -> float:
    """One sum of so many bytes over the devices of a copy: each sends and takes 2 (tp − 1) / tp of them."""
    if engine.tp == 1:
        return 0.0
    sent = size_bytes * 2 * (engine.tp - 1) / engine.tp
    return own["all_reduce"] * float(log2(engine.tp) ** 0.5) + sent / (engine.device.link_bandwidth * own["link"])


def _weights(engine: Engine, batch: Batch, own: Values) -> float:
    """Whatever is longer of reading and multiplying, with a bend between."""
    part, precision, device = parts(engine.shape), engine.precision, engine.device
    tokens = batch.sequences + batch.prompt_tokens
    size = part.read(tokens) * precision.weight_bytes + part.head * precision.word_bytes
    reading = size / engine.tp / (device.memory_bandwidth * own["memory"])
    narrow = precision.bits_multiplied(device) < 16
    speed = precision.flops(device) * own["compute_8" if narrow else "compute_16"]
    products = part.dense + part.experts * part.share / own["experts"]
    head = 2 * part.head * batch.sequences / (device.bf16_flops * own["compute_16"])
    multiplying = (2 * products * tokens / speed + head) / engine.tp
    return float((reading**SHARPNESS + multiplying**SHARPNESS) ** (1 / SHARPNESS))
