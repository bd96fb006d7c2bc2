"""What messages take between processes that have met: what a choice (choice.py) is made from.

Every process calls each function, and all come to the same.
"""

import time
from collections.abc import Callable

import numpy as np

from earl.dispatch.columns import columns
from earl.dispatch.execute import execute
from earl.dispatch.plan import TransferPlan, plan
from earl.dispatch.segments import Leg
from earl.dispatch.shard import empty
from earl.dispatch.spread import Numbers, spread
from earl.dispatch.transports.base import Transport
from earl.dispatch.transports.choice import message_seconds
from earl.dispatch.transports.controller import gather_and_scatter
from earl.parallel.layout import Layout

PAUSE_SECONDS = 0.005
"""Before each: a transfer finds processes that have done something else meanwhile, and cores that slept."""


def waiting_seconds(transport: Transport, processes: int, repeats: int) -> float:
    """What a message takes that others wait for: the median of some agreements."""
    return message_seconds(_median(transport, lambda: transport.most(0), repeats, 0.0), processes)


def least_seconds(transport: Transport, process: int, hosts: Numbers, repeats: int) -> tuple[float, float]:
    """In which all give each other one number, directly and through a controller: the medians of some transfers.

    Args:
        hosts: the host of each process, [P].
    """
    least = _least(hosts)
    held = [empty(leg.source, process, least.lengths, leg.axis, leg.columns) for leg in least.legs]
    return (
        _median(transport, lambda: execute(least, process, held, transport), repeats),
        _median(transport, lambda: gather_and_scatter(least, process, held, transport), repeats),
    )


def _least(hosts: Numbers) -> TransferPlan:
    """Every process gives each one a row of one token."""
    count = len(hosts)
    here = np.repeat(np.arange(count), count)
    leg = Leg(columns(["mask"]), spread(Layout(count), range(count), here))
    target = spread(Layout(count), range(count), np.tile(np.arange(count), count))
    return plan(np.ones(len(here), np.int64), [leg], target, hosts)


def _median(
    transport: Transport, act: Callable[[], object], repeats: int, pause_seconds: float = PAUSE_SECONDS
) -> float:
    """Seconds until the last process is done, after one that does not count."""
    times = []
    for _ in range(repeats + 1):
        transport.most(0)
        time.sleep(pause_seconds)
        began = time.monotonic()
        act()
        times.append(transport.most(int((time.monotonic() - began) * 1e9)) / 1e9)
    return float(np.median(times[1:]))
