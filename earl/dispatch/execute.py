"""Carries out a row transfer plan in one process, over any transport.

For each hop: pack what each destination lacks, exchange, unpack. Hop 0 goes across hosts, hop 1 inside them. With
checksums, nothing is applied before all messages of a hop have arrived intact.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.plan import Pieces, TransferPlan
from earl.dispatch.rows import Numbers, Shard, empty
from earl.dispatch.transports.base import CHECKSUM_BYTES, Bytes, Corrupted, Transport, intact, pack, seal, unpack

TRIES = 3


def execute(plan: TransferPlan, process: int, held: Shard, transport: Transport, checksums: bool = False) -> Shard:
    """Send what the plan takes from this process; return its rows of the target.

    Args:
        held: the rows of the source that the process holds.
        checksums: verify every message; all processes repeat an exchange in which one was damaged.

    Raises:
        Corrupted: on every process, when messages arrive damaged `TRIES` times.
        ProcessLost, Late: on every process, when another one fails.
    """
    target = empty(plan.target, process, plan.lengths, plan.columns)
    keep(plan, process, held, target)
    for hop in plan.hops:
        pieces = plan.of(process, hop)
        going = _by(pieces, pieces.destination, process)
        outgoing = {other: pack(own, plan.columns, target if hop else held) for other, own in going.items()}
        if checksums:
            came = _checked(plan, process, transport, outgoing, plan.sizes[hop])
        else:
            came = transport.exchange(outgoing, plan.sizes[hop])
            transport.most(0)
        for other, own in _by(pieces, pieces.source, process).items():
            unpack(came[other], own, plan.columns, target)
    return target


def keep(plan: TransferPlan, process: int, held: Shard, target: Shard) -> None:
    """Copy the rows that stay on this process into its target."""
    pieces = plan.pieces
    kept = pieces.where((pieces.source == process) & (pieces.destination == process))
    unpack(pack(kept, plan.columns, held), kept, plan.columns, target)


def _by(pieces: Pieces, others: NDArray[np.int64], process: int) -> dict[int, Pieces]:
    elsewhere = np.unique(others[others != process]).tolist()
    return {other: pieces.where(others == other) for other in elsewhere}


def _checked(
    plan: TransferPlan, process: int, transport: Transport, outgoing: Mapping[int, Bytes], sizes: Numbers
) -> Mapping[int, Bytes]:
    """Exchange until no process has received damaged messages, at most `TRIES` times."""
    sealed = {other: seal(message) for other, message in outgoing.items()}
    for _ in range(TRIES):
        came = transport.exchange(sealed, sizes + CHECKSUM_BYTES * (sizes > 0))
        damaged = [source for source, message in came.items() if not intact(message)]
        # Encode sender and receiver as one number, so that all processes agree on one pair.
        worst = transport.most(1 + damaged[0] * len(plan.hosts) + process if damaged else 0)
        if not worst:
            return {source: message[:-CHECKSUM_BYTES] for source, message in came.items()}
    source, to = divmod(worst - 1, len(plan.hosts))
    raise Corrupted(
        f"what process {source} (host {plan.hosts[source]}) sent to process {to} (host {plan.hosts[to]}) arrived "
        f"damaged {TRIES} times: its checksum differs; look at the network and the memory of both hosts"
    )
