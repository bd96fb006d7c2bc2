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
from earl.preflight.placement import Placed
from earl.recipe import build
from earl.runs import checkpoint
from earl.runs.folder import RunFolder, free
from earl.runs.summary import summarize


def in_lines(placed: Placed, processes: int) -> list[str]:
    """The fragments of a placement, and the memory of one device, such as:

    placement: colocated on --gpus 16x8xH100, sampler vllm, bfloat16
      learner  128 x 1 GPU  (dp 128 x tp 1), joined by collectives, in turns on the same devices
    """
    where = f", {placed.gpus} x {placed.gpu or 'GPUs of a kind that is not listed'}" if placed.gpus else ""
    head = f"placement: {placed.kind} on {placed.where}{where}; sampler {placed.engine}, {placed.dtype}"
    if placed.kind == "embedded":
        parts = [f"  {processes} x learner and sampler, in turns"]
    else:
        width = max(len(fragment.name) for fragment in placed.fragments)
        parts = [_line(placed, fragment, max(width, 8)) for fragment in placed.fragments]
        parts += [f"  {idle} GPUs idle {when}" for when, idle in _idle(placed) if placed.gpus and idle > 0]
    unit = "each GPU" if placed.gpus else "each process"
    return [
        head,
        *parts,
        f"memory of {unit}, at least" + (f", of {size(placed.device_bytes)}" if placed.device_bytes else ""),
        f"  update   {_sum(placed.update)}",
        f"  rollout  {_sum(placed.rollout)}",
    ]


def _line(placed: Placed, fragment: Fragment, width: int) -> str:
    device = "GPU" if placed.gpus and not fragment.processors else "CPU"
    return (
        f"  {fragment.name:{width}} {fragment.actors} x {fragment.devices} {device}{_layout(placed, fragment.name)}, "
        f"joined by {fragment.join}, {_pool(fragment.pool)}"
    )


def _idle(placed: Placed) -> list[tuple[str, int]]:
    learner, sampler = placed.dp * placed.tp * placed.cp, placed.samplers * placed.sampler_tp
    if placed.kind == "colocated":
        return [("in update", placed.gpus - learner), ("in rollout", placed.gpus - sampler)]
    return [("always", placed.gpus - learner - sampler)]


def _layout(placed: Placed, name: str) -> str:
    if name == "environments":
        return ""
    cut = f" x cp {placed.cp}" if placed.cp > 1 else ""
    return f"  (dp {placed.dp} x tp {placed.tp}{cut})" if name == "learner" else f"  (tp {placed.sampler_tp})"


def _pool(name: str) -> str:
    return {"shared": "in turns on the same devices", "environments": "on any node"}.get(name, "on devices of its own")


def _sum(parts: Mapping[str, int]) -> str:
    terms = [f"{name} {size(count)}" for name, count in parts.items() if name != "peak" and count]
    return f"{' + '.join(terms)}; at once {size(parts['peak'])}"


def plan_lines(plan: RunPlan) -> list[str]:
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


def more_lines(plan: RunPlan) -> list[str]:
    ceiling = f", raised with growth up to {plan.context_ceiling}" if plan.context_ceiling else ""
    prompt = f"first prompt {plan.first_prompt_tokens} of" if plan.first_prompt_tokens else "first prompt not checked,"
    return [
        f"context: {prompt} at most {plan.context_limit} tokens{ceiling}",
        f"disk: {size(plan.checkpoint_bytes)} for each checkpoint",
        *in_lines(plan.placed, plan.processes),
    ]


def as_object(plan: RunPlan) -> dict[str, Any]:
    return asdict(plan)


@dataclass(frozen=True, slots=True)
class TrainingJob:
    config: Config
    root: Path
    plan: preflight.RunPlan | None
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
    return TrainingJob(preflight.settled(config, plan), root, plan, name)


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
    plan = preflight.preflight(_as_it_stands(folder, config), root, dry)
    moved = config != before
    config = preflight.settled(config, plan)
    return TrainingJob(config, root, plan, folder=folder, moved=", ".join(differences(before, config)) if moved else "")


def _as_it_stands(folder: RunFolder, config: Config) -> Config:
    """The recipe with the model that the run resumes with: that of its newest complete checkpoint, if there is one."""
    whole, _ = checkpoint.newest_whole(folder.checkpoints)
    if whole is None:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"path": str(whole.path)})})


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
