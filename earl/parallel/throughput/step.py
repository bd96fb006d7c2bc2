"""The serving engine model: coefficients, precisions, parameters, memory of an engine, and the time of a step.

A step adds a token to every sequence and reads some tokens of the next prompts.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from earl.errors import unknown
from earl.parallel.hardware import GIB, Device
from earl.parallel.memory import ModelShape

# Coefficients: efficiencies and overheads that rooflines leave open, all positive. benchmarks/priors.toml says what
# each means; `earl bench calibration --write` stores them. An engine's own differ from the average by a deviation of
# its version, one of its device and one of its precision; those that no table has are zero, with a variance.

FILE = "coefficients.toml"
Values = Mapping[str, float]
Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The coefficients of one engine, with their uncertainty."""

    values: Values
    covariance: Matrix  # of the logarithms, in the order of `values`. [C, C]
    spread: float
    """Standard deviation of log(measured / predicted) that remains when all coefficients are known."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Coefficients of an average engine, and how versions, devices and precisions deviate from it."""

    values: Values
    deviations: Values
    """Logarithms of factors on coefficients, such as device/H100/scale."""
    covariance: Matrix  # of the logarithms of `values`, then of `deviations`. [N, N]
    variances: Values  # of the deviations of what was not fitted to, such as device/scale
    spread: float

    def chosen(self, levels: Mapping[str, str | None]) -> Matrix:
        """Which logarithms add up to each coefficient of an engine with these `levels`. [C, N], of 0 and 1"""
        own = [{name, *(f"{factor}/{level}/{name}" for factor, level in levels.items())} for name in self.values]
        return np.array([[key in keys for key in (*self.values, *self.deviations)] for keys in own], np.float64)

    def new(self, levels: Mapping[str, str | None]) -> tuple[str, ...]:
        """The factors whose levels were not fitted to."""
        known = {key.rpartition("/")[0] for key in self.deviations}
        return tuple(factor for factor, level in levels.items() if f"{factor}/{level}" not in known)

    def of(self, levels: Mapping[str, str | None], varying: Iterable[str]) -> Coefficients:
        """The coefficients of an engine; `varying` names what may differ from all that was fitted to."""
        chosen = self.chosen(levels)
        logs = chosen @ [*np.log([*self.values.values()]), *self.deviations.values()]
        other = [sum(self.variances.get(f"{factor}/{name}", 0.0) for factor in varying) for name in self.values]
        values = dict(zip(self.values, map(float, np.exp(logs)), strict=True))
        return Coefficients(values, chosen @ self.covariance @ chosen.T + np.diag(other), self.spread)


@cache
def calibration() -> Calibration:
    stored = tomllib.loads(files("earl.parallel.throughput").joinpath(FILE).read_text(encoding="utf-8"))
    return Calibration(**{**stored, "covariance": np.array(stored["covariance"])})


FACTORS = ("version", "device", "precision")


def fitted(engine: "Engine | None" = None) -> Coefficients:
    """The coefficients of an engine: measured ones if it has them, or those of the tables. None: any engine."""
    if engine is None:
        return _fitted((), FACTORS)
    return engine.measured or _fitted(tuple(engine.levels.items()), uncalibrated(engine))


@cache
def _fitted(levels: tuple[tuple[str, str | None], ...], varying: tuple[str, ...]) -> Coefficients:
    return calibration().of(dict(levels), varying)


def uncalibrated(engine: "Engine") -> tuple[str, ...]:
    """The factors of an engine that are in no table, for which its intervals are wider."""
    new = calibration().new(engine.levels)
    return ("version", *new) if engine.software.newer and "version" not in new else new


BITS: dict[str, float] = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "fp4": 4.5}
"""Of a number; fp4 includes an 8-bit scale per 16 numbers."""
FULL_BITS = 16  # of the numbers that a device's listed speed refers to


@dataclass(frozen=True, slots=True)
class Precision:
    """Number formats of an engine; Precision("fp8") has 8-bit weights, and 16-bit keys and values, as in vLLM."""

    weights: str = "bf16"
    kv: str = "auto"  # "auto": as the weights, but of at least 16 bits

    def __post_init__(self) -> None:
        if self.weights not in BITS:
            raise unknown("kind of number", self.weights, BITS)
        if self.kv not in (*BITS, "auto"):
            raise unknown("kind of number", self.kv, (*BITS, "auto"))

    @property
    def weight_bytes(self) -> float:
        """The bytes of one number of a linear layer."""
        return BITS[self.weights] / 8

    @property
    def word_bytes(self) -> float:
        """The bytes of one number of embeddings and the output layer, which are not quantized."""
        return max(self.weight_bytes, FULL_BITS / 8)

    @property
    def kv_bytes(self) -> float:
        """The bytes of one number of keys or values."""
        return self.word_bytes if self.kv == "auto" else BITS[self.kv] / 8

    def flops(self, device: Device) -> float:
        """Operations per second in products with weights."""
        return _flops(BITS[self.weights], device)

    def kv_flops(self, device: Device) -> float:
        """Operations per second in attention."""
        return _flops(8 * self.kv_bytes, device)

    def narrow(self, device: Device) -> bool:
        """Whether weights are multiplied with fewer than 16 bits."""
        return self.flops(device) > device.bf16_flops


def _flops(bits: float, device: Device) -> float:
    """Half as many bits, twice as fast; formats without native arithmetic are widened first."""
    return device.bf16_flops * FULL_BITS / max(int(bits), device.fewest_bits)


@dataclass(frozen=True, slots=True)
class Parts:
    """Counts of parameters by their use in a step: looked up, multiplied once per token, or per sampled token."""

    words: int  # embeddings: a token looks up one row
    head: int  # output layer: multiplied for sampled tokens
    dense: int  # multiplied for every token
    experts: int  # feed-forward networks of a mixture, all of them
    share: float  # of the experts that one token passes

    def read(self, tokens: float) -> float:
        """Parameters of linear layers that a batch of `tokens` reads; experts without a token are not read.
        Each token selects its share of experts at random, so all miss one with probability (1 − share)^tokens."""
        hit = 1.0 if self.share == 1.0 else 1.0 - (1.0 - self.share) ** tokens
        return self.dense + self.experts * hit


@cache
def parts(shape: ModelShape) -> Parts:
    words = shape.vocab * shape.hidden
    experts = shape.layers * shape.experts * shape.expert_parameters
    dense = shape.parameters - words * (1 if shape.tied else 2) - experts
    return Parts(0 if shape.tied else words, words, dense, experts, shape.experts_per_token / shape.experts)


def weight_bytes(shape: ModelShape, precision: Precision) -> float:
    """The bytes of a whole copy in memory."""
    part = parts(shape)
    return (part.words + part.head) * precision.word_bytes + (part.dense + part.experts) * precision.weight_bytes


@dataclass(frozen=True, slots=True)
class Software:
    """A serving engine, by its defaults."""

    name: str
    version: str | None  # nearest one of the tables; None: unlike all of them
    newer: bool  # whether another version than that one is meant
    utilization: float  # share of memory that it takes: of all, or of what weights leave free
    of_free: bool
    max_sequences: int
    step_tokens: int  # at most, prompts and replies together


VLLM = Software("vLLM", None, True, 0.9, False, 1024, 8192)
VLLM_0_5 = Software("vLLM 0.5", "vllm-0.5.4", False, 0.9, False, 256, 4096)
TENSORRT_LLM = Software("TensorRT-LLM", "trtllm-0.17", True, 0.95, True, 2048, 8192)
TRITON = Software("TensorRT-LLM behind Triton", "trtllm-0.14-online", True, 0.9, True, 512, 8192)


CONTEXT_BYTES = int(0.6 * GIB)  # kept by driver and kernel libraries on a device
COLLECTIVE_BYTES = int(0.6 * GIB)  # of collective buffers, if a copy has several devices
WORKSPACE_TOKENS = 8192
"""Most tokens whose activations an engine reserves memory for: those of its largest step."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One copy of a serving engine over `tp` devices of one host, or of each of `pp` hosts."""

    shape: ModelShape
    device: Device
    tp: int
    precision: Precision = field(default_factory=Precision)
    software: Software = VLLM
    utilization: float | None = None  # share of memory that it takes; None: the software's default
    measured: Coefficients | None = field(default=None, compare=False)
    """Recalibrated ones of this installation; None: those of the tables."""
    pp: int = 1  # hosts, each with a stage of the layers

    @property
    def devices(self) -> int:
        return self.tp * self.pp

    @property
    def stage(self) -> int:
        """Layers of the largest stage."""
        return ceil(self.shape.layers / self.pp)

    @property
    def levels(self) -> dict[str, str | None]:
        """The levels of the factors by which its coefficients deviate."""
        bits = {"bf16": "16-bit", "fp16": "16-bit", "fp8": "8-bit"}
        kinds = (self.software.version, self.device.kind, bits.get(self.precision.weights))
        return dict(zip(FACTORS, kinds, strict=True))

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights on one device."""
        return ceil(weight_bytes(self.shape, self.precision) / self.tp * self.stage / self.shape.layers)

    @property
    def token_bytes(self) -> float:
        """Keys and values of one token on one device. Heads are split; fewer heads than devices are copied."""
        heads = ceil(self.shape.kv_heads / self.tp)
        return 2 * self.stage * heads * self.shape.head_dim * self.precision.kv_bytes

    def reserve_bytes(self, coefficients: Values) -> int:
        """Memory of one device beside weights, keys and values: driver, activations of the largest step, logits."""
        tokens = min(self.software.step_tokens, WORKSPACE_TOKENS)
        narrow = min(2.0, self.precision.weight_bytes)
        width = self.shape.hidden * (4 + 2 * narrow) + self.shape.intermediate / self.tp * (4 + narrow)
        logits = self.software.max_sequences * self.shape.vocab * LOGIT_BYTES
        fixed = CONTEXT_BYTES + (COLLECTIVE_BYTES if self.devices > 1 else 0)
        return ceil(fixed + coefficients["reserve"] * tokens * width + coefficients["logits"] * logits)

    def room_bytes(self, coefficients: Values) -> int:
        """Memory for keys and values on one device; negative: weights and workspace do not fit."""
        share = self.software.utilization if self.utilization is None else self.utilization
        own = self.weight_bytes + self.reserve_bytes(coefficients)
        if self.software.of_free:
            return int(share * (self.device.memory_bytes - own))
        return int(share * self.device.memory_bytes) - own

    def kv_tokens(self, coefficients: Values) -> int:
        """Tokens of context in all devices together."""
        return max(0, int(self.room_bytes(coefficients) / self.token_bytes))


SHARPNESS = 3.0
"""Sharpness of the roofline's bend where reading weights and multiplying them take equally long: 1 adds the two,
infinity takes the larger. Measured per-layer times near the bend are 1.2 times above either (2^(1/3.5))."""
ACTIVATION_BYTES = 2
NARROW_ACTIVATION_BYTES = 1.5  # on average, if products take 8 bits and give 16
LOGIT_BYTES = 4
EXPERT_TILE_ROWS = 64  # tokens of a tile in the products of experts
MANY_HEADS = 8  # key-value heads on a device that are read at full speed
LARGE_BYTES = 1 << 20  # of an all-reduce between small and large
TILE_ROWS = 256  # tokens of a tile; smaller with fewer tokens


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The work of a step."""

    sequences: float  # that are given one token each
    context: float  # tokens of a sequence, on average
    prompt_tokens: float = 0.0  # read in the same step
    prompt_context: float = 0.0  # tokens that each of these attends to, on average


def average_step(engine: Engine, batch: StepLoad, prompt: float, own: Values) -> float:
    """Mean seconds of steps that read `batch.prompt_tokens` on average: whole prompts in some, and none in the others.
    27 sequences, of each 2,048 tokens read and 128 written: 432 tokens of prompts a step, in 0.21 of the steps."""
    whole = min(max(prompt, batch.prompt_tokens), engine.software.step_tokens - batch.sequences)
    if whole <= batch.prompt_tokens:
        return step_seconds(engine, batch, own)
    share = batch.prompt_tokens / whole
    without = step_seconds(engine, replace(batch, prompt_tokens=0.0), own)
    reading = step_seconds(engine, replace(batch, prompt_tokens=whole), own)
    return without * (1 - share) + reading * share


def step_seconds(engine: Engine, batch: StepLoad, own: Values) -> float:
    shape, device, tp = engine.shape, engine.device, engine.tp
    tokens = batch.sequences + batch.prompt_tokens
    queries = shape.heads * shape.head_dim
    contexts = batch.sequences * batch.context * token_seconds(engine, own)
    attended = 4 * queries * shape.layers * batch.prompt_tokens * batch.prompt_context
    prompts = attended / tp / (engine.precision.kv_flops(device) * own["attention"])
    all_reduce = 2 * shape.layers * all_reduce_seconds(engine, tokens * shape.hidden * ACTIVATION_BYTES, own)
    width = shape.hidden + (shape.intermediate + queries) / tp
    passed = tokens * width * (NARROW_ACTIVATION_BYTES if engine.precision.narrow(device) else ACTIVATION_BYTES)
    activations = shape.layers * passed * own["passes"] / device.memory_bandwidth  # norms, gates, residual streams
    between = own["host"] * (own["step"] + own["sequence"] * batch.sequences)
    overhead = shape.layers * own["layer"] + between  # between kernels and between steps
    weights = weights_seconds(engine, batch, own)
    return own["scale"] * (weights + contexts + prompts + all_reduce + activations + overhead)


def token_seconds(engine: Engine, own: Values) -> float:
    """Time to read one token's keys and values; with few heads a device is further from its bandwidth."""
    halvings = max(0.0, log2(MANY_HEADS / max(1.0, engine.shape.kv_heads / engine.tp)))
    return engine.token_bytes * (1 + own["heads"] * halvings) / (engine.device.memory_bandwidth * own["kv"])


def all_reduce_seconds(engine: Engine, size_bytes: float, own: Values) -> float:
    """One all-reduce over the devices of a copy: each sends and receives 2 (tp − 1) / tp of the bytes."""
    if engine.tp == 1:
        return 0.0
    sent = size_bytes * 2 * (engine.tp - 1) / engine.tp
    large = size_bytes / (size_bytes + LARGE_BYTES)
    return own["all_reduce"] + own["all_reduce_large"] * large + sent / (engine.device.link_bandwidth * own["link"])


def weights_seconds(engine: Engine, batch: StepLoad, own: Values) -> float:
    """The longer of reading and multiplying them, with a smooth bend."""
    part, precision, device = parts(engine.shape), engine.precision, engine.device
    tokens = batch.sequences + batch.prompt_tokens
    size = part.read(tokens) * precision.weight_bytes + part.head * precision.word_bytes
    reading = size / engine.tp / (device.memory_bandwidth * own["memory"])
    speed = precision.flops(device) * own["compute"] * (own["narrow"] if precision.narrow(device) else 1.0)
    products = (part.dense * tokens + _expert_products(engine, tokens) / own["experts"]) / engine.tp
    head = part.head * batch.sequences / engine.tp / (device.bf16_flops * own["compute"])
    multiplying = 2 * (products + _idle_products(engine, tokens, own)) / speed + 2 * head
    return float((reading**SHARPNESS + multiplying**SHARPNESS) ** (1 / SHARPNESS))


def _expert_products(engine: Engine, tokens: float) -> float:
    """The products of a mixture: each selected expert has a product of its own, whose last tile is half empty on
    average."""
    part = parts(engine.shape)
    if not part.experts:
        return 0.0
    hit = part.read(tokens) - part.dense
    rows = tokens * part.share * part.experts / hit
    return hit * (rows + min(rows, EXPERT_TILE_ROWS) / 2)


def _idle_products(engine: Engine, tokens: float, own: Values) -> float:
    """Products that could be made while multipliers idle in the last round of tiles of each matrix product.
    A round's duration depends only on the inner dimension, so it weighs more as more devices share the rest."""
    shape = engine.shape
    inner = 2 * shape.hidden + (shape.heads * shape.head_dim + shape.intermediate) / engine.tp
    return shape.layers * inner * own["tile"] * min(1.0, tokens / TILE_ROWS)
