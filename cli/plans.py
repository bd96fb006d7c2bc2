"""What a run will do, in a line or two before it starts, or as a whole with --dry-run."""

from dataclasses import asdict
from typing import Any

from earl.cli import places
from earl.cli.text import one_line
from earl.config import RunConfig
from earl.preflight import Plan
from earl.preflight.machine import size


def in_lines(plan: Plan) -> list[str]:
    """Batch arithmetic, steps, model, processes, opponents.

    Example:
        24 prompts x 16 = 384 episodes per step, 40 steps of imitation, then 300 of grpo
    """
    warm = f"{_count(plan.warm_start_steps, 'step')} of imitation, then " if plan.warm_start_steps else ""
    batch = f"{plan.prompts} prompts x {plan.group_size} = {plan.episodes} episodes per step"
    opponents = ", ".join(f"{name} {share:.0%}" for name, share in plan.opponents.items()) or "none"
    placed = plan.placed
    where = _count(plan.processes, "process", "es") if placed.kind == "embedded" else placed.kind
    model = "a new model" if plan.model == "new" else plan.model
    told = plan.placed.kind != "embedded" and plan.processes != RunConfig.model_fields["processes"].default
    unread = f" (which does not read run.processes = {plan.processes})" if told else ""
    lines = [
        f"{plan.env}: {batch}; {warm}{_count(plan.steps, 'step')} of {plan.algorithm}",
        f"{model} of {plan.parameters:,} parameters, {where}{unread}; opponents: {opponents}",
    ]
    return [one_line(line) for line in lines]


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def more_lines(plan: Plan) -> list[str]:
    """What --dry-run adds."""
    ceiling = f", raised with growth up to {plan.context_ceiling}" if plan.context_ceiling else ""
    prompt = f"first prompt {plan.first_prompt_tokens} of" if plan.first_prompt_tokens else "first prompt not checked,"
    return [
        f"context: {prompt} at most {plan.context_limit} tokens{ceiling}",
        f"disk: {size(plan.checkpoint_bytes)} for each checkpoint",
        *places.in_lines(plan.placed, plan.processes),
    ]


def as_object(plan: Plan) -> dict[str, Any]:
    """The plan as JSON."""
    return asdict(plan)
