"""The options of `earl plan` that say what to plan for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from earl.cli.options import json_option, recipe_options, runs_option

F = TypeVar("F", bound=Callable[..., Any])
COUNT = click.IntRange(min=1)
_FILE = click.Path(path_type=Path, dir_okay=False)

OPTIONS = (
    click.option(
        "--model",
        metavar="NAME",
        help="A well-known model, such as Qwen2.5-72B, its hub id, or a folder.  [required]",
    ),
    click.option(
        "--gpus",
        multiple=True,
        metavar="16x8xH100",
        help="Hosts x GPUs x kind; 8xH100 is one host. May be repeated, to compare.  [required]",
    ),
    click.option(
        "--hardware",
        type=_FILE,
        metavar="FILE.csv",
        help="Own kinds of GPUs for --gpus, in the form of earl/parallel/hardware.csv.",
    ),
    click.option("--context", "longest", type=COUNT, metavar="N", help="Tokens of the longest episode expected."),
    click.option(
        "--contexts", metavar="N,N", help="The contexts to plan for; unless given, powers of two up to the longest."
    ),
    click.option(
        "--responses", metavar="N,N", help="Given to one copy of the engine at once.  [default: 8,16,32,64,128]"
    ),
    click.option("--tp", "tps", metavar="N,N", help="Splits of one copy of the engine; unless given, all that can be."),
    click.option(
        "--prompt-tokens", type=COUNT, metavar="N", help="Of a context, read and not written; unless given, none."
    ),
    click.option(
        "--reply-tokens",
        type=COUNT,
        metavar="N",
        help="Of a context, written; unless given, the rest. With --prompt-tokens both make the context.",
    ),
    click.option("--weights", default="bf16", show_default=True, help="Of the engine: bf16, fp16, fp8, fp4 or fp32."),
    click.option("--kv-cache", default="auto", show_default=True, help="The same for keys and values; auto: 16 bits."),
    click.option("--engine", default="vllm", show_default=True, help="vllm, vllm-0.5, tensorrt-llm or triton."),
    click.option(
        "--memory-share",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        metavar="SHARE",
        help="Of a GPU, that the engine takes: sets sampler.memory_share.",
    ),
    click.option(
        "--network",
        type=float,
        default=200.0,
        show_default=True,
        metavar="GBPS",
        help="Gbit/s of the link between a host and the others, in one direction.",
    ),
    click.option("--price", type=float, metavar="P", help="Of a GPU-hour, in any currency; absent: no cost is said."),
    click.option("--html", type=_FILE, metavar="FILE", help="Write the plan as a page with plots, too."),
    click.option("--dispatch", is_flag=True, help="Plan only what moving a step's rows between stages would take."),
    click.option(
        "--columns",
        metavar="NAME,NAME",
        help="With --dispatch: columns that are moved; unless given, all that a batch to learn from has.",
    ),
    click.option("--replay", metavar="RUN", help="Decide again what a run decided; needs neither model nor GPUs."),
    click.option(
        "--margin", type=click.FloatRange(min=0), metavar="M", help="With --replay: in place of the run's own."
    ),
    runs_option,
    recipe_options,
    json_option,
)


def planning_options(command: F) -> F:
    """All of them, in this order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command
