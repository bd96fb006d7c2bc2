"""Checks what `earl train` is asked for, a new run or a resumed one, before anything is written, and describes it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from earl import preflight
from earl.cli.options import print_json
from earl.cli.players import need_run, same_env
from earl.cli.recipes import differences, elsewhere, names_address
from earl.cli.text import clean, one_line
from earl.config import Config, RunConfig
from earl.errors import EarlError
from earl.placement.ray.placement_spec import Fragment
from earl.preflight import RunPlan
from earl.preflight.hardware import size
from earl.recipe import build
from earl.runs import checkpoint
from earl.runs.folder import RunFolder, free
from earl.runs.summary import summarize


def in_lines(plan: RunPlan) -> list[str]:
    """The fragments of a placement, and the memory of one device, such as:

    placement: colocated on --gpus 16x8xH100, sampler vllm, bfloat16
      learner  128 x 1 GPU  (dp 128 x tp 1), joined by collectives, in turns on the same devices
    """
    config, placed = plan.config, plan.placed
    kind = config.placement.kind
    where = f", {placed.gpus} x {placed.gpu or 'GPUs of a kind that is not listed'}" if placed.gpus else ""
    unit = "each GPU" if placed.gpus else "each process"
    width = max((len(fragment.name) for fragment in placed.fragments), default=0)
    parts = [_line(plan, fragment, max(width, 8)) for fragment in placed.fragments]
    parts += [f"  {idle} GPUs idle {when}" for when, idle in _idle(plan) if idle > 0]
    return [
        f"placement: {kind} on {placed.where}{where}; sampler {config.sampler.engine}, {config.learner.dtype}",
        *(parts or [f"  {config.run.processes} x learner and sampler, in turns"]),
        f"memory of {unit}, at least" + (f", of {size(placed.device_bytes)}" if placed.device_bytes else ""),
        f"  update   {_sum(placed.update)}",
        f"  rollout  {_sum(placed.rollout)}",
    ]


def _line(plan: RunPlan, fragment: Fragment, width: int) -> str:
    place, layout = plan.config.placement, f"  (tp {fragment.devices})"
    if fragment.name == "learner":
        layout = f"  (dp {place.dp} x tp {place.tp}{f' x cp {place.cp}' if place.cp > 1 else ''})"
    device = "GPU" if plan.placed.gpus and not fragment.processors else "CPU"
    pools = {"shared": "in turns on the same devices", "environments": "on any node"}
    return (
        f"  {fragment.name:{width}} {fragment.actors} x {fragment.devices} {device}"
        f"{'' if fragment.processors else layout}, joined by {fragment.join}, "
        f"{pools.get(fragment.pool, 'on devices of its own')}"
    )


def _idle(plan: RunPlan) -> list[tuple[str, int]]:
    place, gpus = plan.config.placement, plan.placed.gpus
    sampling = place.samplers * plan.config.sampler.tp
    if place.kind == "colocated":
        return [("in update", gpus - place.ranks), ("in rollout", gpus - sampling)]
    return [("always", gpus - place.ranks - sampling)]


def _sum(parts: Mapping[str, int]) -> str:
    terms = [f"{name} {size(count)}" for name, count in parts.items() if name != "peak" and count]
    return f"{' + '.join(terms)}; at once {size(parts['peak'])}"


def plan_lines(plan: RunPlan) -> list[str]:
    config, kind = plan.config, plan.config.placement.kind
    rollout, warm_steps, processes = config.rollout, config.warm_start.steps, config.run.processes
    warm = f"{_count(warm_steps, 'step')} of imitation, then " if warm_steps else ""
    batch = f"{rollout.prompts} prompts x {rollout.group_size} = {rollout.episodes} episodes per step"
    opponents = ", ".join(f"{name} {share:.0%}" for name, share in _shares(config).items()) or "none"
    where = _count(processes, "process", "es") if kind == "embedded" else kind
    if kind != "embedded" and processes != RunConfig.model_fields["processes"].default:
        where += f" (which does not read run.processes = {processes})"
    lines = [
        f"{config.env.name}: {batch}; {warm}{_count(config.run.steps, 'step')} of {config.algorithm.name}",
        f"{config.model.path or 'a new model'} of {plan.parameters:,} parameters, {where}; opponents: {opponents}",
    ]
    return [one_line(line) for line in lines]


def _shares(config: Config) -> dict[str, float]:
    """Opponent → share of the episodes, sum 1; empty in tool tasks."""
    total = sum(config.env.opponents.values())
    return {name: share / total for name, share in config.env.opponents.items()}


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def more_lines(plan: RunPlan) -> list[str]:
    context, first = plan.config.context, plan.first_prompt_tokens
    ceiling = f", raised with growth up to {context.ceiling}" if context.ceiling else ""
    prompt = f"first prompt {first} of" if first else "first prompt not checked,"
    return [
        f"context: {prompt} at most {context.first_limit} tokens{ceiling}",
        f"disk: {size(plan.checkpoint_bytes)} for each checkpoint",
        *in_lines(plan),
    ]


def as_object(plan: RunPlan) -> dict[str, Any]:
    config, place = plan.config, plan.config.placement
    chosen = {"kind": place.kind, "dp": place.dp, "tp": place.tp, "cp": place.cp, "samplers": place.samplers}
    sampler = {"sampler_tp": config.sampler.tp, "engine": config.sampler.engine}
    return {
        "env": config.env.name,
        "opponents": _shares(config),
        "algorithm": config.algorithm.name,
        "prompts": config.rollout.prompts,
        "group_size": config.rollout.group_size,
        "episodes": config.rollout.episodes,
        "warm_start_steps": config.warm_start.steps,
        "steps": config.run.steps,
        "model": config.model.path or "new",
        "parameters": plan.parameters,
        "processes": config.run.processes,
        "context_limit": config.context.first_limit,
        "context_ceiling": config.context.ceiling,
        "first_prompt_tokens": plan.first_prompt_tokens,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "placed": {**chosen, **sampler, "dtype": config.learner.dtype, **asdict(plan.placed)},
    }


@dataclass(frozen=True, slots=True)
class TrainingJob:
    config: Config
    root: Path
    plan: RunPlan | None
    """None: the run is finished, there is nothing to do."""
    name: str | None = None
    """Of a new run; None: the next free one."""
    folder: RunFolder | None = None
    moved: str = ""
    """For a run that resumes elsewhere: the changes to its recipe."""


def new(config: Config, given: bool, root: Path, name: str | None, dry: bool) -> TrainingJob:
    """Check the recipe of a new run. `given`: whether its address, if any, came from the command line."""
    preflight.check_address(config, given)
    if name is not None:
        free(root, name)
    plan = preflight.preflight(config, root, dry)
    return TrainingJob(plan.config, root, plan, name)


def continued(
    root: Path,
    run: str,
    env: str | None,
    changes: Sequence[str],
    where: Mapping[str, object],
    assignments: Sequence[str],
    dry: bool,
) -> TrainingJob:
    """Resume a run, here or elsewhere. `where` has settings of [placement] by path, None if not given.

    Raises EarlError for `changes`: options that would change more of its recipe than where it runs.
    """
    folder = need_run(root, run)
    if changes:
        raise EarlError(
            f"--resume continues {folder.name!r} with its own recipe; leave out {' '.join(changes)}, "
            "or start a new run without --resume"
        )
    before, root = build(folder.recipe()), folder.path.parent
    same_env(folder, before, env)
    if summarize(folder).state == "finished":
        return TrainingJob(before, root, None, folder=folder)
    config = elsewhere(folder.recipe(), where, assignments)
    preflight.check_address(config, names_address(where, assignments))
    whole, _ = checkpoint.newest_whole(folder.checkpoints)
    resumed = config.changed(model={"path": str(whole.path)}) if whole else config
    plan = preflight.preflight(resumed, root, dry)
    settled = plan.config.changed(model={"path": config.model.path})
    moved = ", ".join(differences(before, settled)) if config != before else ""
    return TrainingJob(settled, root, plan, folder=folder, moved=moved)


def show(job: TrainingJob, as_json: bool) -> None:
    if job.plan is None:
        click.echo(is_finished(job))
    elif as_json:
        print_json(as_object(job.plan))
    else:
        click.echo("\n".join([*plan_lines(job.plan), *more_lines(job.plan), "nothing was written"]))


def is_finished(job: TrainingJob) -> str:
    assert job.folder is not None
    return clean(f"run {job.folder.name!r} is finished: all its {job.config.total_steps} steps are done")
