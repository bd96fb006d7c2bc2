"""What an actor does to exchange rows with others directly; see circle.py for who asks it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from earl.dispatch.columns import columns
from earl.dispatch.execute import execute
from earl.dispatch.plan import TransferPlan, plan
from earl.dispatch.segments import Leg
from earl.dispatch.shard import Shard, empty
from earl.dispatch.spread import Numbers, spread
from earl.dispatch.transports.base import Transport
from earl.dispatch.transports.estimate import Link
from earl.dispatch.transports.probe import waiting_seconds
from earl.dispatch.transports.rendezvous import Rendezvous, fresh, opened, reached
from earl.errors import EarlError
from earl.parallel.layout import Layout
from earl.placement.cluster.budget import of_memory
from earl.placement.holdings import Counts

PROBE_BYTES = 1 << 20
"""What one process of every host sends to the next host, to see how fast links are."""
AGREEMENTS = 5


@dataclass(frozen=True, slots=True)
class Said:
    """What one process says of a call that all take part in."""

    fault: str = ""
    """Why it failed; empty: it did not."""
    result: Any = None


class Meets:
    """An actor that is one process of a group."""

    _transport: Transport | None = None
    _close_group: Callable[[], None] | None = None

    def invite(self) -> Rendezvous:
        """Open the place where all find each other: this node's address, a port, and a secret."""
        self._book = opened(fresh(ray.util.get_node_ip_address()))
        return self._book.place

    def depart(self) -> None:
        """Let go of the group, if it is in one."""
        if self._close_group:
            self._close_group()
        self._transport = self._close_group = None

    def enter(self, where: Rendezvous, process: int, hosts: Counts, seconds: float) -> Said:
        """Join the others; what is known of the links between them then."""
        from earl.dispatch.transports.peers import join
        from earl.dispatch.transports.shared import Shared

        self.depart()
        try:
            address = ray.util.get_node_ip_address()
            self._store = reached(where)
            peers = join(self._store, process, hosts.astype(np.int64), address, seconds)
            self._close_group = peers.close
            near = len(np.unique(hosts)) < len(hosts)
            self._transport = Shared(peers, process, hosts.astype(np.int64)) if near else peers
            return Said(result=measured(peers, process, hosts))
        except (EarlError, RuntimeError) as error:
            return Said(_line(error))

    def exchanged(self, through: TransferPlan, process: int, held: Sequence[Shard], checksums: bool) -> Said:
        """Carry out a plan with the others: the rows that this process gets, by axis."""
        assert self._transport is not None, "all have met"
        try:
            return Said(result=execute(through, process, held, self._transport, checksums))
        except (EarlError, RuntimeError, MemoryError) as error:
            if not of_memory(error):
                return Said(_line(error))
            self.depart()  # the others need not wait for it
            raise


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def measured(transport: Transport, process: int, hosts: Counts) -> Link:
    """How fast messages are between processes that have just met."""
    message = waiting_seconds(transport, len(hosts), AGREEMENTS)
    firsts = np.unique(hosts, return_index=True)[1]
    if len(firsts) == 1:
        return Link(float("inf"), message)
    probe = _probe(firsts, hosts.astype(np.int64))
    held = [empty(leg.source, process, probe.lengths, leg.axis, leg.columns) for leg in probe.legs]
    transport.most(0)
    began = time.perf_counter()
    execute(probe, process, held, transport)
    return Link(PROBE_BYTES / (time.perf_counter() - began), message)


def _probe(firsts: Numbers, hosts: Numbers) -> TransferPlan:
    """One process of every host gives a row to that of the next host."""
    count = len(firsts)
    lengths, rows = np.full(count, PROBE_BYTES), np.arange(count)
    leg = Leg(columns(["mask"]), spread(Layout(count), firsts.tolist(), rows))
    return plan(lengths, [leg], spread(Layout(count), np.roll(firsts, -1).tolist(), rows), hosts)
