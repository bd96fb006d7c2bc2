"""Transport through Ray's object store: a producer puts what a host lacks once, and all consumers there read it.

`offer` makes one object per host, the driver passes references only (`references_for`), and `take` reads them. The
host's store is the fan-out inside it, so a plan's second hop needs no messages.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.batch import offsets_of
from earl.dispatch.plan import Pieces, TransferPlan
from earl.dispatch.rows import Numbers, Shard, empty
from earl.dispatch.transports import base
from earl.dispatch.transports.base import Bytes, Corrupted, Late, ProcessLost


def places(plan: TransferPlan, pieces: Pieces) -> Numbers:
    """Where pieces begin among all tokens: equal for equal ranges."""
    return offsets_of(plan.lengths)[pieces.row] + pieces.start


def once(plan: TransferPlan, pieces: Pieces) -> Pieces:
    """Each range once, however many destinations it has."""
    return pieces.where(np.unique(places(plan, pieces), return_index=True)[1])


Reference = Any  # `ray.ObjectRef`; the type checker does not see Ray
PATIENCE_SECONDS = 600.0
LAST_SECONDS = 1.0
"""Timeout for each single message, after the timeout for all together has passed."""


def offer(plan: TransferPlan, process: int, held: Shard, checksums: bool = False) -> dict[int, Reference]:
    """Put what each host lacks of this process's rows into the object store, once; returns a reference by host."""
    import ray

    pieces = plan.pieces
    own = pieces.where((pieces.origin == process) & (pieces.destination != process))
    hosts = plan.hosts[own.destination]
    made = {}
    for host in np.unique(hosts).tolist():
        message = base.pack(once(plan, own.where(hosts == host)), plan.columns, held)
        made[host] = ray.put(base.seal(message) if checksums else message)
    return made


def references_for(
    hosts: NDArray[np.integer[Any]], process: int, offered: Mapping[int, Mapping[int, Reference]]
) -> dict[int, Reference]:
    """The references that a process takes, by source; the driver calls it. hosts: [P], the host of each process."""
    host = int(hosts[process])
    return {source: by_host[host] for source, by_host in offered.items() if host in by_host}


def take(
    plan: TransferPlan,
    process: int,
    references: Mapping[int, Reference],
    held: Shard,
    checksums: bool = False,
    seconds: float = PATIENCE_SECONDS,
) -> Shard:
    """A process's rows of the plan's target, as `execute` gives them. Local rows do not go through the store. Raises
    ProcessLost, Late or Corrupted, naming the producer and its host."""
    target, pieces = empty(plan.target, process, plan.lengths, plan.columns), plan.pieces
    base.keep(plan, process, held, target)
    here = (plan.hosts[pieces.destination] == plan.hosts[process]) & (pieces.origin != pieces.destination)
    near = pieces.where(here)
    sources = np.unique(near.origin[near.destination == process]).tolist()
    for source, message in _got(plan, process, {source: references[source] for source in sources}, seconds).items():
        if checksums and not base.intact(message):
            raise Corrupted(
                f"what {_name(plan, source)} offered to {_name(plan, process)} arrived damaged: its checksum differs"
            )
        there = near.where(near.origin == source)
        offered, own = once(plan, there), there.where(there.destination == process)
        wanted = np.isin(places(plan, offered), places(plan, own))
        base.unpack(message[: len(message) - base.CHECKSUM_BYTES * checksums], offered, plan.columns, target, wanted)
    return target


def _got(plan: TransferPlan, process: int, references: Mapping[int, Reference], seconds: float) -> Mapping[int, Bytes]:
    """Messages from this host's object store, not copied; Ray fetches missing ones in parallel."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    with suppress(RayError):
        return dict(zip(references, ray.get([*references.values()], timeout=seconds), strict=True))
    came: dict[int, Bytes] = {}
    for source, reference in references.items():  # ask one by one, to find the one that failed
        offered, taker = f"what {_name(plan, source)} offered", _name(plan, process)
        try:
            came[source] = ray.get(reference, timeout=LAST_SECONDS)
        except GetTimeoutError as error:
            raise Late(
                f"{offered} did not come to {taker} in time; look at the link between them, or wait longer"
            ) from error
        except RayError as error:
            raise ProcessLost(
                f"{offered} is lost to {taker} ({type(error).__name__}): it ended, or its host did"
            ) from error
    return came


def _name(plan: TransferPlan, process: int) -> str:
    return f"process {process} (host {plan.hosts[process]})"
