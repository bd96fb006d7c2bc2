"""How `earl train` carries a job out: folder, lock, training, and what is shown at the end."""

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from earl import preflight, report
from earl import train as trainer
from earl.cli import plans
from earl.cli.jobs import Job, is_finished
from earl.cli.options import print_json
from earl.cli.progress import Watch
from earl.cli.tables import as_objects, match_table
from earl.cli.text import clean, console
from earl.errors import EarlError
from earl.observer import Observers
from earl.recipe import dump
from earl.runs import checkpoint
from earl.runs.folder import RunFolder, create, fresh_name, lock, rewrite
from earl.runs.storage import storage
from earl.runs.store import Store
from earl.runs.summary import chosen_checkpoint, summarize
from earl.trackers import Tracking
from earl.trackers.base import NOWHERE, Run

STOPPED = 130


def carry_out(job: Job, as_json: bool) -> int:
    """Train, then show how strong the agent is. Returns the exit code."""
    if job.plan is None:
        assert job.folder is not None
        click.echo(is_finished(job), err=True)
        _conclude(job.folder, as_json)
        return 0
    folder = job.folder or _created(job)
    with lock(folder), _nothing_unbegun(folder):
        begun = chosen_checkpoint(folder, "last").step if checkpoint.all_steps(folder.checkpoints) else NOWHERE
        if job.moved:
            rewrite(folder, dump(job.config))
            with Store(folder.database) as store:
                store.event(max(begun, 0), "moved", f"continued with {job.moved}")
        with Watch(folder, job.config.total_steps, max(begun, 0)) as watch:
            for line in _introduction(folder, job.plan, begun):
                watch.say(line)
            told = Run(folder.name, folder.path, job.config.model_dump(), begun)
            with Tracking(job.config.track, folder, told, watch.say) as tracking:
                progress = trainer.run(folder, job.config, Observers(watch, tracking))
    if not progress.finished:
        done = f"stopped after step {progress.step} of {job.config.total_steps}"
        click.echo(f"{done}; continue with: {_resume_line(folder)}", err=True)
    _conclude(folder, as_json)
    return 0 if progress.finished else STOPPED


def _created(job: Job) -> RunFolder:
    """The new run's folder; of several processes that want the next free name, each gets its own."""
    recipe = dump(job.config)
    if job.name is not None:
        return create(job.root, job.name, recipe)
    while True:
        with storage(job.root, then="start the run again"):
            name = fresh_name(job.root, job.config.env.name)
        try:
            return create(job.root, name, recipe)
        except EarlError:
            if not (job.root / name).exists():
                raise


@contextmanager
def _nothing_unbegun(folder: RunFolder) -> Iterator[None]:
    """A run that fails before its first checkpoint holds nothing to continue: its folder goes."""
    try:
        yield
    except BaseException as error:
        if not checkpoint.all_steps(folder.checkpoints):
            shutil.rmtree(folder.path, ignore_errors=True)
            if isinstance(error, EarlError):
                raise EarlError(f"{error} (it had no checkpoint yet and was removed: start it again)") from error
        elif isinstance(error, KeyboardInterrupt):
            click.echo(f"stopped at once; continue with: {_resume_line(folder)}", err=True)
        raise


def _introduction(folder: RunFolder, plan: preflight.Plan, begun: int) -> list[str]:
    again = f", continued after step {begun}" if begun > 0 else ""
    return [f"run {folder.path}{again}", *plans.in_lines(plan)]


def _conclude(folder: RunFolder, as_json: bool) -> None:
    """The last evaluation and the report's path on stdout."""
    path, summary = report.write(folder), summarize(folder)
    results = [match.result for match in summary.matches]
    if as_json:
        where = {"run": folder.name, "path": str(folder.path), "report": str(path), "steps": summary.step}
        print_json({**where, "evaluation": as_objects(results)})
        return
    console().print(match_table(results))
    click.echo(clean(path))


def _resume_line(folder: RunFolder) -> str:
    root = folder.path.parent
    where = "" if root == Path("runs") else f" --runs {shlex.quote(str(root))}"
    return clean(f"earl train --resume {shlex.quote(folder.name)}{where}")
