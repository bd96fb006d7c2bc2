"""Through Ray's object stores: a producer puts what a host lacks once, and all consumers there read the one copy.

producer: offer ─▶ an object for each host ─▶ driver: references alone, `references_for` ─▶ consumer: take

The store of a host is the fan-out inside it, so that a plan's second hop needs no messages.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.columns import Axis
from earl.dispatch.execute import keep, room
from earl.dispatch.messages import CHECKSUM_BYTES, Bytes, intact, pack, seal, unpack
from earl.dispatch.origins import among, from_origins, once
from earl.dispatch.plan import TransferPlan
from earl.dispatch.shard import Shard
from earl.dispatch.transports.base import Corrupted, Late, Lost

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
        raise Lost(
            f"what {_name(plan, source)} offered is lost to {_name(plan, process)} ({type(error).__name__}): "
            "it ended, or its host did"
        ) from error
    return message


def _name(plan: TransferPlan, process: int) -> str:
    return f"process {process} (host {plan.hosts[process]})"
