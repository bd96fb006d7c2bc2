"""`earl bench layouts` and `earl bench memory`: what a learner is, however it is spread, and what it takes."""

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
              low-rank adapters) and layout (dp, tp)
    resumed   of one run that goes on under another layout again and again
    """
    from earl.benchmarks.layouts import run

    result = run(updates)
    if as_json:
        return print_json(result)
    for row in result["losses"]:
        name = f"{row['variant']}, dp {row['dp']}, tp {row['tp']}"
        click.echo(f"{name:<42} {row['difference']:.1e}")
    for row in result["resumed"]:
        name = f"resumed, {row['from']} to {row['to']}"
        click.echo(f"{name:<42} {row['difference']:.1e}")
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
