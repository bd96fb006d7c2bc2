"""What has to be known of a learner's weights to find them in what its ranks give: shapes, types, and the plan."""

from dataclasses import dataclass
from functools import lru_cache

from earl.dispatch.copies import Copies, Weight
from earl.dispatch.weights import WeightPlan, plan_weights
from earl.engine.keeping import Held
from earl.parallel.layout import Layout

BUCKET_BYTES = 1 << 28
"""What all ranks together pack at a time for a reader."""


@dataclass(frozen=True, slots=True)
class Described:
    """What has to be known of weights to find a tensor in what the ranks offer."""

    weights: tuple[Weight, ...]
    kinds: tuple[str, ...]
    """The type of each one's numbers, as torch calls it."""
    layout: Layout
    """Of the ranks."""
    bucket_bytes: int = BUCKET_BYTES

    @property
    def plan(self) -> WeightPlan:
        """To one process that needs all of them, behind the ranks."""
        return _plan(self.weights, self.layout, self.bucket_bytes)


def described(held: Held, bucket_bytes: int = BUCKET_BYTES) -> Described:
    """What every rank says alike."""
    parts = held.parts.items()
    weights = (Weight(name, part.shape, part.numbers.itemsize, held.axes[name]) for name, part in parts)
    kinds = (str(part.numbers.dtype).removeprefix("torch.") for _, part in parts)
    return Described(tuple(weights), tuple(kinds), held.layout, bucket_bytes)


@lru_cache(maxsize=4)
def _plan(weights: tuple[Weight, ...], layout: Layout, bucket_bytes: int) -> WeightPlan:
    ranks, reader = tuple(range(layout.size)), layout.size
    source, target = Copies(layout, (ranks,)), Copies(Layout(), ((reader,),))
    return plan_weights(weights, source, target, [0] * (layout.size + 1), bucket_bytes)
