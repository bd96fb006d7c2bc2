"""A plan in words, in reading order: the same in a terminal and on a page."""

from dataclasses import dataclass
from itertools import pairwise

from earl.planner.grids import Grid, dispatch_grid, map_grid, rollout_grid, step_grid, training_grid
from earl.planner.plan import Plan, Switch


def head(plan: Plan) -> list[str]:
    """What was asked for, the assumptions, and the meaning of the marks."""
    asked, config = plan.asked, plan.asked.config
    cluster = asked.cluster
    hosts = f"{cluster.hosts:,} host{'s' * (cluster.hosts != 1)} of {cluster.gpus_per_host}"
    kv = "" if asked.precision.kv == "auto" else f", keys and values in {asked.precision.kv}"
    where = "in turns" if plan.sampling == plan.learning == cluster.gpus else f"{plan.learning} of them learn"
    prompt = asked.split(asked.contexts[-1])[0]
    read = f"{prompt:,} tokens of the longest read, the rest written" if prompt else "all of it written, none read"
    return [
        f"{asked.model} on {hosts} {asked.device.kind} = {cluster.gpus:,} GPUs, {where}",
        "all is predicted: rollout by a model fitted to published tables, the learner by the same one unfitted",
        f"rollout: {asked.software.name}, weights in {asked.precision.weights}{kv}; {read}",
        f"learner: bf16, FSDP2 x TP; {asked.network_gbps:g} Gbit/s between hosts",
        f"{config.rollout.episodes:,} episodes a step, log-normal around half of the context, cut at the context",
        "context: the longest episode, for which there must be room; 80 %: holds the true value in four of five cases",
        "*: the choice; ×2: in two waves, as not all fit at once; OOM: out of memory; fit: tokens that one copy holds",
    ]


def switch_lines(plan: Plan) -> list[str]:
    """Where the choice changes as contexts grow, a line for each stage and load."""
    groups = dict.fromkeys((run.stage, run.responses) for run in plan.switches)
    return [_line([run for run in plan.switches if (run.stage, run.responses) == key]) for key in groups]


def without_room(plan: Plan) -> list[str]:
    """Splits that fit at no context, with the reason."""
    found = {cell.tp: cell for cell in reversed(plan.cells) if cell.stage == "rollout" and cell.tp not in plan.fitting}
    return [f"rollout, TP {tp} at every context: {found[tp].verdict}" for tp in sorted(found)]


def uncertain(plan: Plan) -> str:
    """How many choices lie within the model's error."""
    picks = [choice for choice in plan.choices if choice.tp is not None]
    count = sum(not choice.certain for choice in picks)
    return f"{count} of {len(picks)} choices lie within 80 % of the next best: measure these before relying on them"


def _line(runs: list[Switch]) -> str:
    stage, load = runs[0].stage, runs[0].responses
    if len(runs) == 1:
        parts = [f"{_split(runs[0])} at every context"]
    else:
        first, *others = runs
        parts = [
            f"{_split(first)} up to {first.last:,} tokens",
            *(f"{_split(run)} from {run.first:,}" for run in others),
        ]
    return f"{stage}{f', {load} responses' if load else ''}: {', '.join(parts)}"


def _split(run: Switch) -> str:
    return f"TP {run.tp}" if run.tp else "no layout fits"


@dataclass(frozen=True, slots=True)
class Sheet:
    head: tuple[str, ...]
    grids: tuple[Grid, ...]
    choices: tuple[str, ...]  # where the layout changes, by stage and load
    step: tuple[Grid, ...]  # the recipe's step, and its dispatch


def sheet(plan: Plan, price: float | None) -> Sheet:
    """The sheet of a plan. `price` is per GPU-hour; None: without cost."""
    maps = [map_grid(plan, before, after) for before, after in pairwise(plan.fitting)]
    moved = any(each.dispatch for each in plan.steps)
    dispatched = [dispatch_grid(plan.steps, plan.asked.network_gbps)] if moved else []
    return Sheet(
        head=tuple(head(plan)),
        grids=(rollout_grid(plan), *maps, training_grid(plan)),
        choices=(*switch_lines(plan), *without_room(plan), uncertain(plan)),
        step=(step_grid(plan.steps, price), *dispatched),
    )
