"""`earl bench dispatch` and `earl bench ways`: transfers between hosts, and the ways of a run."""

from typing import Any

import click

from earl.cli.bench.shared import show
from earl.cli.options import json_option, print_json

COLUMNS = (
    ("kind", "{}"),
    ("processes", "{}"),
    ("columns", "{}"),
    ("payload_bytes", "{:,}"),
    ("centralised_s", "{:.3f}"),
    ("direct_s", "{:.3f}"),
    ("ideal_direct_s", "{:.3f}"),
    ("ratio", "{:.1f}"),
    ("auto", "{}"),
)


@click.command()
@click.option("--hosts", type=click.IntRange(2, 64), default=4, show_default=True, help="Each in a namespace.")
@click.option("--rate", default="500mbit", show_default=True, help="Of every link and direction, as `tc` writes it.")
@click.option("--ranks-per-host", "ranks", type=click.IntRange(min=1), help="Processes of a host, in place of both.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Of both ways, in turn.")
@click.option("--ray", is_flag=True, help="Between Ray's actors: the smallest of the paper's payloads.")
@json_option
def dispatch(hosts: int, rate: str, ranks: int | None, repeats: int, ray: bool, as_json: bool) -> None:
    """Measure transfers between hosts, through a controller and directly.

    Hosts are network namespaces joined by shaped links, which takes root (see `earl cluster`); without it all meet on
    loopback. Payloads are those of the EARL paper (arXiv 2510.05943; 46, 93 and 187 MiB of each worker, contexts of 8K,
    16K and 32K), whole at 1 Gbit/s and in proportion at other rates: log-probs alone, and with fewer rows all columns;
    then rows of any length, small transfers, and several processes on a host that are replicas of each other.

    \b
    payload_bytes            of each process
    centralised_s, direct_s  medians over repeats; with spread under centralised, direct
    ideal_direct_s           what the busiest link needs for the payload alone
    ratio                    of centralised over direct
    auto, auto_loss          the transport that would be taken, and what it loses against
                             the fastest
    planned_, crossed_bytes  that leave hosts; and did, as the kernel counts them
    objects, driver_bytes    of `--ray`: through its object store, where direct is over
                             connections that last; and over the link of the driver
    balance                  by how much the slowest of 32 consumers of 10,000 rows has more
                             work than the mean
    """
    from earl.benchmarks.dispatch import run

    result = run(hosts, rate, ranks, repeats, ray)
    if as_json:
        return print_json(result)
    rows = result.pop("rows")
    click.echo("  ".join(f"{name:>14}" for name, _ in COLUMNS))
    for row in rows:
        click.echo("  ".join(f"{_cell(row[name], form):>14}" for name, form in COLUMNS))
    return show(result, as_json)


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)


@click.command()
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Who have the rows.")
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Of the learner.")
@click.option("--repeats", type=click.IntRange(min=1), default=11, show_default=True, help="Of every way, in turn.")
@json_option
def ways(workers: int, ranks: int, repeats: int, as_json: bool) -> None:
    """Measure the ways that a run's rows take, by Ray's object store and from process to process.

    The actors are those of a run on this machine; rows of some 500 tokens are made up.

    \b
    tokens         of each worker
    bytes          that ranks lack
    objects, peers, auto   seconds of a dispatch by each way
    auto_takes     the way that is taken once both were tried
    auto_loss      what it loses against the faster one
    """
    from earl.benchmarks.ways import run

    show(run(workers, ranks, repeats), as_json)
