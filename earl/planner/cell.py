"""A cell of a plan: a layout of a stage at a context, whether it fits, its memory and its speed."""

from dataclasses import dataclass
from typing import Any

from earl.parallel.hardware import GIB
from earl.parallel.layout import Stage
from earl.parallel.memory import Estimate


@dataclass(frozen=True, slots=True)
class PlanCell:
    stage: Stage
    context: int  # of the longest episode, which has to fit
    responses: int | None
    """Given to one copy of the engine at once; None: the stage does not sample."""
    dp: int  # copies of the engine, or data-parallel size of the learner
    tp: int
    micro_batch_tokens: int | None  # per pass of the learner; None: the stage samples
    recompute: bool
    offload: bool
    feasible: bool
    verdict: str  # why it fits or does not, in words
    memory_bytes: int  # needed on one GPU
    room_bytes: int  # available to the stage on one GPU
    kv_tokens_capacity: int | None
    """Tokens of keys and values that one copy of the engine holds; None: the stage keeps none."""
    waves: int | None
    """How often the engine fills its cache to serve all responses; None: it cannot, or keeps none."""
    throughput: Estimate | None  # tokens per GPU and second; None: it does not fit

    @property
    def oversubscription(self) -> float | None:
        """Tokens of all responses at full length per token that fits; None if none are kept or none fits."""
        if self.responses is None or not self.kv_tokens_capacity:
            return None
        return self.responses * self.context / self.kv_tokens_capacity

    @property
    def as_object(self) -> dict[str, Any]:
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
    """Five digits: a plan is not more precise."""
    return None if value is None else float(f"{value:.5g}")
