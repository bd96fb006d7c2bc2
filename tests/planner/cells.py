"""Cells made by hand."""

from earl.parallel.cost_model import Need
from earl.parallel.layout import Choice, Layout, Stage
from earl.parallel.memory import Estimate
from earl.planner.plan import PlanCell


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
    words = f"TP {tp} at {context}"
    return PlanCell(
        choice=Choice(stage, Layout(128 // tp, tp)),
        context=context,
        need=Need((100 << 30) // tp, 20 << 30, "" if estimate else words),
        verdict=words,
        responses=responses,
        kv_tokens_capacity=400_000,
        waves=1,
        throughput=estimate,
    )
