"""How `earl train` carries a job out: folder, lock, training, and what is shown at the end."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
from earl.runs import checkpoint, signing
from earl.runs.folder import RunFolder, create, discard, fresh_name, lock, rewrite
from earl.runs.storage import storage
from earl.runs.store import Store
from earl.runs.summary import summarize
from earl.trackers import Tracking
from earl.trackers.base import NOWHERE, Run

STOPPED = 130


def carry_out(job: Job, as_json: bool) -> int:
    """Train, then show how strong the agent is. Returns the exit code."""
    if job.plan is None:
        assert job.folder is not None
        click.echo(is_finished(job), err=True)
        with lock(job.folder):  # what a killed process left goes with it
            _conclude(job.folder, as_json)
        return 0
    folder = job.folder or _created(job)
    created = job.folder is None
    with lock(folder), _nothing_unbegun(folder, created), signing.signed_run(folder):
        whole, aside = checkpoint.fall_back(folder.checkpoints)
        begun = whole.step if whole else NOWHERE
        if job.moved:
            rewrite(folder, dump(job.config))
        happened = [("damaged", told) for told in aside]
        happened += [("moved", f"continued with {job.moved}")] if job.moved else []
        if happened:
            with Store(folder.database) as store:
                for kind, message in happened:
                    store.event(max(begun, 0), kind, message)
        with Watch(folder, job.config.total_steps, max(begun, 0)) as watch:
            for line in [*_introduction(folder, job.plan, begun), *aside]:
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
def _nothing_unbegun(folder: RunFolder, created: bool) -> Iterator[None]:
    """A run that fails in the process that created it, before its first checkpoint, holds nothing to continue: it goes.

    Args:
        created: whether this process has created it; no other may remove it.
    """
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
    """Whether a run has never had a checkpoint: the first is there before a step beyond 0 is recorded."""
    with suppress(EarlError):  # a database that cannot be read holds no step
        return not checkpoint.all_steps(folder.checkpoints) and not summarize(folder).step
    return True


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
