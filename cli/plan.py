"""`earl plan`: what a job would take on a cluster that is not here."""

from pathlib import Path
from typing import Any

import click

from earl.cli.planning.options import planning_options


@click.command()
@click.argument("env", required=False)
@planning_options
def command(
    env: str | None,
    dispatch: bool,
    columns: str | None,
    price: float | None,
    html: Path | None,
    replay: str | None,
    margin: float | None,
    root: Path,
    as_json: bool,
    **given: Any,
) -> None:
    """Say what a job would take on a cluster, without it.

    For each stage and context: the layouts that fit, memory of a GPU, tokens per GPU and second with an 80 % interval,
    the choice and where it changes; what one split gains over another by context and by responses; the time of a step
    of the recipe of ENV, and GPU-hours of 1,000 episodes. Without ENV it is what a recipe leaves unsaid, and --context
    or --contexts says how long episodes get. A context is that of the longest episode, for which there must be room.
    Responses are those that one copy of the engine is given at once: with TP 8 half as many copies share a step's
    episodes as with TP 4. Of the engine `sampler.memory_share` of a GPU is taken.

    With --dispatch: what a step's rows take from Experience preparation to Update, by context and by number of GPUs,
    with 25, 200 and 400 Gbit/s between hosts: through one controller, directly by the Data Dispatcher's plan, and the
    bytes that any plan would move. Rows that lie where they are needed stay there; placement.kind says whether both
    stages share their GPUs, and rollout.episodes how many rows a step has. On more or fewer GPUs there are more or
    fewer in proportion; these numbers are predicted from bytes alone: no latency, no packing.

    With --replay: the layouts that a run decided for, decided again from the inputs that it recorded, and whether the
    decisions are the same; with another --margin, which switches there would have been.

    Nothing is measured, and nothing is asked of the network.
    """
    from earl.cli import replayed
    from earl.cli.planning import asking, show

    if replay is not None:
        return replayed.show(replayed.replayed_run(root, replay, margin), as_json)
    for name in ("model", "gpus"):
        if not given[name]:
            raise click.UsageError(f"Missing option '--{name}'.")
    if margin is not None:
        raise click.UsageError("--margin is read with --replay alone; leave it out, or name a run.")
    options = asking.options(env, price=price, **given)
    if dispatch:
        return show.transfers(asking.transfers_of(options, columns), as_json)
    if columns is not None:
        raise click.UsageError("--columns is read with --dispatch alone; leave it out, or add --dispatch.")
    return show.plans(asking.questions(options), price, html, as_json)
