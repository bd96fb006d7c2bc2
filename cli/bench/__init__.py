"""`earl bench`: measure on this machine."""

import click

from earl.cli.bench.clusters import adaptive, asynchronous, faults, placements, switching
from earl.cli.bench.contexts import ceiling, collapse, forecast
from earl.cli.bench.learners import footprint, layouts, memory
from earl.cli.bench.models import calibration
from earl.cli.bench.rollouts import checks, rollout, sampler, step
from earl.cli.bench.selectors import selector
from earl.cli.bench.transfers import dispatch, ways
from earl.cli.bench.weights import weights


@click.group()
def command() -> None:
    """Measure rollouts, samplers, steps, learners, placements, transfers, forecasts, and contexts' limits.

    Repeats take turns, so that whatever else the machine does falls on both sides alike. Wherever a number is repeated,
    its median, min and max are told.
    """


for benchmark in (
    rollout,
    sampler,
    step,
    checks,
    layouts,
    memory,
    footprint,
    weights,
    ceiling,
    collapse,
    forecast,
    placements,
    asynchronous,
    adaptive,
    faults,
    switching,
    dispatch,
    ways,
    selector,
    calibration,
):
    command.add_command(benchmark)
