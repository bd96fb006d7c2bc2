"""`earl train`: recipe ─▶ preflight ─▶ run folder ─▶ training ─▶ evaluation and report."""

from pathlib import Path

import click

from earl.cli.options import json_option, recipe_options, runs_option


@click.command()
@click.argument("env", required=False)
@click.option(
    "--model",
    metavar="FOLDER_OR_NAME",
    help="Train this model instead of a new small one: a folder, a hub id, or a name such as Qwen2.5-7B.",
)
@recipe_options
@click.option(
    "--placement",
    type=click.Choice(["auto", "embedded", "colocated", "disaggregated"]),
    help="Where the fragments of a step run: here in a few processes; on Ray in turns on the same devices, or apart.",
)
@click.option(
    "--address", metavar="HOST:PORT", help="Run on this Ray cluster; auto: on the one this machine is part of."
)
@click.option("--gpus", metavar="16x8xH100", help="Hosts x GPUs x kind that the run may use; 8xH100 is one host.")
@click.option("--steps", type=int, help="Steps of reinforcement learning.")
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
    env: str | None,
    model: str | None,
    config: Path | None,
    assignments: tuple[str, ...],
    placement: str | None,
    address: str | None,
    gpus: str | None,
    steps: int | None,
    seed: int | None,
    name: str | None,
    root: Path,
    resume: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train an agent in an environment.

    The recipe that earl brings for ENV says how; options change it, and --set changes any key of it. Ctrl-C stops
    after the step; --resume goes on from there, elsewhere too: --placement, --address, --gpus and --set of [placement]
    and [sampler] may differ then. The results come at the end, with a report to open in a browser.
    """
    from earl.cli.recipes import names_address, resolve

    where = {"placement.kind": placement, "placement.address": address, "placement.gpus": gpus}
    flags = {"model.path": model, "run.steps": steps, "run.seed": seed, **where}
    if resume is None and env is None:
        raise click.UsageError("Missing argument 'ENV'; `earl envs` lists them. A run is continued with --resume RUN.")
    recipe = resolve(env, config, flags, assignments) if env is not None and resume is None else None

    from earl.cli import jobs, training  # imports torch, which --help and errors in a recipe do not need

    if resume is not None:
        given = {"--model": model, "--config": config, "--steps": steps, "--seed": seed, "--name": name}
        changes = [option for option, value in given.items() if value is not None]
        job = jobs.continued(root, resume, env, changes, where, assignments, dry_run)
    else:
        assert recipe is not None
        job = jobs.new(recipe, names_address(flags, assignments), root, name, dry_run)
    if dry_run:
        jobs.show(job, as_json)
    else:
        ctx.exit(training.carry_out(job, as_json))
