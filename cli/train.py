"""`earl train`: recipe ─▶ preflight ─▶ run folder ─▶ training ─▶ evaluation and report."""

import re
from pathlib import Path

import click

from earl.cli.options import SETTINGS, json_option, placement_options, recipe_options, runs_option, settings

MORE = "more"
"""Key of the context: whether --steps begins with a plus."""


def _steps(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    if not re.fullmatch(r"\+?[0-9]{1,9}", value):
        raise click.BadParameter(f"{value!r} is not a whole number; with --resume, +100 means 100 more.", ctx, param)
    ctx.meta[MORE] = value.startswith("+")
    return int(value)


@click.command()
@click.argument("env", required=False)
@placement_options("auto", "embedded", "colocated", "disaggregated")
@recipe_options
@click.option("--steps", metavar="N", callback=_steps, help="Steps of reinforcement learning; with --resume, +N more.")
@click.option("--seed", type=int, help="Seed of the whole run.")
@click.option("--name", help="Name of the run; without it ENV-1, ENV-2 and so on.")
@runs_option
@click.option("--resume", metavar="RUN", help="Continue a run, named in --runs or by its path, with its own recipe.")
@click.option(
    "--dry-run", is_flag=True, help="Check everything, say what would be done; write nothing, contact nobody."
)
@json_option
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
    as_json: bool,
    **flags: str | int | None,
) -> None:
    """Train an agent in an environment.

    The recipe that earl brings for ENV says how; options change it, and --set changes any key of it. Ctrl-C stops
    after the step; --resume goes on from there, elsewhere too: --placement, --address, --gpus and --set of [placement]
    and [sampler] may differ then. With --steps +100 a run, finished or not, gets 100 more steps; the learning rate then
    follows the course of the longer run. The results come at the end, with a report to open in a browser.
    """
    from earl.cli.recipes import names_address, origins, resolve

    paths = settings(flags)
    if resume is None and env is None:
        raise click.UsageError("Missing argument 'ENV'; `earl envs` lists them. A run is continued with --resume RUN.")
    more = flags.pop("steps") if resume is not None and ctx.meta.get(MORE) else None
    if resume is None and ctx.meta.get(MORE):
        raise click.UsageError("--steps +N adds to a run, which --resume names; a new run takes a number without plus.")
    recipe = resolve(env, config, paths, assignments) if env is not None and resume is None else None

    from earl.cli import training  # imports torch, which --help and errors in a recipe do not need

    if resume is not None:
        where = {path: value for path, value in paths.items() if path.startswith("placement.")}
        own = {flag: value for flag, value in flags.items() if SETTINGS[flag] not in where}
        given = {**own, "config": config, "name": name}
        changes = [f"--{option}" for option, value in given.items() if value is not None]
        job = training.continued(root, resume, env, changes, where, assignments, dry_run, int(more or 0))
    else:
        assert recipe is not None
        job = training.new(recipe, names_address(paths, assignments), root, name, dry_run)
    if dry_run:
        training.show(job, as_json, [*origins(recipe, config, paths, assignments)] if recipe else [])
    else:
        ctx.exit(training.carry_out(job, as_json))
