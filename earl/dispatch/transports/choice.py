"""What a transfer should take by each transport, from its plan and from what links are like: pure.

It is where `Pace` (pace.py) begins from, which then goes by what transfers took.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.plan import TransferPlan, volume
from earl.dispatch.transports.base import Transport
from earl.dispatch.transports.controller import CONTROLLER, ways
from earl.dispatch.transports.schedule import apart, num_steps

OVERHEAD = 1.06
"""Bytes on a link over bytes of messages: headers, and what comes back."""
BRANCHES = 8
"""Of the tree in which processes agree; see `Peers.most`."""
INSIDE_BYTES_PER_SECOND = 1e9
"""Between processes of one host."""


@dataclass(frozen=True, slots=True)
class HostLink:
    """What joins two hosts."""

    bytes_per_second: float
    """In each direction."""
    message_seconds: float
    """From sending the shortest message until it is there, with all that processes do for it; see `message_seconds`."""


def message_seconds(agreement_seconds: float, processes: int) -> float:
    """What one message takes, from what it takes all processes to agree (`Transport.most`)."""
    return agreement_seconds / agreement(processes)


def expected_seconds(plan: TransferPlan, link: HostLink) -> dict[str, float]:
    """By transport: `controller`, and `peers` or, where a host has several processes, `shared`.

    Every process comes to the same, as it does to the same plan.
    """
    shared = len(np.unique(plan.hosts)) < len(plan.hosts)
    return {"controller": _centralised(plan, link), "shared" if shared else "peers": _direct(plan, link)}


def _direct(plan: TransferPlan, link: HostLink) -> float:
    moved = volume(plan)
    inside = float(moved.inside.max(initial=0)) / INSIDE_BYTES_PER_SECOND
    seconds = moved.busiest * OVERHEAD / link.bytes_per_second + inside
    for sizes in plan.sizes:
        stepped = apart(plan.hosts, sizes)
        waits = agreement(len(plan.hosts)) + num_steps(plan.hosts, stepped) + _messages(sizes > stepped)
        seconds += waits * link.message_seconds
    return seconds


def _centralised(plan: TransferPlan, link: HostLink) -> float:
    seconds = 0.0
    for way in ways(plan):
        pieces = way.pieces
        met = np.where(pieces.source == CONTROLLER, pieces.destination, pieces.source)
        far = plan.hosts[met] != plan.hosts[CONTROLLER]
        seconds += float(way.bytes[far].sum()) * OVERHEAD / link.bytes_per_second
        seconds += float(way.bytes[~far].sum()) / INSIDE_BYTES_PER_SECOND
        waits = agreement(len(plan.hosts)) + len(np.unique(met[met != CONTROLLER]))
        seconds += waits * link.message_seconds
    return seconds


def _messages(sent: NDArray[np.bool_]) -> int:
    """Of the process that gives, or gets, the most. sent: [P, P], whether there is a message."""
    return int(max(sent.sum(axis=1).max(initial=0), sent.sum(axis=0).max(initial=0)))


def agreement(processes: int) -> int:
    """Messages after one another in which all processes agree: up a tree, and down again."""
    last, depth = processes - 1, 0
    while last > 0:
        last, depth = (last - 1) // BRANCHES, depth + 1
    return max(1, 2 * depth)


# Which of several ways is fastest: from what each is expected to take, and from what they took before. Pure.
#
# expected seconds × what a way took over what was expected of it ─▶ the least

TRIALS = 3
"""Times that a way is taken before it is judged: the first one makes connections, and meets memory that is new."""
KEPT = 31
"""The last times that count; as often a way is tried at most that may be the fastest."""
WORTH = 3.0
"""A way that is expected to take more than so many times the least is not tried."""
AGAIN = 25
"""Every so often another way that may be as fast is tried again: what is moved grows, and links change."""


@dataclass(slots=True)
class Pace:
    """What ways took.

    Example:
        pace.pick({"objects": 0.004, "peers": 0.003})   # "peers"; then pace.took("peers", 0.003, 0.006)
    """

    _ratios: dict[str, list[float]] = field(default_factory=dict)
    _picks: int = 0

    def pick(self, expected: Mapping[str, float]) -> str:
        """The way to take now. Ways that might be the fastest are tried in turn before one is settled on."""
        seconds = self.seconds(expected)
        best = self.best(expected)
        self._picks += 1
        if doubtful := self._doubtful(expected):
            return min(doubtful, key=self._times)
        others = [way for way in expected if way != best and seconds[way] <= WORTH * seconds[best]]
        if others and self._picks % AGAIN == 0:
            return min(others, key=lambda way: seconds[way])
        return best

    def best(self, expected: Mapping[str, float]) -> str:
        """The way that is the fastest, as far as is known."""
        seconds = self.seconds(expected)
        return min(seconds, key=lambda way: seconds[way])

    def settled(self, expected: Mapping[str, float]) -> str | None:
        """The way that is taken but for trials; None: that is not known yet."""
        return None if self._doubtful(expected) else self.best(expected)

    def took(self, way: str, expected: float, seconds: float) -> None:
        """Remember."""
        self._ratios[way] = [*self._ratios.get(way, []), seconds / expected][-KEPT:]

    def seconds(self, expected: Mapping[str, float]) -> dict[str, float]:
        """What each way is expected to take, after what it took before; not tried: what is expected of it alone."""
        return {way: self._quantile(way, own, 0.5) for way, own in expected.items()}

    def _doubtful(self, expected: Mapping[str, float]) -> list[str]:
        """Ways to be tried: hardly known, or together with the fastest not told apart from it."""
        seconds, best = self.seconds(expected), self.best(expected)
        worth = [way for way in expected if seconds[way] <= WORTH * seconds[best]]
        if untried := [way for way in worth if self._times(way) < TRIALS]:
            return untried
        most = self._quantile(best, expected[best], 0.75)
        close = [way for way in worth if way != best and self._quantile(way, expected[way], 0.25) < most]
        return [way for way in (best, *close) if self._times(way) < KEPT] if close else []

    def _quantile(self, way: str, expected: float, share: float) -> float:
        return expected * (float(np.quantile(self._ratios[way], share)) if way in self._ratios else 1.0)

    def _times(self, way: str) -> int:
        return len(self._ratios.get(way, []))


# What messages take between processes that have met: what is expected of transfers (estimate.py) follows from it.


def waiting_seconds(transport: Transport, processes: int, repeats: int) -> float:
    """What a message takes that others wait for: the median of some agreements. All processes come to the same."""
    times = []
    for _ in range(repeats + 1):  # the first one makes connections
        transport.most(0)
        began = time.monotonic()
        transport.most(0)
        times.append(transport.most(int((time.monotonic() - began) * 1e9)) / 1e9)
    return message_seconds(float(np.median(times[1:])), processes)
