"""`earl profile`: measures the layouts of a recipe on these machines and stores the results."""

from pathlib import Path

import click

from earl.cli.options import json_option, recipe_options


@click.command()
@click.argument("env")
@click.option("--model", metavar="FOLDER_OR_NAME", help="Of this model instead of a new small one.")
@recipe_options
@click.option(
    "--placement",
    type=click.Choice(["auto", "colocated", "disaggregated"]),
    help="In turns on the same devices, or apart; an embedded run has one layout alone.",
)
@click.option("--address", metavar="HOST:PORT", help="On this Ray cluster; auto: on the one this machine is part of.")
@click.option("--gpus", metavar="16x8xH100", help="Hosts x GPUs x kind that may be used; 8xH100 is one host.")
@click.option(
    "--contexts", metavar="N,N,…", help="Tokens of contexts to try; without it the longest, a half, a quarter …"
)
@click.option("--loads", metavar="N,N,…", help="Episodes of a step to try; without it those of the recipe, a quarter.")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=2.0, show_default=True, help="Of each at least."
)
@click.option("--again", is_flag=True, help="Measure anew what is known already.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    env: str,
    model: str | None,
    config: Path | None,
    assignments: tuple[str, ...],
    placement: str | None,
    address: str | None,
    gpus: str | None,
    contexts: str | None,
    loads: str | None,
    seconds: float,
    again: bool,
    as_json: bool,
) -> None:
    """Measure what the layouts of a recipe take here, for the runs to come.

    Every layout that the recipe's processes can take, of rollout and of what follows it, does its part of a step with
    made-up episodes, at several contexts and loads. Left out is what does not fit, and of layouts that were tried once
    where they are expected to take more than twice as long as the best that was measured. The numbers are kept in the
    user's cache folder, for this model, these machines, these versions and this placement; `earl train` reads them
    where selector.kind is auto. What an environment needs to answer is not in them: it is the same under every layout.

    Ctrl-C keeps what was measured, and the next call goes on from there.
    """
    from earl.cli import profiled

    flags = {"model.path": model, "placement.kind": placement, "placement.address": address, "placement.gpus": gpus}
    ask = profiled.Asked(profiled.numbers("--contexts", contexts), profiled.numbers("--loads", loads), seconds, again)
    ctx.exit(profiled.carry_out(env, config, flags, assignments, ask, as_json))
