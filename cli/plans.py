"""What a run will do, in a line or two before it starts, or as a whole with --dry-run."""

from dataclasses import asdict
from typing import Any

from earl.cli.text import one_line
from earl.preflight import Plan
from earl.preflight.machine import size


def in_lines(plan: Plan) -> list[str]:
    """Batch arithmetic, steps, model, processes, opponents.

    Example:
        24 prompts x 16 = 384 episodes per step, 40 steps of imitation, then 300 of grpo
    """
    warm = f"{_steps(plan.warm_start_steps)} of imitation, then " if plan.warm_start_steps else ""
    batch = f"{plan.prompts} prompts x {plan.group_size} = {plan.episodes} episodes per step"
    opponents = ", ".join(f"{name} {share:.0%}" for name, share in plan.opponents.items()) or "none"
    model = "a new model" if plan.model == "new" else plan.model
    lines = [
        f"{plan.env}: {batch}; {warm}{_steps(plan.steps)} of {plan.algorithm}",
        f"{model} of {plan.parameters:,} parameters, {plan.processes} processes; opponents: {opponents}",
    ]
    return [one_line(line) for line in lines]


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def more_lines(plan: Plan) -> list[str]:
    """What --dry-run adds."""
    return [
        f"context: first prompt {plan.first_prompt_tokens} of at most {plan.context_limit} tokens",
        f"disk: {size(plan.checkpoint_bytes)} for each checkpoint",
    ]


def as_object(plan: Plan) -> dict[str, Any]:
    """The plan as JSON."""
    return asdict(plan)
