"""A cell of a plan: a layout of a stage at a context, whether it fits, its memory and its speed."""

from dataclasses import asdict, dataclass
from typing import Any

from earl.parallel.hardware import GIB
from earl.parallel.layout import Stage
from earl.parallel.memory import Estimate


@dataclass(frozen=True, slots=True)
class PlanCell:
    stage: Stage
    context: int  # of the longest episode, which has to fit
    dp: int  # copies of the engine, or data-parallel size of the learner
    tp: int
    feasible: bool
    verdict: str  # why it fits or does not, in words
    memory_bytes: int  # needed on one GPU
    room_bytes: int  # available to the stage on one GPU
    throughput: Estimate | None  # tokens per GPU and second; None: it does not fit
    responses: int | None = None
    """Given to one copy of the engine at once; None: the stage does not sample."""
    micro_batch_tokens: int | None = None  # per pass of the learner; None: the stage samples
    recompute: bool = False
    offload: bool = False
    kv_tokens_capacity: int | None = None
    """Tokens of keys and values that one copy of the engine holds; None: the stage keeps none."""
    waves: int | None = None
    """How often the engine fills its cache to serve all responses; None: it cannot, or keeps none."""

    @property
    def oversubscription(self) -> float | None:
        """Tokens of all responses at full length per token that fits; None if none are kept or none fits."""
        if self.responses is None or not self.kv_tokens_capacity:
            return None
        return self.responses * self.context / self.kv_tokens_capacity

    @property
    def as_object(self) -> dict[str, Any]:
        told = asdict(self)
        needed, room, fast = told.pop("memory_bytes"), told.pop("room_bytes"), told.pop("throughput") or {}
        speed = {end: fast.get(name) for end, name in (("", "value"), ("_low", "low"), ("_high", "high"))}
        return {
            **told,
            "oversubscription": _rounded(self.oversubscription),
            **{f"tokens_per_gpu_s{end}": _rounded(value) for end, value in speed.items()},
            "origin": "predicted",
            "memory_gib_per_gpu": _rounded(needed / GIB),
            "room_gib_per_gpu": _rounded(room / GIB),
        }


def _rounded(value: float | None) -> float | None:
    """Five digits: a plan is not more precise."""
    return None if value is None else float(f"{value:.5g}")
