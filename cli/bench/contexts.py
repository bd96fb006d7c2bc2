"""Benchmarks of context growth: what limits cost, and how good forecasts are."""

from pathlib import Path

import click

from earl.cli.bench.shared import show, training_options
from earl.cli.options import json_option


@click.command()
@training_options("ceiling", steps=100)
def ceiling(seeds: int, steps: int, root: Path, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure what a context limit costs, and whether an automatic one avoids it.

    Tic-Tac-Toe with full history against heuristic and perfect play, where better play makes longer games. Three arms
    that differ in the limit alone: 72 tokens, 120, and "auto" that begins at 72.

    \b
    not_lost         share of games not lost against perfect play, exactly evaluated
    cut              share of the last step's training episodes that met the limit
    limit            at the end, in tokens
    auto_minus_120   difference of the means of not_lost; auto_minus_72 alike
    """
    from earl.benchmarks.ceiling import run

    show(run(root, seeds, steps, assignments), as_json)


@click.command()
@training_options("collapse", steps=100)
def collapse(seeds: int, steps: int, root: Path, assignments: tuple[str, ...], as_json: bool) -> None:
    """Measure whether learning collapses when thinking that pays grows into the context limit.

    Figure 1 of the EARL paper (arXiv 2510.05943) at small scale: chains of 4 to 16 operations are worked out in
    writing, and reward is to be had by thinking longer. Arms that differ in the limit alone: fixed at 60 tokens, where
    16 operations need 72; the same with episodes that were cut off left out of learning; "auto" that begins at 60; and
    96, which cuts nothing.

    \b
    reward     of training episodes: first, best and last; means over 5 steps
    best_step  at which the best began
    fallen     how far the last reward lies below the best
    solved     share of the chains, first and last
    reply      tokens that the model wrote in an episode, first and last
    cut        last: share of the episodes that met the limit; steps: in which at least
               a tenth did
    limit      last, in tokens
    """
    from earl.benchmarks.collapse import run

    show(run(root, seeds, steps, assignments), as_json)


@click.command()
@click.option("--histories", type=click.IntRange(min=1), default=10, show_default=True, help="Histories per family.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the simulated histories.")
@click.option("--calibration", is_flag=True, help="Those that chose the forecast's constants in place of fresh ones.")
@click.option(
    "--runs", "root", type=click.Path(path_type=Path), metavar="FOLDER", help="Forecast the runs in a folder too."
)
@json_option
def forecast(histories: int, seed: int, calibration: bool, root: Path | None, as_json: bool) -> None:
    """Measure how often the forecast of context growth is right.

    Histories of 14 shapes under six kinds of noise, of which five and two did not choose the forecast's constants. Each
    is forecast at four points in time, and step by step until a warning is due.

    \b
    coverage     how often the limit was reached within the 80 % interval: over all; of
                 those that were reached, or were not, within 200 steps; by family, by noise
    misses       early: reached before the interval; late: after it, or never
    interval     open: share without an end; width and error of the median: relative to
                 the steps that remained, medians
    warning      in_time: share warned at least 5 steps ahead; lead: median steps ahead;
                 false: warnings whose limit was not reached within 50 steps; needless:
                 share warned of those that do not reach it within 200
    expected     how often the value 10 steps ahead was at most the upper 90 %
    recorded     the same of recorded runs, with limits at levels that they came to
    """
    from earl.benchmarks.forecast import run

    show(run(histories, seed, calibration, root), as_json)
