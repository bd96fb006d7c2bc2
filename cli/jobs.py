"""What `earl train` is asked for: a new run or one that goes on, checked before anything is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from earl import preflight
from earl.cli import plans
from earl.cli.options import print_json
from earl.cli.players import need_run, same_env
from earl.cli.recipes import differences, elsewhere, names_address
from earl.cli.text import clean
from earl.config import Config
from earl.errors import EarlError
from earl.recipe import build
from earl.runs import checkpoint
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
    moved: str = ""
    """Of a run that goes on elsewhere: what of its recipe has changed."""


def new(config: Config, given: bool, root: Path, name: str | None, dry: bool) -> Job:
    """Check the recipe of a new run.

    Args:
        given: whether the address in it, if there is any, was given on the command line.
    """
    preflight.check_address(config, given)
    if name is not None:
        free(root, name)
    plan = preflight.preflight(config, root, dry)
    return Job(preflight.settled(config, plan), root, plan, name)


def continued(
    root: Path,
    run: str,
    env: str | None,
    changes: Sequence[str],
    where: Mapping[str, object],
    assignments: Sequence[str],
    dry: bool,
) -> Job:
    """Take a run up again, here or elsewhere.

    Args:
        changes: options given that would change more of its recipe than where it runs.
        where: settings of [placement] by their path; those that are None were not given.
        assignments: what --set says.
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
        return Job(before, root, None, folder=folder)
    config = elsewhere(folder.recipe(), where, assignments)
    preflight.check_address(config, names_address(where, assignments))
    plan = preflight.preflight(_as_it_stands(folder, config), root, dry)
    moved = config != before
    config = preflight.settled(config, plan)
    return Job(config, root, plan, folder=folder, moved=", ".join(differences(before, config)) if moved else "")


def _as_it_stands(folder: RunFolder, config: Config) -> Config:
    """The recipe with the model that the run goes on with: its last whole checkpoint's, if there is one."""
    whole, _ = checkpoint.newest_whole(folder.checkpoints)
    if whole is None:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"path": str(whole.path)})})


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
