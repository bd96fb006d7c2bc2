"""A training job: checks what `earl train` is asked for before anything is written, describes it, and carries it out:
folder, lock, training, progress output, final evaluation and report.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from earl import preflight, reports, trainer
from earl.cli.contestants import in_env
from earl.cli.match_tables import as_objects, in_short, print_matches
from earl.cli.options import print_json
from earl.cli.recipes import differences, elsewhere, names_address
from earl.cli.text import clean, console, one_line
from earl.config import Config, RunConfig, ToolsConfig
from earl.errors import EarlError
from earl.formats import size
from earl.observer import Observers, RecordedStep
from earl.parallel.layout import learner_layout
from earl.placement.ray.placement_spec import Fragment
from earl.preflight import RunPlan
from earl.preflight.prompts import tool_processes
from earl.recipe import build, dump
from earl.rollout.tasks import opponents
from earl.runs import checkpoint, signing
from earl.runs.folder import RunFolder, create, discard, free, fresh_name, lock, open_run, rewrite
from earl.runs.storage import open_below, storage
from earl.runs.store import Store
from earl.runs.summary import FINAL, summarize
from earl.trackers import Tracking
from earl.trackers.base import NOWHERE, TrackedRun


def more_lines(plan: RunPlan) -> list[str]:
    """Contexts, disk, the fragments of a placement, and the memory of one device, such as:

    placement: colocated on --gpus 16x8xH100, sampler vllm, bfloat16
      learner  128 x 1 GPU  (dp 128 x tp 1), joined by collectives, in turns on the same devices
    """
    config, placed, context, first = plan.config, plan.placed, plan.config.context, plan.first_prompt_tokens
    ceiling = f", raised with growth up to {context.ceiling}" if context.ceiling else ""
    prompt = f"first prompt {first} of" if first else "first prompt not checked,"
    long = "; tasks with a longer first prompt are not learned from" if first and first >= context.first_limit else ""
    where = f", {placed.gpus} x {placed.gpu or 'GPUs of a kind that is not listed'}" if placed.gpus else ""
    width = max([8, *(len(fragment.name) for fragment in placed.fragments)])
    parts = [_line(plan, fragment, width) for fragment in placed.fragments]
    parts += [f"  {idle}" for idle in placed.idle]
    own = f"sampler {config.sampler.engine}, {config.learner.dtype}"
    return [
        f"context: {prompt} at most {context.first_limit} tokens{ceiling}{long}",
        f"disk: {size(plan.checkpoint_bytes)} for each checkpoint",
        f"placement: {config.placement.kind} on {placed.where}{where}; {own}",
        *(parts or [f"  {config.run.processes} x learner and sampler, in turns"]),
        f"memory of each {'GPU' if placed.gpus else 'process'}, at least"
        + (f", of {size(placed.device_bytes)}" if placed.device_bytes else ""),
        f"  update   {_sum(placed.update)}",
        f"  rollout  {_sum(placed.rollout)}",
    ]


def _line(plan: RunPlan, fragment: Fragment, width: int) -> str:
    place, layout = plan.config.placement, f"  (tp {fragment.devices})"
    if fragment.name == "learner":
        layout = f"  ({learner_layout(place).words})"
    device = "GPU" if plan.placed.gpus and not fragment.processors else "CPU"
    pools = {"shared": "in turns on the same devices", "environments": "on any node"}
    return (
        f"  {fragment.name:{width}} {fragment.actors} x {fragment.devices} {device}"
        f"{'' if fragment.processors else layout}, joined by {fragment.join}, "
        f"{pools.get(fragment.pool, 'on devices of its own')}"
    )


def _sum(parts: Mapping[str, int]) -> str:
    terms = [f"{name} {size(count)}" for name, count in parts.items() if name != "peak" and count]
    return f"{' + '.join(terms)}; at once {size(parts['peak'])}"


def plan_lines(plan: RunPlan) -> list[str]:
    config, kind = plan.config, plan.config.placement.kind
    rollout, warm_steps, processes = config.rollout, config.warm_start.steps, config.run.processes
    shown = f" of {config.warm_start.data} in place of a teacher" if config.warm_start.data else ""
    warm = f"{_count(warm_steps, 'step')} of imitation{shown}, then " if warm_steps else ""
    batch = f"{rollout.prompts} prompts x {rollout.group_size} = {rollout.episodes} episodes per step"
    shares, envs, several = _shares(config), config.env.name, bool(config.env.others)
    if several:
        parts = {env: sum(share for own, _, share in shares if own == env) for env, *_ in shares}
        envs = ", ".join(f"{env} {part:.0%}" for env, part in parts.items())
    opponents = ", ".join(_met(config, several)) or "none"
    where = _count(processes, "process", "es") if kind == "embedded" else kind
    if kind != "embedded" and processes != RunConfig.model_fields["processes"].default:
        where += f" (which does not read run.processes = {processes})"
    lines = [
        f"{envs}: {batch}; {warm}{_count(config.run.steps, 'step')} of {config.algorithm.name}",
        f"{config.model.path or 'a new model'} of {plan.parameters:,} parameters, {where}; opponents: {opponents}",
    ]
    if config.tools != ToolsConfig() and (sharing := tool_processes(config)) > 1:
        lines.append(f"[tools]: each of {sharing} processes has 1/{sharing} of every limit")
    return [one_line(line) for line in [*lines, *(f"warning: {risk}" for risk in preflight.risks(config))]]


def _met(config: Config, several: bool) -> Iterator[str]:
    """Opponents and levels with their shares of the episodes, at the first step and, where it differs, at the last."""
    first, last = ({(env, name): share for env, name, share in _shares(config, course)} for course in (0.0, 1.0))
    for env, name in {**first, **last}:
        share, ends = first.get((env, name), 0.0), last.get((env, name), 0.0)
        if name:
            percents = f"{share:.0%}" if share == ends else f"{share:.0%} to {ends:.0%}"
            yield f"{env} {name} {percents}" if several else f"{name} {percents}"


def _shares(config: Config, course: float = 0.0) -> list[tuple[str, str, float]]:
    """Environment, opponent (or level; "" in other tasks) and share of the episodes, sum 1, once that share of the run
    is done."""
    met = opponents(config, course=course)
    cells = [(env, name, share) for env, own in met.items() for name, share in own.items()]
    total = sum(share for *_, share in cells)
    return [(env, name, share / total) for env, name, share in cells]


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def as_object(plan: RunPlan) -> dict[str, Any]:
    return {
        "shares": [{"env": env, "opponent": name, "share": share} for env, name, share in _shares(plan.config)],
        "parameters": plan.parameters,
        "first_prompt_tokens": plan.first_prompt_tokens,
        "checkpoint_bytes": plan.checkpoint_bytes,
        "placed": asdict(plan.placed),
        "recipe": plan.config.model_dump(mode="json"),
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
    more: int,
) -> TrainingJob:
    """Resume a run, here or elsewhere. `where` has settings of [placement] by path, None if not given; `more` steps are
    added to those of its recipe.

    Raises EarlError for `changes`: options that would change more of its recipe than where it runs.
    """
    folder = open_run(root, run)
    if changes:
        cure = "; --steps +100 adds 100 steps" if "--steps" in changes else ""
        raise EarlError(
            f"--resume continues {folder.name!r} with its own recipe; leave out {' '.join(changes)}, "
            f"or start a new run without --resume{cure}"
        )
    before, root = build(folder.recipe()), folder.path.parent
    in_env(folder, before, env)
    ended = summarize(folder)
    if ended.state == "finished" and not more:
        return TrainingJob(before, root, None, folder=folder)
    if ended.state == "finished" and ended.step < before.total_steps:
        raise EarlError(
            f"--steps +{more} would add nothing: {folder.name!r} ended at step {ended.step} of {before.total_steps}, "
            f"as its weights lose to no reply (evaluate.patience = {before.evaluate.patience}); start a new run "
            "with 0"
        )
    config = elsewhere(folder.recipe(), where, assignments)
    config = config.changed(run={"steps": before.run.steps + more})
    preflight.check_address(config, names_address(where, assignments))
    whole, _ = checkpoint.newest_whole(folder.checkpoints)
    resumed = config.changed(model={"path": str(whole.path)}) if whole else config
    plan = preflight.preflight(resumed, root, dry)
    settled = plan.config.changed(model={"path": config.model.path})
    moved = ", ".join(differences(before, settled)) if config != before else ""
    return TrainingJob(settled, root, plan, folder=folder, moved=moved)


def show(job: TrainingJob, as_json: bool, verbose: bool, settled: Sequence[tuple[str, object, str]]) -> None:
    """Print what a dry run found. settled: settings with their values and where they came from."""
    if job.plan is None:
        click.echo(_is_finished(job))
    elif as_json:
        origins = {path: {"value": value, "from": source} for path, value, source in settled}
        print_json({**as_object(job.plan), "settings": origins})
    else:
        lines = [f"  {path:27}  {one_line(str(value)):9}  {one_line(source)}" for path, value, source in settled]
        lines = ["settings, and where they come from", *lines] if lines else []
        lines += [clean(dump(job.config)).rstrip()] if verbose else []
        click.echo("\n".join([*plan_lines(job.plan), *more_lines(job.plan), *lines, "nothing was written"]))


def _is_finished(job: TrainingJob) -> str:
    assert job.folder is not None
    step = summarize(job.folder).step
    return clean(f"run {job.folder.name!r} is finished, after {step} of {job.config.total_steps} steps")


# Progress: a bar on a terminal, else a line per evaluation; lines are also written to log.txt.

SHOWN = {"reward": "reward {:.2f}", "illegal_replies": "illegal {:.1%}", "warm_start/loss": "imitation loss {:.2f}"}
SAID = ("limit", "forecast", "profile", "skipped", "idle", "fault", "guard", "collapse", "finish")
"""Kinds of events that are printed at once; others are printed elsewhere, or are only in the report."""


class Watch:
    """The observer that prints progress. Its bar is a context manager, so that the terminal is always restored."""

    def __init__(self, folder: RunFolder, total_steps: int, begun: int = 0) -> None:
        self._folder, self._total, self._numbers = folder, total_steps, ""
        self._console = console(stderr=True)
        self.bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps, left:", markup=False),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=self._console,
            transient=True,
            disable=not (self._console.is_terminal or (self._console.is_jupyter and find_spec("ipywidgets"))),
        )
        self._task = self.bar.add_task("training", total=total_steps, completed=begun, numbers="")

    def say(self, text: str) -> None:
        line = one_line(text)
        self._console.print(line, soft_wrap=True)
        path, flags = self._folder.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with storage(path), os.fdopen(open_below(self._folder.path, path, flags), "a", encoding="utf-8") as log:
            log.write(f"{datetime.now().isoformat(timespec='seconds')}  {line}\n")

    def step(self, record: RecordedStep) -> None:
        numbers = [form.format(record.metrics[name]) for name, form in SHOWN.items() if name in record.metrics]
        self._numbers = ", ".join(numbers) or self._numbers
        if record.matches:
            when = "at the end, the best weights" if record.phase == FINAL else f"step {record.step}/{self._total}"
            self.say(f"{when}: {'; '.join([*([self._numbers] if numbers else []), in_short(record.matches)])}")
        self.bar.update(self._task, completed=record.step, numbers=self._numbers)

    def event(self, step: int, kind: str, message: str) -> None:
        if kind in SAID:
            self.say(f"step {step}: {message}")

    def stopping(self) -> None:
        self.say("stopping after this step; Ctrl-C again stops at once")


def carry_out(job: TrainingJob, conclude: Callable[[RunFolder], object]) -> tuple[RunFolder, bool]:
    """Train; returns the run's folder, and whether it is finished. `conclude` is called at the end, for the report."""
    if job.plan is None:
        assert job.folder is not None
        click.echo(_is_finished(job), err=True)
        with lock(job.folder):  # also removes leftovers of a killed process
            conclude(job.folder)
        return job.folder, True
    folder = job.folder or _created(job)
    with lock(folder), _nothing_unbegun(folder, created=job.folder is None), signing.signed_run(folder):
        whole, aside = checkpoint.fall_back(folder.checkpoints)
        begun = whole.step if whole else NOWHERE
        if job.moved:
            rewrite(folder, dump(job.config))
        happened = [("damaged", message) for message in aside]
        happened += [("moved", f"continued with {job.moved}")] if job.moved else []
        if happened:
            with Store(folder.database) as store:
                for kind, message in happened:
                    store.event(max(begun, 0), kind, message)
        watch = Watch(folder, job.config.total_steps, max(begun, 0))
        with watch.bar:
            again = f", continued after step {begun}" if begun > 0 else ""
            for line in [f"run {folder.path}{again}", *plan_lines(job.plan), *aside]:
                watch.say(line)
            tracked = TrackedRun(folder.name, folder.path, job.config.model_dump(), begun)
            with Tracking(job.config.track, folder, tracked, watch.say) as tracking:
                progress = trainer.run(folder, job.config, Observers(watch, tracking))
    if not progress.finished:
        done = f"stopped after step {progress.step} of {job.config.total_steps}"
        click.echo(f"{done}; continue with: {_resume_line(folder)}", err=True)
    conclude(folder)
    return folder, progress.finished


def _created(job: TrainingJob) -> RunFolder:
    """Create the new run's folder; concurrent processes that want the next free name each get their own."""
    recipe = dump(job.config)
    if job.name is not None:
        return create(job.root, job.name, recipe)
    while True:
        with storage(job.root, then="start the run again"):
            name = fresh_name(job.root, job.config.env.name.replace(":", "-"))
        try:
            return create(job.root, name, recipe)
        except EarlError:
            if not (job.root / name).exists():
                raise


@contextmanager
def _nothing_unbegun(folder: RunFolder, created: bool) -> Iterator[None]:
    """Remove a run that this process created and that failed before its first checkpoint: it cannot be resumed."""
    try:
        yield
    except BaseException as error:
        if created and _unbegun(folder):
            gone = discard(folder)
            if isinstance(error, EarlError):
                left = "" if gone else f", but for what else lies in {folder.path}"
                raise EarlError(f"{error} (it had no checkpoint yet and was removed{left}: start it again)") from error
        elif isinstance(error, KeyboardInterrupt):
            click.echo(f"stopped at once; continue with: {_resume_line(folder)}", err=True)
        raise


def _unbegun(folder: RunFolder) -> bool:
    """Whether a run has never had a checkpoint: the first is written before a step beyond 0 is recorded."""
    with suppress(EarlError):  # an unreadable database holds no step
        return not checkpoint.all_steps(folder.checkpoints) and not summarize(folder).step
    return True


def conclude(folder: RunFolder, as_json: bool) -> None:
    """Write the report, and print the last evaluation."""
    path, run = reports.write(folder), summarize(folder)
    results = [match.result for match in run.last_evaluation]
    imitated = [match.result for match in run.numbers.matches if run.warm_steps and match.step == run.warm_steps]
    if as_json:
        where = {"run": folder.name, "path": str(folder.path), "report": str(path), "steps": run.step}
        print_json({**where, "evaluation": as_objects(results), "after_imitation": as_objects(imitated)})
        return
    print_matches(results, imitated)
    click.echo(clean(path))


def _resume_line(folder: RunFolder) -> str:
    root = folder.path.parent
    where = "" if root == Path("runs") else f" --runs {shlex.quote(str(root))}"
    return clean(f"earl train --resume {shlex.quote(folder.name)}{where}")
