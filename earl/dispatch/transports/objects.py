"""Through Ray's object stores: a producer puts what a host lacks once, and all consumers there read the one copy.

producer: offer ─▶ an object for each host ─▶ driver: references alone, `references_for` ─▶ consumer: take

The store of a host is the fan-out inside it, so that a plan's second hop needs no messages.
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

# A plan without second hops: whoever would get a range from a neighbour on its host gets it from its producer.
#
# For transports that give all processes of a host one message: Ray's object store.


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
    """Every range one time, however many destinations it has."""
    order = np.lexsort((pieces.start, pieces.row, pieces.leg))
    names = np.stack([pieces.leg, pieces.row, pieces.start])[:, order]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (names[:, 1:] != names[:, :-1]).any(axis=0)
    chosen = order[fresh]
    return Pieces(*(getattr(pieces, name)[chosen] for name in Pieces.__slots__))


def among(plan: TransferPlan, pieces: Pieces, some: Pieces) -> NDArray[np.bool_]:
    """Which pieces are ranges of some others."""
    nobody = np.zeros(1, np.int64)
    return np.isin(_keys(plan, pieces, nobody), _keys(plan, some, nobody))


def _keys(plan: TransferPlan, pieces: Pieces, process: Numbers) -> Numbers:
    """A number for each piece that tells its leg, row, first token, and a process."""
    rows, tokens = len(plan.lengths), int(plan.lengths.max(initial=0)) + 1
    keys: Numbers = ((pieces.leg * rows + pieces.row) * tokens + pieces.start) * len(plan.hosts) + process
    return keys


Reference = Any
"""`ray.ObjectRef`; Ray is not seen by the type checker."""
PATIENCE_SECONDS = 600.0
LAST_SECONDS = 1.0
"""How long each message is waited for once all together were not there in time."""


def offer(plan: TransferPlan, process: int, held: Sequence[Shard], checksums: bool = False) -> dict[int, Reference]:
    """Put what each host lacks of a process into Ray's object store, once: a reference by host.

    Args:
        held: what the process holds of each leg; a shard without rows where it holds nothing.
    """
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
    """Of all that was offered, by source and host, what a process takes, by source: the driver's part.

    Args:
        hosts: of each process, [P].
    """
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
    """A process's rows of the plan's target, as `execute` gives them.

    Args:
        references: by source; see `references_for`.
        held: as for `offer`: what a process has itself does not go through the store.

    Raises:
        Lost, Late, Corrupted: with the name of the process that offered, and of its host.
    """
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
    """Messages out of the object store of this host, not copied. Ray brings those that are not there, all at once."""
    import ray
    from ray.exceptions import RayError

    try:
        return dict(zip(references, ray.get([*references.values()], timeout=seconds), strict=True))
    except RayError:  # which one it was, is asked one by one
        return {source: _only(plan, source, process, reference) for source, reference in references.items()}


def _only(plan: TransferPlan, source: int, process: int, reference: Reference) -> Bytes:
    """One message that is here by now, or never."""
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
