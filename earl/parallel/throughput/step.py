"""How long a step of a serving engine takes: it adds a token to every sequence and reads some of the next prompts."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from earl.errors import unknown
from earl.parallel.hardware import GIB, Device
from earl.parallel.memory import ModelShape

# What rooflines leave open: a few efficiencies and overheads, each with what is believed before it is fitted.
#
# All are positive, and believed and fitted as logarithms. `earl bench calibration --write` stores the fitted ones with
# their covariance in coefficients.toml.

FILE = "coefficients.toml"
Values = Mapping[str, float]
"""A value of every coefficient by its name."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of a coefficient before it is fitted."""

    value: float
    spread: float
    """Standard deviation of its logarithm."""
    meaning: str


PRIORS: dict[str, Prior] = {
    "memory": Prior(0.85, 0.10, "share of the memory bandwidth at which weights are read"),
    "kv": Prior(0.80, 0.15, "share of the memory bandwidth at which keys and values are read"),
    "heads": Prior(0.10, 0.60, "more time for that at every halving of a device's heads below 8, as a share"),
    "compute_16": Prior(0.75, 0.10, "share of the peak at which 16-bit weights are multiplied"),
    "compute_8": Prior(0.60, 0.20, "share of the peak at which narrower weights are multiplied"),
    "tile": Prior(4e5, 0.25, "numbers of an output that idle multipliers could have made, in each matrix product"),
    "experts": Prior(0.70, 0.30, "the same share for experts of a mixture, relative to dense layers"),
    "attention": Prior(0.50, 0.25, "share of the peak that attention over prompts reaches"),
    "link": Prior(0.70, 0.15, "share of the link at which large all-reduces run"),
    "all_reduce": Prior(10e-6, 0.30, "seconds that every all-reduce takes at least"),
    "all_reduce_large": Prior(25e-6, 0.30, "seconds that a large one takes besides, to be cut and pipelined"),
    "passes": Prior(12.0, 0.40, "times that a layer's activations travel to memory and back"),
    "layer": Prior(25e-6, 0.30, "seconds between the kernels of a layer"),
    "step": Prior(1.0e-3, 0.60, "seconds between two steps"),
    "sequence": Prior(4e-6, 0.80, "seconds a step for every sequence: scheduling and sampling"),
    "reserve": Prior(1.0, 0.25, "workspace that an engine keeps, relative to what shapes suggest"),
    "chat_longest": Prior(4.0, 0.30, "longest reply of the chats that were measured with, relative to their mean"),
    "triton_overhead": Prior(1.5, 0.50, "time between steps of TensorRT-LLM 0.14 behind Triton, relative to offline"),
    "vllm_0_5_overhead": Prior(5.0, 0.50, "time between steps of vLLM 0.5, relative to TensorRT-LLM offline"),
    "vllm_overhead": Prior(2.0, 0.40, "time between steps of today's vLLM, relative: nothing in the tables tells"),
}


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Fitted values and how sure they are."""

    values: Values
    covariance: NDArray[np.float64]
    """Of the logarithms, in the order of `values`. [C, C]"""
    spread: float
    """Standard deviation of the logarithm of what was measured about what is predicted, where it was not fitted to."""


def prior_values() -> Values:
    """Every coefficient as it is believed before it is fitted."""
    return {name: prior.value for name, prior in PRIORS.items()}


@cache
def fitted() -> Coefficients:
    """The stored coefficients."""
    stored = tomllib.loads(files("earl.parallel.throughput").joinpath(FILE).read_text(encoding="utf-8"))
    return Coefficients(stored["values"], np.array(stored["covariance"]), stored["spread"])


# How many bits a number has in weights and in keys and values, and how fast a device multiplies such weights.

BITS: dict[str, float] = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "fp4": 4.5}
"""Of a number; a scale of eight bits for 16 numbers of four is counted with them."""
FULL_BITS = 16
"""Of a number whose multiplications a device's table tells."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Kinds of numbers that an engine keeps.

    Example:
        Precision("fp8")   # weights in 8 bits; keys and values in 16, as vLLM keeps them unless told otherwise
    """

    weights: str = "bf16"
    kv: str = "auto"
    """"auto": as the weights, but of at least 16 bits."""

    def __post_init__(self) -> None:
        if self.weights not in BITS:
            raise unknown("kind of number", self.weights, BITS)
        if self.kv not in (*BITS, "auto"):
            raise unknown("kind of number", self.kv, (*BITS, "auto"))

    @property
    def weight_bytes(self) -> float:
        """Of one number of a linear layer."""
        return BITS[self.weights] / 8

    @property
    def word_bytes(self) -> float:
        """Of one number of embeddings and the output layer, which are not quantized."""
        return max(self.weight_bytes, FULL_BITS / 8)

    @property
    def kv_bytes(self) -> float:
        """Of one number of keys or values."""
        return self.word_bytes if self.kv == "auto" else BITS[self.kv] / 8

    def flops(self, device: Device) -> float:
        """Of products with weights, in a second."""
        return _flops(BITS[self.weights], device)

    def kv_flops(self, device: Device) -> float:
        """Of attention, in a second."""
        return _flops(8 * self.kv_bytes, device)

    def narrow(self, device: Device) -> bool:
        """Whether weights are multiplied with fewer than 16 bits."""
        return self.flops(device) > device.bf16_flops


def _flops(bits: float, device: Device) -> float:
    """Half as many bits, twice as fast; what the device has no arithmetic for is widened first."""
    return device.bf16_flops * FULL_BITS / max(int(bits), device.fewest_bits)


# Parameters of a model by what happens to them in a step: read once a batch, multiplied once a token, or looked up.


@dataclass(frozen=True, slots=True)
class Parts:
    """Counts of parameters.

    Example:
        Llama-3.1-8B: words 0.5 billion, head 0.5 billion, dense 7.0 billion, experts 0
    """

    words: int
    """Embeddings: a token looks up one row."""
    head: int
    """The output layer: multiplied for tokens that are sampled."""
    dense: int
    """Multiplied for every token."""
    experts: int
    """Feed-forward networks of a mixture, all of them; a token is multiplied with its share."""
    share: float
    """Of the experts that one token passes."""

    @property
    def per_token(self) -> float:
        """Multiplied for every token, without the output layer."""
        return self.dense + self.experts * self.share

    def read(self, tokens: float) -> float:
        """Parameters of linear layers that a batch of so many tokens reads: experts that nobody hits are not.

        Each token hits its share of the experts at random, so that one is missed by all with (1 − share)^tokens.
        """
        hit = 1.0 if self.share == 1.0 else 1.0 - (1.0 - self.share) ** tokens
        return self.dense + self.experts * hit


@cache
def parts(shape: ModelShape) -> Parts:
    """The parts of a model."""
    words = shape.vocab * shape.hidden
    width = shape.intermediate // shape.experts_per_token
    experts = 3 * shape.layers * shape.hidden * width * shape.experts if shape.experts > 1 else 0
    dense = shape.parameters - words * (1 if shape.tied else 2) - experts
    return Parts(0 if shape.tied else words, words, dense, experts, shape.experts_per_token / shape.experts)


def weight_bytes(shape: ModelShape, precision: Precision) -> float:
    """Of a whole copy in memory."""
    part = parts(shape)
    return (part.words + part.head) * precision.word_bytes + (part.dense + part.experts) * precision.weight_bytes


# What serving engines do alike and apart: how much memory they take, how many sequences they run at once.


@dataclass(frozen=True, slots=True)
class Software:
    """A serving engine, by its defaults.

    Example:
        VLLM   # 0.9 of a device's memory, at most 1,024 sequences, at most 8,192 tokens a step
    """

    name: str
    overhead: str | None
    """The coefficient that its time between steps is multiplied by; None: the others are relative to it."""
    utilization: float
    """Share of memory that it takes: of all, or of what weights leave free."""
    of_free: bool
    max_sequences: int
    step_tokens: int
    """At most, prompts and replies together."""


VLLM = Software("vLLM", "vllm_overhead", 0.9, False, 1024, 8192)
VLLM_0_5 = Software("vLLM 0.5", "vllm_0_5_overhead", 0.9, False, 256, 4096)
TENSORRT_LLM = Software("TensorRT-LLM", None, 0.95, True, 2048, 8192)
TRITON = Software("TensorRT-LLM behind Triton", "triton_overhead", 0.9, True, 512, 8192)


# How many tokens of context one copy of a serving engine holds: what weights and workspace leave of each device.

CONTEXT_BYTES = int(0.6 * GIB)
"""That a driver and libraries of kernels keep of a device."""
COLLECTIVE_BYTES = int(0.6 * GIB)
"""That buffers of collectives take besides where a copy has several devices."""
WORKSPACE_TOKENS = 8192
"""Whose activations an engine makes room for at most: the tokens of its largest step."""
HEAD_SEQUENCES = 256
"""Whose logits an engine makes room for."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One copy of a serving engine over `tp` devices of one host.

    Example:
        Engine(known("Qwen2.5-72B").shape, devices()["H100"], tp=4)
    """

    shape: ModelShape
    device: Device
    tp: int
    precision: Precision = field(default_factory=Precision)
    software: Software = VLLM
    utilization: float | None = None
    """Share of memory that it takes; None: the software's default."""

    @property
    def weight_bytes(self) -> int:
        """Of one device."""
        return ceil(weight_bytes(self.shape, self.precision) / self.tp)

    @property
    def token_bytes(self) -> float:
        """Keys and values of one token, of one device: heads are split; fewer than devices are copied."""
        heads = ceil(self.shape.kv_heads / self.tp)
        return 2 * self.shape.layers * heads * self.shape.head_dim * self.precision.kv_bytes

    def reserve_bytes(self, coefficients: Values) -> int:
        """What one device keeps beside weights, keys and values: driver, activations of the largest step, logits."""
        tokens = min(self.software.step_tokens, WORKSPACE_TOKENS)
        narrow = min(2.0, self.precision.weight_bytes)
        width = self.shape.hidden * (4 + 2 * narrow) + self.shape.intermediate / self.tp * (4 + narrow)
        logits = HEAD_SEQUENCES * self.shape.vocab * 4 * 2
        fixed = CONTEXT_BYTES + (COLLECTIVE_BYTES if self.tp > 1 else 0)
        return ceil(fixed + coefficients["reserve"] * (tokens * width + logits))

    def room_bytes(self, coefficients: Values) -> int:
        """For keys and values, of one device; negative: not even weights and workspace fit."""
        share = self.software.utilization if self.utilization is None else self.utilization
        own = self.weight_bytes + self.reserve_bytes(coefficients)
        if self.software.of_free:
            return int(share * (self.device.memory_bytes - own))
        return int(share * self.device.memory_bytes) - own

    def kv_tokens(self, coefficients: Values) -> int:
        """Tokens of context that all devices together hold."""
        return max(0, int(self.room_bytes(coefficients) / self.token_bytes))

    def over(self, tp: int) -> "Engine":
        """The same over another number of devices."""
        return replace(self, tp=tp)


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
class StepLoad:
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


def average_step(engine: Engine, batch: StepLoad, prompt: float, own: Values) -> StepSeconds:
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


def step_seconds(engine: Engine, batch: StepLoad, own: Values) -> StepSeconds:
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


def _weights(engine: Engine, batch: StepLoad, own: Values) -> float:
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
