"""What messages take between processes that have met: what a choice (choice.py) is made from."""

import time
from collections.abc import Callable

import numpy as np

from earl.dispatch.transports.base import Transport
from earl.dispatch.transports.choice import message_seconds


def waiting_seconds(transport: Transport, processes: int, repeats: int) -> float:
    """What a message takes that others wait for: the median of some agreements. Every process calls it."""
    return message_seconds(_median(lambda: transport.most(0), repeats), processes)


def all_seconds(transport: Transport, process: int, processes: int, repeats: int) -> float:
    """In which all send each other the shortest message: the median of some exchanges. Every process calls it."""
    sizes = 1 - np.eye(processes, dtype=np.int64)
    shortest = {other: np.zeros(1, np.uint8) for other in range(processes) if other != process}
    return _median(lambda: transport.exchange(shortest, sizes), repeats)


def _median(act: Callable[[], object], repeats: int) -> float:
    """Seconds, after one that does not count."""
    times = []
    for _ in range(repeats + 1):
        act()
        times.append(time.monotonic())
    return float(np.median(np.diff(times)))
