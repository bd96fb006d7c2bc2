"""Cells made by hand."""

from earl.parallel.layout import Stage
from earl.parallel.memory import Estimate
from earl.planner.stages import PlanCell


def cell(
    context: int,
    tp: int,
    speed: float | None,
    stage: Stage = "rollout",
    responses: int | None = 32,
    spread: float = 0.1,
) -> PlanCell:
    """A cell of 128 GPUs; `speed` None: it does not fit."""
    estimate = Estimate(speed, speed * (1 - spread), speed * (1 + spread)) if speed is not None else None
    return PlanCell(
        stage=stage,
        context=context,
        responses=responses,
        dp=128 // tp,
        tp=tp,
        feasible=estimate is not None,
        verdict=f"TP {tp} at {context}",
        memory_bytes=(100 << 30) // tp,
        room_bytes=20 << 30,
        kv_tokens_capacity=400_000,
        waves=1,
        throughput=estimate,
    )
