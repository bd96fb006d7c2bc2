"""`earl bench`: measure on this machine."""

import click

from earl.cli.bench.clusters import faults, placements
from earl.cli.bench.contexts import ceiling, collapse, forecast
from earl.cli.bench.rollouts import rollout, sampler, step


@click.group()
def command() -> None:
    """Measure rollouts, samplers, training steps, placements, forecasts, and what context limits cost.

    Repeats take turns, so that whatever else the machine does falls on both sides alike. Wherever a number is repeated,
    its median, min and max are told.
    """


for benchmark in (rollout, sampler, step, ceiling, collapse, forecast, placements, faults):
    command.add_command(benchmark)
