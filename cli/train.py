"""`earl train`: recipe ─▶ preflight ─▶ run folder ─▶ training ─▶ evaluation and report."""

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from earl.cli.main import INTERRUPTED
from earl.cli.options import SETTINGS, declared, settings
from earl.errors import setting

if TYPE_CHECKING:
    from earl.config import Config


def _number(steps: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", steps):
        raise click.BadParameter(f"{steps!r} is not a whole number; with --resume, +100 means 100 more.")
    return int(steps)


def _check_names(recipe: "Config") -> None:
    """Raises EarlError for an algorithm, a model or a player that cannot be. The preflight does so too, and needs torch
    first."""
    from earl.algorithms.registry import algorithm_of

    path = recipe.model.path
    if path is not None and not Path(path).exists():
        from earl.engine.source import hub_id

        hub_id(path)
    for one in recipe.each_env():
        _check_players(one)
    algorithm_of(recipe)


def _check_players(recipe: "Config") -> None:
    """Scripted players; models and a user's own classes take longer to load."""
    from earl.agents.scripted.registry import ANY, MODEL, agent, is_own, is_policy, player

    def loads_at_once(name: str) -> bool:
        return not (name == ANY or name.startswith(MODEL) or is_policy(name) or is_own(name))

    env, warm, judged = recipe.env.name, recipe.warm_start, recipe.evaluate
    for key, names in (
        ("env.opponents", recipe.env.opponents),
        ("warm_start.opponents", warm.opponents),
        ("evaluate.opponents", judged.opponents),
        ("evaluate.held_out", judged.held_out),
    ):
        with setting(key):
            for name in names:
                if loads_at_once(name):
                    player(name, env)
    with setting("warm_start.teacher"):
        if warm.steps and not warm.data and loads_at_once(warm.teacher):
            agent(warm.teacher, env)


@declared("train")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    env: str | None,
    config: Path | None,
    assignments: tuple[str, ...],
    name: str | None,
    root: Path,
    resume: str | None,
    dry_run: bool,
    verbose: bool,
    as_json: bool,
    **flags: str | int | None,
) -> None:
    from earl.cli.recipes import names_address, origins, resolve
    from earl.runs.folder import open_run

    if verbose and not dry_run:
        raise click.UsageError("--verbose is read with --dry-run alone; a run keeps its whole recipe in config.toml.")
    steps, more = flags["steps"], 0
    if resume is None and env is None:
        raise click.UsageError("Missing argument 'ENV'; `earl envs` lists them. A run is continued with --resume RUN.")
    if resume is None and str(steps).startswith("+"):
        raise click.UsageError("--steps +N adds to a run, which --resume names; a new run takes a number without plus.")
    if str(steps).startswith("+"):
        more, steps = _number(str(steps)), None
    flags["steps"] = None if steps is None else _number(str(steps))
    paths = settings(flags)
    recipe = resolve(env, config, paths, assignments) if env is not None and resume is None else None

    if resume is not None:
        open_run(root, resume)
    elif recipe is not None:
        _check_names(recipe)

    from earl.cli import training  # imports torch, which --help and errors in a recipe do not need

    if resume is not None:
        where = {path: value for path, value in paths.items() if path.startswith("placement.")}
        own = {flag: value for flag, value in flags.items() if SETTINGS[flag] not in where}
        given = {**own, "config": config, "name": name}
        changes = [f"--{option}" for option, value in given.items() if value is not None]
        job = training.continued(root, resume, env, changes, where, assignments, dry_run, more)
    else:
        assert recipe is not None
        job = training.new(recipe, names_address(paths, assignments), root, name, dry_run)
    if dry_run:
        training.show(job, as_json, verbose, [*origins(recipe, config, paths, assignments)] if recipe else [])
    else:
        _, finished = training.carry_out(job, partial(training.conclude, as_json=as_json))
        ctx.exit(0 if finished else INTERRUPTED)
