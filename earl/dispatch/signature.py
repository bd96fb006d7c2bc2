"""What makes two transfers the same: their lengths, layouts, columns and hosts. Plans are kept by it."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from earl.dispatch.segments import Leg
from earl.dispatch.spread import Numbers, Spread


def signature(lengths: Numbers, legs: Sequence[Leg], target: Spread, hosts: Numbers) -> bytes:
    """The same for two transfers only if one plan serves both: 16 bytes."""
    digest = blake2b(repr([leg.columns for leg in legs]).encode(), digest_size=16)
    spreads = [target, *(leg.source for leg in legs)]
    for array in (lengths, hosts, *(own for spread in spreads for own in (spread.processes, spread.parts))):
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
