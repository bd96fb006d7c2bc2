"""`earl plan`: predicts what a job would need on a cluster, without the cluster."""

from pathlib import Path
from typing import Any

import click

from earl.cli.options import json_option, recipe_options, runs_option

COUNT = click.IntRange(min=1)
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("env", required=False)
@click.option(
    "--model",
    metavar="NAME",
    help="A well-known model, such as Qwen2.5-72B, its hub id, or a folder.  [required]",
)
@click.option(
    "--gpus",
    multiple=True,
    metavar="16x8xH100",
    help="Hosts x GPUs x kind; 8xH100 is one host. May be repeated, to compare.  [required]",
)
@click.option(
    "--hardware",
    type=_FILE,
    metavar="FILE.csv",
    help="Own kinds of GPUs for --gpus, in the form of earl/parallel/hardware.csv.",
)
@click.option("--context", "longest", type=COUNT, metavar="N", help="Tokens of the longest episode expected.")
@click.option(
    "--contexts", metavar="N,N", help="The contexts to plan for; unless given, powers of two up to the longest."
)
@click.option("--responses", metavar="N,N", help="Given to one copy of the engine at once.  [default: 8,16,32,64,128]")
@click.option("--tp", "tps", metavar="N,N", help="Splits of one copy of the engine; unless given, all that can be.")
@click.option(
    "--prompt-tokens", type=COUNT, metavar="N", help="Of a context, read and not written; unless given, none."
)
@click.option(
    "--reply-tokens",
    type=COUNT,
    metavar="N",
    help="Of a context, written; unless given, the rest. With --prompt-tokens both make the context.",
)
@click.option("--weights", default="bf16", show_default=True, help="Of the engine: bf16, fp16, fp8, fp4 or fp32.")
@click.option("--kv-cache", default="auto", show_default=True, help="The same for keys and values; auto: 16 bits.")
@click.option("--engine", default="vllm", show_default=True, help="vllm, vllm-0.5, tensorrt-llm or triton.")
@click.option(
    "--memory-share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="SHARE",
    help="Of a GPU, that the engine takes: sets sampler.memory_share.",
)
@click.option(
    "--network",
    "network_gbps",
    type=float,
    default=200.0,
    show_default=True,
    metavar="GBPS",
    help="Gbit/s of the link between a host and the others, in one direction.",
)
@click.option("--price", type=float, metavar="P", help="Of a GPU-hour, in any currency; absent: no cost is said.")
@click.option("--html", type=_FILE, metavar="FILE", help="Write the plan as a page with plots, too.")
@click.option("--dispatch", is_flag=True, help="Plan only what moving a step's rows between stages would take.")
@click.option(
    "--columns",
    metavar="NAME,NAME",
    help="With --dispatch: columns that are moved; unless given, all that a batch to learn from has.",
)
@click.option("--replay", metavar="RUN", help="Decide again what a run decided; needs neither model nor GPUs.")
@click.option("--margin", type=click.FloatRange(min=0), metavar="M", help="With --replay: in place of the run's own.")
@runs_option
@recipe_options
@json_option
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
    from earl.cli import planning, replayed, transfers

    if replay is not None:
        return replayed.show(replayed.replayed_run(root, replay, margin), as_json)
    for name in ("model", "gpus"):
        if not given[name]:
            raise click.UsageError(f"Missing option '--{name}'.")
    if margin is not None:
        raise click.UsageError("--margin is read with --replay alone; leave it out, or name a run.")
    options = planning.Options(env=env, price=price, **given)
    if dispatch:
        return transfers.show(planning.transfers_of(options, columns), as_json)
    if columns is not None:
        raise click.UsageError("--columns is read with --dispatch alone; leave it out, or add --dispatch.")
    return planning.plans(planning.questions(options), price, html, as_json)
