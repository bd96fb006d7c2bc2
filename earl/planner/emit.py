"""The chosen layouts of a plan as flags of other programs: vLLM's server, verl's overrides, torchtitan's flags."""

import tomllib
from importlib.resources import files
from math import ceil
from typing import Any

from earl.parallel.cost_model import CostModel
from earl.parallel.layout import Layout
from earl.planner.plan import Plan
from earl.planner.stages import PlanCell, PredictedStep

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def emitted(plan: Plan, target: str) -> list[str]:
    """A comment and a line of flags for each context."""
    flags = tomllib.loads(files("earl.planner").joinpath("emit.toml").read_text(encoding="utf-8"))[target]
    cells = {(cell.context, cell.dp, cell.tp): cell for cell in plan.cells if cell.stage == "update"}
    lines = []
    for step in plan.steps:
        layouts = {part.stage: part.layout for part in step.parts if part.layout}
        if "rollout" in layouts and "update" in layouts:
            own, other = layouts["rollout"], layouts["update"]
            told = f"rollout {own.dp} x TP {own.tp}, update {other.dp} x TP {other.tp}"
            values = _values(plan.asked.costs, step, own, cells[step.context, other.dp, other.tp])
            lines += [f"# context {step.context}: {told}"]
            lines += [" ".join(filter(None, (flag.format(**values) for flag in flags)))]
        else:
            lines += [f"# context {step.context}: {step.verdict}"]
    return lines


def _values(costs: CostModel, step: PredictedStep, rollout: Layout, update: PlanCell) -> dict[str, Any]:
    engine = costs.engine(rollout.tp)
    precision = engine.precision
    prompt, reply = costs.split(step.context)
    megatron = f"actor_rollout_ref.actor.megatron.tensor_model_parallel_size={update.tp}"
    return {
        **{"costs": costs, "step": step, "rollout": rollout, "update": update, "reply": reply},
        "prompt": f"data.max_prompt_length={prompt}" if prompt else "",
        "sequences": ceil(step.episodes / rollout.dp),
        "memory_share": engine.software.utilization if engine.utilization is None else engine.utilization,
        "dtype": DTYPES.get(precision.weights, "auto"),
        "quantization": "--quantization fp8" if precision.weights == "fp8" else "",
        "kv_cache": "--kv-cache-dtype fp8" if precision.kv == "fp8" else "",
        "strategy": ("megatron", "megatron") if update.tp > 1 else ("fsdp2", "fsdp_config"),
        "megatron": megatron if update.tp > 1 else "",
        "rows": max(1, (update.micro_batch_tokens or 0) // step.context),
        "checkpointing": "full" if update.recompute else "none",
    }
