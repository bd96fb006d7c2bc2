"""Permutations of hosts that together carry a load: pure.

Filled up by made-up bytes, every host sends and gets as much as the busiest one; whatever is left then is a sum of
permutations (Birkhoff 1946), so that there is always one more, and all together take as long as the busiest link.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.spread import Numbers

SHORTEST = 1 / 12
"""Of what the busiest host has for each of the others on average: what is shorter is not worth a message of its own."""
STEP = 0.95
"""How much shorter the shortest piece of a permutation may be each time that none of longer ones is left."""

Permutation = tuple[Numbers, float]
"""Whom each host sends to, and how many bytes at least each of them has for the other, made-up ones included."""


def permutations(load: Numbers) -> Iterator[Permutation]:
    """Long ones first, until what is left is short.

    Args:
        load: [H, H], bytes from each host to each other one.
    """
    busiest = int(max(load.sum(axis=0).max(initial=0), load.sum(axis=1).max(initial=0)))
    full = _filled_up(load, busiest)
    longest = float(full.max(initial=0))
    while longest > busiest / len(load) * SHORTEST:
        to = _permutation(full, longest)
        if to is None:
            longest *= STEP
            continue
        chosen = np.arange(len(load)), to
        size = float(full[chosen].min())
        full[chosen] -= size
        yield to, size


def _filled_up(load: Numbers, busiest: int) -> NDArray[np.float64]:
    """With made-up bytes, so that all rows and columns have the same sum."""
    sends, gets = busiest - load.sum(axis=1), busiest - load.sum(axis=0)
    missing = int(sends.sum())
    return load + np.outer(sends, gets) / missing if missing else load.astype(np.float64)


def _permutation(full: NDArray[np.float64], least: float) -> Numbers | None:
    """Whom each host may send at least so much to, all to different ones; None where there is no such permutation."""
    hosts = len(full)
    longest_first = np.argsort(-full, axis=1, kind="stable")
    counts = (full >= least).sum(axis=1)
    offered = [longest_first[host, : counts[host]].tolist() for host in range(hosts)]
    sender = [-1] * hosts
    if not all(_placed(host, offered, sender, set()) for host in range(hosts)):
        return None
    return np.argsort(sender)


def _placed(host: int, offered: list[list[int]], sender: list[int], seen: set[int]) -> bool:
    """Find somebody for a host, and somebody else for whoever is in its way."""
    for other in offered[host]:
        if other in seen:
            continue
        seen.add(other)
        if sender[other] < 0 or _placed(sender[other], offered, sender, seen):
            sender[other] = host
            return True
    return False
