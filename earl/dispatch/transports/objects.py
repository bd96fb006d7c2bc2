"""Transport through Ray's object store: a producer puts what a host lacks once, and all consumers there read it.

`offer` makes one object per host, the driver passes references only (`references_for`), and `take` reads them. The
host's store is the fan-out inside it, so a plan's second hop needs no messages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.execute import keep, room
from earl.dispatch.plan import INSIDE, Pieces, TransferPlan
from earl.dispatch.rows import Axis, Numbers, Shard
from earl.dispatch.transports.base import (
    CHECKSUM_BYTES,
    Bytes,
    Corrupted,
    Late,
    ProcessLost,
    intact,
    pack,
    seal,
    unpack,
)

# Plans without a second hop, for transports that give all processes of a host one message.


def from_origins(plan: TransferPlan) -> Pieces:
    """All pieces of a plan, each with the producer as its source."""
    pieces = plan.pieces
    second = pieces.hop == INSIDE
    through = _keys(plan, pieces, pieces.destination)[~second]
    order = np.argsort(through)
    wanted = _keys(plan, pieces, pieces.source)[second]
    source = pieces.source.copy()
    source[second] = pieces.source[~second][order[np.searchsorted(through, wanted, sorter=order)]]
    return replace(pieces, source=source, hop=np.zeros_like(pieces.hop))


def once(pieces: Pieces) -> Pieces:
    """Each range once, however many destinations it has."""
    order = np.lexsort((pieces.start, pieces.row, pieces.leg))
    names = np.stack([pieces.leg, pieces.row, pieces.start])[:, order]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (names[:, 1:] != names[:, :-1]).any(axis=0)
    chosen = order[fresh]
    return Pieces(*(getattr(pieces, name)[chosen] for name in Pieces.__slots__))


def among(plan: TransferPlan, pieces: Pieces, some: Pieces) -> NDArray[np.bool_]:
    """Mask of the pieces whose range also occurs in `some`."""
    nobody = np.zeros(1, np.int64)
    return np.isin(_keys(plan, pieces, nobody), _keys(plan, some, nobody))


def _keys(plan: TransferPlan, pieces: Pieces, process: Numbers) -> Numbers:
    """A unique number for each piece's leg, row, first token, and a process."""
    rows, tokens = len(plan.lengths), int(plan.lengths.max(initial=0)) + 1
    keys: Numbers = ((pieces.leg * rows + pieces.row) * tokens + pieces.start) * len(plan.hosts) + process
    return keys


Reference = Any  # `ray.ObjectRef`; the type checker does not see Ray
PATIENCE_SECONDS = 600.0
LAST_SECONDS = 1.0
"""Timeout for each single message, after the timeout for all together has passed."""


def offer(plan: TransferPlan, process: int, held: Sequence[Shard], checksums: bool = False) -> dict[int, Reference]:
    """Put what each host lacks of this process's rows into the object store, once; returns a reference by host."""
    import ray

    direct = from_origins(plan)
    own = direct.where((direct.source == process) & (direct.destination != process))
    hosts = plan.hosts[own.destination]
    made = {}
    for host in np.unique(hosts).tolist():
        message = pack(once(own.where(hosts == host)), plan.legs, held)
        made[host] = ray.put(seal(message) if checksums else message)
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
    held: Sequence[Shard],
    checksums: bool = False,
    seconds: float = PATIENCE_SECONDS,
) -> dict[Axis, Shard]:
    """A process's rows of the plan's target, as `execute` gives them. Local rows do not go through the store. Raises
    ProcessLost, Late or Corrupted, naming the producer and its host."""
    target = room(plan, process)
    direct = from_origins(plan)
    keep(direct, process, plan.legs, held, target)
    near = direct.where((plan.hosts[direct.destination] == plan.hosts[process]) & (direct.source != direct.destination))
    sources = np.unique(near.source[near.destination == process]).tolist()
    for source, message in _got(plan, process, {source: references[source] for source in sources}, seconds).items():
        there = near.where(near.source == source)
        if checksums and not intact(message):
            raise Corrupted(
                f"what {_name(plan, source)} offered to {_name(plan, process)} arrived damaged: its checksum differs"
            )
        pieces = once(there)
        wanted = among(plan, pieces, there.where(there.destination == process))
        unpack(message[: len(message) - CHECKSUM_BYTES * checksums], pieces, plan.legs, target, wanted)
    return target


def _got(plan: TransferPlan, process: int, references: Mapping[int, Reference], seconds: float) -> Mapping[int, Bytes]:
    """Messages from this host's object store, not copied; Ray fetches missing ones in parallel."""
    import ray
    from ray.exceptions import RayError

    try:
        return dict(zip(references, ray.get([*references.values()], timeout=seconds), strict=True))
    except RayError:  # ask one by one, to find the one that failed
        return {source: _only(plan, source, process, reference) for source, reference in references.items()}


def _only(plan: TransferPlan, source: int, process: int, reference: Reference) -> Bytes:
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    try:
        message: Bytes = ray.get(reference, timeout=LAST_SECONDS)
    except GetTimeoutError as error:
        raise Late(
            f"what {_name(plan, source)} offered did not come to {_name(plan, process)} in time; look at the link "
            "between them, or wait longer"
        ) from error
    except RayError as error:
        raise ProcessLost(
            f"what {_name(plan, source)} offered is lost to {_name(plan, process)} ({type(error).__name__}): "
            "it ended, or its host did"
        ) from error
    return message


def _name(plan: TransferPlan, process: int) -> str:
    return f"process {process} (host {plan.hosts[process]})"
