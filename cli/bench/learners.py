"""`earl bench layouts`, `memory` and `footprint`: what a learner is, however it is spread, and what stages take."""

from pathlib import Path

import click

from earl.cli.bench.shared import show
from earl.cli.options import json_option, print_json


@click.command()
@click.option("--updates", type=click.IntRange(min=1), default=20, show_default=True, help="Under every layout.")
@json_option
def layouts(updates: int, as_json: bool) -> None:
    """Compare a learner's losses under every layout with those of one process.

    A small model, one seed, made-up rows, PPO with a value head and a KL divergence; four processes on this machine,
    joined by gloo. Differences are the largest over all updates, of loss, value loss, entropy and KL divergence.

    \b
    losses    by variant (untied and tied output layer, recomputed activations,
              low-rank adapters) and layout (dp, tp, cp)
    resumed   of one run that goes on under another layout again and again
    """
    from earl.benchmarks.layouts import run

    result = run(updates)
    if as_json:
        return print_json(result)
    for row in result["losses"]:
        name = f"{row['variant']}, dp {row['dp']}, tp {row['tp']}, cp {row['cp']}"
        click.echo(f"{name:<54} {row['difference']:.1e}")
    for row in result["resumed"]:
        name = f"resumed, {row['from']} to {row['to']}"
        click.echo(f"{name:<54} {row['difference']:.1e}")
    return None


@click.command()
@click.option("--tokens", type=click.IntRange(min=64), default=32_768, show_default=True, help="Of the sample.")
@click.option("--vocab", type=click.IntRange(min=106), default=150_000, show_default=True)
@json_option
def memory(tokens: int, vocab: int, as_json: bool) -> None:
    """Measure the peak memory of one update on one long sample. Linux only; takes minutes.

    A small model with a large vocabulary, in a process of its own; half of the sample is learned from.

    \b
    kept, recompute     activations kept, or computed again: peak_bytes beyond what the
                        process had before, floor_bytes computed from shapes (parts),
                        and their ratio
    full_logits_bytes   what all logits would take
    budget_bytes        what a small machine may have, to compare with
    """
    from earl.benchmarks.memory import run

    show(run(tokens, vocab), as_json)


@click.command()
@click.option("--only", metavar="WORD", help="Configurations with this word in their name.")
@click.option(
    "--cases",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A JSON list of other configurations, with the keys of a row's `case`.",
)
@json_option
def footprint(only: str | None, cases: Path | None, as_json: bool) -> None:
    """Compare the memory that stages are predicted to take with what they do. Linux only; takes minutes.

    Updates, passes of the model and of its reference, and sampling; each in processes of its own, one, two or four,
    beyond what a process has before it makes a model. On a machine with CUDA, learners of one process on its GPU.

    \b
    predicted, measured   MiB at the peak, of the fullest process
    error                 of the prediction: below zero, it says too little
    under, over           the largest errors to either side
    """
    from earl.benchmarks.footprint import cases_of, run

    result = run(cases_of(only, cases))
    if as_json:
        return print_json(result)
    for row in result["rows"]:
        sizes = (row[f"{kind}_bytes"] / (1 << 20) for kind in ("predicted", "measured"))
        click.echo("{:<28} {:>8.1f} {:>8.1f}".format(row["name"], *sizes) + f" {row['error']:>+7.1%}  {row['moment']}")
    click.echo(f"{result['configurations']} configurations: under {result['under']:.1%}, over {result['over']:.1%}")
    return None
