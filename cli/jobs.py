"""What `earl train` is asked for: a new run or one that goes on, checked before anything is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from earl import preflight
from earl.cli import plans
from earl.cli.options import print_json
from earl.cli.players import need_run, same_env
from earl.cli.recipes import resolve
from earl.cli.text import clean
from earl.config import Config, build, load_toml
from earl.errors import EarlError
from earl.runs.folder import RunFolder, free
from earl.runs.summary import summarize


@dataclass(frozen=True, slots=True)
class Job:
    """A training that may begin."""

    config: Config
    root: Path
    plan: preflight.Plan | None
    """None: the run is finished, there is nothing to do."""
    name: str | None = None
    """Of a new run; None: the next free one."""
    folder: RunFolder | None = None
    """Of a run that is continued."""


def new(
    env: str, file: Path | None, flags: Mapping[str, object], assignments: Sequence[str], root: Path, name: str | None
) -> Job:
    """Resolve and check the recipe of a new run."""
    config = resolve(env, file, flags, assignments)
    if name is not None:
        free(root, name)
    return Job(config, root, preflight.preflight(config, root), name)


def continued(root: Path, run: str, env: str | None, changes: Sequence[str]) -> Job:
    """Take a run up again. `changes` are the options given that would change its recipe."""
    folder = need_run(root, run)
    if changes:
        raise EarlError(
            f"--resume continues {folder.name!r} with its own recipe; leave out {' '.join(changes)}, "
            "or start a new run without --resume"
        )
    config = build(load_toml(folder.config))
    same_env(folder, config, env)
    finished = summarize(folder).state == "finished"
    return Job(config, folder.path.parent, None if finished else preflight.preflight(config, root), folder=folder)


def show(job: Job, as_json: bool) -> None:
    """Say what would be done."""
    if job.plan is None:
        click.echo(is_finished(job))
    elif as_json:
        print_json(plans.as_object(job.plan))
    else:
        click.echo("\n".join([*plans.in_lines(job.plan), *plans.more_lines(job.plan), "nothing was written"]))


def is_finished(job: Job) -> str:
    """Says so of a job that has nothing left to do."""
    assert job.folder is not None
    return clean(f"run {job.folder.name!r} is finished: all its {job.config.total_steps} steps are done")
