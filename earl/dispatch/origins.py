"""A plan without second hops: whoever would get a range from a neighbour on its host gets it from its producer.

For transports that give all processes of a host one message: Ray's object store.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.plan import Pieces, TransferPlan
from earl.dispatch.routes import INSIDE
from earl.dispatch.spread import Numbers


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
