"""Carries out a training job: folder, lock, training, progress output, final evaluation and report."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from earl import preflight, report
from earl import train as trainer
from earl.cli import jobs
from earl.cli.jobs import TrainingJob, is_finished
from earl.cli.match_tables import as_objects, in_short, match_table
from earl.cli.options import print_json
from earl.cli.text import clean, console, one_line
from earl.errors import EarlError
from earl.matches import MatchResult
from earl.observer import Observers
from earl.recipe import dump
from earl.runs import checkpoint, signing
from earl.runs.folder import RunFolder, create, discard, fresh_name, lock, rewrite
from earl.runs.storage import open_below, storage
from earl.runs.store import Store
from earl.runs.summary import FINAL, summarize
from earl.trackers import Tracking
from earl.trackers.base import NOWHERE, TrackedRun

# Progress: a bar on a terminal, else a line per evaluation; lines are also written to log.txt.

SHOWN = {"reward": "reward {:.2f}", "illegal_replies": "illegal {:.1%}", "warm_start/loss": "imitation loss {:.2f}"}
SAID = ("limit", "forecast", "profile", "skipped")
"""Kinds of events that are printed at once; others are printed elsewhere, or are only in the report."""


class Watch:
    """The observer that prints progress; a context manager, so that the terminal is always restored."""

    def __init__(self, folder: RunFolder, total_steps: int, begun: int = 0) -> None:
        self._folder, self._total, self._begun = folder, total_steps, begun
        self._console = console(stderr=True)
        self._bar = _bar(self._console) if self._console.is_terminal else None
        self._task: TaskID | None = None
        self._numbers = ""

    def say(self, text: str) -> None:
        line = one_line(text)
        self._console.print(line, soft_wrap=True)
        path, flags = self._folder.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with storage(path), os.fdopen(open_below(self._folder.path, path, flags), "a", encoding="utf-8") as log:
            log.write(f"{datetime.now().isoformat(timespec='seconds')}  {line}\n")

    def step(
        self,
        step: int,
        metrics: Mapping[str, float],
        timings: Mapping[str, float],
        matches: Sequence[MatchResult],
        phase: str,
    ) -> None:
        del timings
        numbers = [form.format(metrics[name]) for name, form in SHOWN.items() if name in metrics]
        self._numbers = ", ".join(numbers) or self._numbers
        if matches:
            when = "at the end, the best weights" if phase == FINAL else f"step {step}/{self._total}"
            self.say(f"{when}: {'; '.join([*([self._numbers] if numbers else []), in_short(matches)])}")
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=step, numbers=self._numbers)

    def event(self, step: int, kind: str, message: str) -> None:
        if kind in SAID:
            self.say(f"step {step}: {message}")

    def stopping(self) -> None:
        self.say("stopping after this step; Ctrl-C again stops at once")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task("training", total=self._total, completed=self._begun, numbers="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()


def _bar(on: Console) -> Progress:
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps, left:", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
        console=on,
        transient=True,
    )


STOPPED = 130


def carry_out(job: TrainingJob, as_json: bool) -> int:
    if job.plan is None:
        assert job.folder is not None
        click.echo(is_finished(job), err=True)
        with lock(job.folder):  # also removes leftovers of a killed process
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
            told = TrackedRun(folder.name, folder.path, job.config.model_dump(), begun)
            with Tracking(job.config.track, folder, told, watch.say) as tracking:
                progress = trainer.run(folder, job.config, Observers(watch, tracking))
    if not progress.finished:
        done = f"stopped after step {progress.step} of {job.config.total_steps}"
        click.echo(f"{done}; continue with: {_resume_line(folder)}", err=True)
    _conclude(folder, as_json)
    return 0 if progress.finished else STOPPED


def _created(job: TrainingJob) -> RunFolder:
    """Create the new run's folder; concurrent processes that want the next free name each get their own."""
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


def _introduction(folder: RunFolder, plan: preflight.RunPlan, begun: int) -> list[str]:
    again = f", continued after step {begun}" if begun > 0 else ""
    return [f"run {folder.path}{again}", *jobs.plan_lines(plan)]


def _conclude(folder: RunFolder, as_json: bool) -> None:
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
