"""What it takes to give weights to samplers, in bytes: who has to get what from where of what lies in object stores."""

from functools import lru_cache

import numpy as np

from earl.dispatch.copies import Copies
from earl.placement.cluster.described import Described


def given(described: Described, ranks: tuple[int, ...], samplers: tuple[int, ...]) -> dict[str, float]:
    """Bytes that samplers load, those of them that go between hosts, and their ratio to the fewest that have to.

    A host's object store fetches an object once, however many samplers are there.

    Args:
        ranks: the host of each learner rank, as of each sampler.
    """
    plan = described.plan
    by_rank = np.bincount(plan.ways.source, weights=plan.size, minlength=len(ranks))
    reached = np.unique(samplers)
    across = sum(float(by_rank[np.asarray(ranks) != host].sum()) for host in reached)
    bound = _least(described, ranks, samplers)
    return {
        "weights/bytes": float(plan.size.sum()) * len(samplers),
        "weights/bytes_across": across,
        "weights/bytes_least": float(bound),
        "weights/ratio": across / bound if bound else 1.0,
    }


@lru_cache(maxsize=4)
def _least(described: Described, ranks: tuple[int, ...], samplers: tuple[int, ...]) -> int:
    """Bytes that hosts of samplers need and none of their ranks has, once into each."""
    copies, bound = Copies(described.layout, (tuple(range(len(ranks))),)), 0
    for weight in described.weights:
        boxes = copies.boxes(weight.shape, weight.given)  # that ranks have are the same, or do not overlap
        for host in set(samplers):
            lacked = sum(box.numbers for box, having in boxes.items() if host not in {ranks[rank] for rank in having})
            bound += lacked * weight.number_bytes
    return bound
