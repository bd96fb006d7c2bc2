"""Benchmarks of what is predicted: how far from what was measured."""

import click

from earl.cli.bench.shared import show
from earl.cli.options import json_option


@click.command()
@click.option("--write", is_flag=True, help="Store the fitted coefficients, which `earl plan` predicts with.")
@json_option
def calibration(write: bool, as_json: bool) -> None:
    """Fit the throughput model to published tables, and measure how far it is from them.

    185 measurements of three serving engines on H100 and A100. The coefficients are fitted to all of them, then again
    to all but one TP, one context (prompt+reply), one GPU or one model, which are predicted with what the others tell.
    Rows of an engine that the others know nothing of are not judged. A minute or two.

    \b
    error        mean absolute relative error of throughput, of dense models and of a
                 mixture of experts apart; by: of each part, both together
    choice       of TP by predicted tokens per GPU, over cells with several; near: share
                 with the best one or one within 3 %; regret: share of tokens lost
    interval_80  share of left-out rows inside their 80 % interval
    contexts     published labels of which context is served
    kernels      single operations, which nothing is fitted to
    coefficients fitted and believed before, with the spread of their logarithms
    """
    from earl.benchmarks.calibration import run

    show(run(write), as_json)
