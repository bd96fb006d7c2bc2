"""What serving engines do alike and apart: how much memory they take, how many sequences they run at once."""

from dataclasses import dataclass


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
