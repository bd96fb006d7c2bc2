"""`earl bench selector`: the Parallelism Selector on simulated runs."""

import click

from earl.cli.bench.shared import show
from earl.cli.options import json_option


@click.command()
@click.option("--histories", type=click.IntRange(min=1), default=1000, show_default=True, help="Simulated runs.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="To simulate in.")
@json_option
def selector(histories: int, seed: int, processes: int, as_json: bool) -> None:
    """Measure how close the Parallelism Selector comes to one who knows all that comes.

    Runs of 300 steps: contexts that grow in 16 shapes, 8 layouts whose times cross and whose memory ends, noise of 1 to
    8 %, predictions that are 6 % off, switches that cost a tenth of a step to five steps.

    \b
    loss         seconds beyond those of the best sequence of choices, as a share: mean,
                 p95, worst, and the share of runs within 3 %. selector: layouts were
                 measured when the job started; unprofiled: predictions only; by_range:
                 the rule of the EARL paper; static: the best that fits throughout,
                 known only afterwards
    selector     switches of a run; the most switches back to what was left within 100
                 steps, in any 100 steps, and those that memory did not force; steps that
                 ran out of memory
    families     the selector's loss by shape
    adversary    a load that turns against whatever was chosen: loss against the best
                 static choice
    decide_ms    processor time of a decision among 64 candidates, the median
    """
    from earl.benchmarks.selector import run

    show(run(histories, seed, processes), as_json)
