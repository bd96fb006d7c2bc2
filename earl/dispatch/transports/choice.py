"""Predicts the time of a transfer by each transport (pure), and picks the fastest one from measured times.

The prediction follows from a plan and from link measurements; `Pace` starts from it and corrects it by measured times.
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
"""Bytes on a link per byte of message: headers and acknowledgements."""
BRANCHES = 8  # fan-out of the agreement tree; see `PeerTransport.most`
INSIDE_BYTES_PER_SECOND = 1e9


@dataclass(frozen=True, slots=True)
class HostLink:
    bytes_per_second: float
    message_seconds: float
    """Latency of the shortest message, including the work of both processes; see `message_seconds`."""


def message_seconds(agreement_seconds: float, processes: int) -> float:
    """The time of one message, from the time of one agreement of all processes (`Transport.most`)."""
    return agreement_seconds / agreement(processes)


def expected_seconds(plan: TransferPlan, link: HostLink) -> dict[str, float]:
    """By transport: `controller`, and `peers` or, where a host has several processes, `shared`. Every process computes
    the same result."""
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
    """The most messages that one process sends or receives. sent: [P, P], whether there is a message."""
    return int(max(sent.sum(axis=1).max(initial=0), sent.sum(axis=0).max(initial=0)))


def agreement(processes: int) -> int:
    """Length of the chain of messages in one agreement: up a tree, and down again."""
    last, depth = processes - 1, 0
    while last > 0:
        last, depth = (last - 1) // BRANCHES, depth + 1
    return max(1, 2 * depth)


TRIALS = 3
"""Trials before a transport is judged: the first makes connections and touches new memory."""
KEPT = 31
"""Measurements kept per transport; also the limit on trials of a transport that may be the fastest."""
WORTH = 3.0
"""A transport predicted to take more than this many times the least is not tried."""
AGAIN = 25
"""Every this many picks a close competitor is tried again: transfers grow, and links change."""


@dataclass(slots=True)
class Pace:
    """Picks the transport with the least expected seconds × median ratio of measured to expected seconds."""

    _ratios: dict[str, list[float]] = field(default_factory=dict)
    _picks: int = 0

    def pick(self, expected: Mapping[str, float]) -> str:
        """The transport to use now. Candidates for the fastest are tried in turn before one is settled on."""
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
        seconds = self.seconds(expected)
        return min(seconds, key=lambda way: seconds[way])

    def settled(self, expected: Mapping[str, float]) -> str | None:
        """The transport used apart from trials; None while undecided."""
        return None if self._doubtful(expected) else self.best(expected)

    def took(self, way: str, expected: float, seconds: float) -> None:
        self._ratios[way] = [*self._ratios.get(way, []), seconds / expected][-KEPT:]

    def seconds(self, expected: Mapping[str, float]) -> dict[str, float]:
        return {way: self._quantile(way, own, 0.5) for way, own in expected.items()}

    def _doubtful(self, expected: Mapping[str, float]) -> list[str]:
        """Transports to try: those with few trials, or the best one and those not yet distinguishable from it."""
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


def waiting_seconds(transport: Transport, processes: int, repeats: int) -> float:
    """The median time of a message that others wait for, from some agreements; the same result on all processes."""
    times = []
    for _ in range(repeats + 1):  # the first one makes connections
        transport.most(0)
        began = time.monotonic()
        transport.most(0)
        times.append(transport.most(int((time.monotonic() - began) * 1e9)) / 1e9)
    return message_seconds(float(np.median(times[1:])), processes)
