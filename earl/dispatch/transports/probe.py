"""What messages take between processes that have met: what is expected of transfers (estimate.py) follows from it."""

import time

import numpy as np

from earl.dispatch.transports.base import Transport
from earl.dispatch.transports.estimate import message_seconds


def waiting_seconds(transport: Transport, processes: int, repeats: int) -> float:
    """What a message takes that others wait for: the median of some agreements. All processes come to the same."""
    times = []
    for _ in range(repeats + 1):  # the first one makes connections
        transport.most(0)
        began = time.monotonic()
        transport.most(0)
        times.append(transport.most(int((time.monotonic() - began) * 1e9)) / 1e9)
    return message_seconds(float(np.median(times[1:])), processes)
