"""How many bits a number has in weights and in keys and values, and how fast a device multiplies such weights."""

from dataclasses import dataclass

from earl.errors import unknown
from earl.parallel.hardware import Device

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
