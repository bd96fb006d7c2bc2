"""`earl bench weights`: how a learner's weights get to another layout, and to samplers."""

import click

from earl.cli.options import json_option, print_json


@click.command()
@click.option("--hidden", type=click.IntRange(min=64), default=512, show_default=True, help="Width of the model.")
@click.option("--layers", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--bucket", "bucket_mib", type=click.IntRange(min=1), default=8, show_default=True, help="In MiB.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@json_option
def weights(hidden: int, layers: int, bucket_mib: int, repeats: int, as_json: bool) -> None:
    """Carry a model's weights from layout to layout, between processes of this machine joined by gloo. Linux only.

    A model of Qwen3's kind in bfloat16, of random bits; every process compares what it got. Processes share one
    machine; which of them count as one host, the plan is told.

    \b
    across_bytes    between hosts, counted at the transport; bound_bytes: no plan is
                    below; and their ratio
    inside_bytes    between processes of one host
    seconds         until the last process has its boxes, the median
    extra_bytes     the most that a process had resident beyond its boxes, beside
                    bucket_bytes, and stated_bytes by the plan
    peak_bytes      of boxes and buffers of one process together, as the plan states it
    """
    from earl.benchmarks.weights import run

    result = run(hidden, layers, bucket_mib, repeats)
    if as_json:
        return print_json(result)
    click.echo(f"model {result['model_bytes'] / 1e6:.1f} MB, buckets of {result['bucket_bytes'] / 1e6:.1f} MB")
    for row in result["rows"]:
        click.echo(
            f"{row['case']:<56} {row['across_bytes'] / 1e6:7.1f} MB, {row['ratio']:.3f} of the bound, "
            f"{row['seconds']:.3f} s, {row['extra_bytes'] / 1e6:.1f} MB beside the boxes"
        )
    return None
