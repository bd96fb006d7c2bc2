"""Cells of the rollout: how one copy of an engine stands a number of responses, split over its devices or not."""

from earl.parallel.hardware import GIB
from earl.parallel.layout import Layout
from earl.parallel.throughput.rollout import Rollout, Workload, rollout
from earl.parallel.throughput.step import Engine, fitted
from earl.planner.cell import PlanCell
from earl.planner.question import Question


def rollout_cells(asked: Question, gpus: int) -> list[PlanCell]:
    """Every split at every context and load.

    Args:
        gpus: that sample.
    """
    return [
        _cell(asked, context, responses, Layout(gpus // tp, tp))
        for context in asked.contexts
        for responses in asked.responses
        for tp in asked.tps
        if tp <= gpus
    ]


def _cell(asked: Question, context: int, responses: int, layout: Layout) -> PlanCell:
    engine = asked.engine(layout.tp)
    prompt, reply = asked.tokens.of(context)
    found = rollout(engine, Workload(prompt, reply, responses))
    held = found.weight_bytes + found.reserve_bytes
    room = max(0, held + engine.room_bytes(fitted().values))
    return PlanCell(
        stage="rollout",
        context=context,
        responses=responses,
        dp=layout.dp,
        tp=layout.tp,
        micro_batch_tokens=None,
        recompute=False,
        offload=False,
        feasible=found.fits,
        verdict=_verdict(found, engine, context, responses, room),
        memory_bytes=found.memory_bytes if found.fits else int(held + context * engine.token_bytes),
        room_bytes=room,
        kv_tokens_capacity=found.kv_tokens_capacity,
        waves=found.waves or None,
        throughput=found.tokens_per_gpu_s,
    )


def _verdict(found: Rollout, engine: Engine, context: int, responses: int, room: int) -> str:
    """Why it fits, and what that costs.

    Example:
        "422,342 tokens of context fit: 12 of 128 responses at once, in 11 waves; all at once would be 9.9 times as many
        tokens and need 370.3 GiB on each GPU: an engine that cannot let responses wait runs out of memory"
    """
    held = found.weight_bytes + found.reserve_bytes
    if not found.kv_tokens_capacity:
        alone = f"weights and workspace alone take {held / GIB:.1f} GiB of each GPU"
        return f"out of memory: {alone}, the engine may take {room / GIB:.1f}"
    if not found.fits:
        return f"out of memory: {found.why}"
    if found.waves == 1:
        return found.why
    asked = responses * context
    need = (held + asked * engine.token_bytes) / GIB
    times = asked / found.kv_tokens_capacity
    return (
        f"{found.why}, in {found.waves} waves; all at once would be {times:.1f} times as many tokens and need "
        f"{need:.1f} GiB on each GPU: an engine that cannot let responses wait runs out of memory"
    )
