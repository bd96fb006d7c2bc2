"""How many tokens of context one copy of a serving engine holds: what weights and workspace leave of each device."""

from dataclasses import dataclass, field, replace
from math import ceil

from earl.parallel.hardware import GIB, Device
from earl.parallel.memory import ModelShape
from earl.parallel.throughput.coefficients import Values
from earl.parallel.throughput.parts import weight_bytes
from earl.parallel.throughput.precision import Precision
from earl.parallel.throughput.software import VLLM, Software

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
