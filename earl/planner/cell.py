"""A cell of a plan: a layout of a stage at a context, whether it fits, what it takes and how fast it is."""

from dataclasses import dataclass
from typing import Any

from earl.parallel.hardware import GIB
from earl.parallel.layout import Stage
from earl.parallel.memory import Estimate


@dataclass(frozen=True, slots=True)
class PlanCell:
    """One layout at one context.

    Example:
        Cell("rollout", 32_768, 128, dp=32, tp=4, …, feasible=True, waves=11, kv_tokens_capacity=402_000, …)
    """

    stage: Stage
    context: int
    """Tokens of the longest episode: that is what has to fit."""
    responses: int | None
    """Given to one copy of the engine at once; None: the stage does not sample."""
    dp: int
    """Copies of the engine; of the learner its data-parallel parts."""
    tp: int
    micro_batch_tokens: int | None
    """Tokens that pass the learner at once; None: the stage samples."""
    recompute: bool
    offload: bool
    feasible: bool
    verdict: str
    """Why it fits or does not, in words."""
    memory_bytes: int
    """That one GPU needs."""
    room_bytes: int
    """That one GPU offers to the stage."""
    kv_tokens_capacity: int | None
    """Tokens whose keys and values one copy of the engine holds; None: the stage keeps none."""
    waves: int | None
    """How often the engine has to fill that room until all responses are there; None: it never can, or keeps none."""
    throughput: Estimate | None
    """Tokens per GPU and second; None: it does not fit."""

    @property
    def oversubscription(self) -> float | None:
        """Tokens of all responses at full length for each token that fits; None where none are kept or none fits."""
        if self.responses is None or not self.kv_tokens_capacity:
            return None
        return self.responses * self.context / self.kv_tokens_capacity

    @property
    def as_object(self) -> dict[str, Any]:
        """For programs."""
        fast = self.throughput
        return {
            "stage": self.stage,
            "context": self.context,
            "responses": self.responses,
            "tp": self.tp,
            "dp": self.dp,
            "micro_batch_tokens": self.micro_batch_tokens,
            "recompute": self.recompute,
            "offload": self.offload,
            "feasible": self.feasible,
            "verdict": self.verdict,
            "waves": self.waves,
            "kv_tokens_capacity": self.kv_tokens_capacity,
            "oversubscription": _rounded(self.oversubscription),
            "tokens_per_gpu_s": _rounded(fast.value) if fast else None,
            "tokens_per_gpu_s_low": _rounded(fast.low) if fast else None,
            "tokens_per_gpu_s_high": _rounded(fast.high) if fast else None,
            "origin": fast.origin if fast else "predicted",
            "memory_gib_per_gpu": _rounded(self.memory_bytes / GIB),
            "room_gib_per_gpu": _rounded(self.room_bytes / GIB),
        }


def _rounded(value: float | None) -> float | None:
    """Five digits: a plan knows no more."""
    return None if value is None else float(f"{value:.5g}")
