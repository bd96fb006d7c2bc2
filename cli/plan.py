"""`earl plan`: what a job would take on a cluster that is not here."""

from pathlib import Path

import click

from earl.cli.options import json_option, print_json, recipe_options


@click.command()
@click.argument("env")
@click.option("--model", required=True, metavar="NAME", help="A well-known model, such as Qwen2.5-72B, or its hub id.")
@click.option("--gpus", required=True, metavar="16x8xH100", help="Hosts x GPUs x kind; 8xH100 is one host.")
@click.option("--dispatch", is_flag=True, help="What moving a step's rows between stages would take.")
@click.option(
    "--columns", metavar="NAME,NAME", help="Columns that are moved; unless given, all that a batch to learn from has."
)
@recipe_options
@json_option
def command(
    env: str,
    model: str,
    gpus: str,
    dispatch: bool,
    columns: str | None,
    config: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say what a job would take on a cluster, without it.

    With --dispatch: what a step's rows take from Experience preparation to Update, by context and by number of GPUs,
    with 25, 200 and 400 Gbit/s between hosts: through one controller, directly by the Data Dispatcher's plan, and the
    bytes that any plan would move. Rows that lie where they are needed stay there; placement.kind says whether both
    stages share their GPUs, and rollout.episodes how many rows a step has. On more or fewer GPUs there are more or
    fewer in proportion. All numbers are predicted from bytes alone: no latency, no packing.
    """
    from earl.cli import transfers
    from earl.cli.recipes import resolve

    if not dispatch:
        raise click.UsageError("So far earl plans the dispatch of a step's rows only; add --dispatch.")
    recipe = resolve(env, config, {}, assignments)
    planned = transfers.planned(recipe, model, gpus, columns)
    if as_json:
        print_json(planned.as_object)
    else:
        transfers.show(planned)
