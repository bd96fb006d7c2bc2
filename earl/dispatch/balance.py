"""Which consumer gets which row, so that all have the same work, and rows stay where they are when that costs nothing.

Longest first, each to the consumer with the least work (LPT: at most 4/3 of the best there is, and close to it where
rows are many).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.rows import Numbers
from earl.parallel.memory import ModelShape

SLACK = 0.02
"""By how much more than the mean a consumer's work may become for the sake of rows that lie there already."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a row costs its consumer: linear in its tokens but for attention, which grows with their square.

    Example:
        Work(per_token=1.0, per_pair=1 / 8192)   # at 8,192 tokens attention costs as much as all the rest
    """

    per_token: float = 1.0
    per_pair: float = 0.0

    def of(self, lengths: Numbers) -> NDArray[np.float64]:
        """Of each row, [N]."""
        return self.per_token * lengths + self.per_pair * lengths.astype(np.float64) ** 2


def work_of(shape: ModelShape) -> Work:
    """Floating-point operations of forward and backward passes of a dense model (Kaplan et al., arXiv 2001.08361).

    6 per parameter and token, and 6 per attended pair, layer and number of a query: half of the pairs are masked.
    """
    return Work(6.0 * shape.parameters, 6.0 * shape.layers * shape.heads * shape.head_dim)


def balance(work: NDArray[np.float64], parts: int, here: Numbers | None = None) -> Numbers:
    """The part of each row, [N].

    Args:
        work: of each row, [N].
        here: the part where a row lies already, -1 for none, [N].

    Example:
        >>> balance(np.array([5.0, 9.0, 4.0, 2.0]), 2).tolist()   # 9 + 2 and 5 + 4
        [1, 0, 1, 0]
    """
    loads = np.zeros(parts)
    most = (1 + SLACK) * work.sum() / parts
    dealt = np.zeros(len(work), np.int64)
    for row in np.argsort(-work, kind="stable").tolist():
        own = -1 if here is None else int(here[row])
        if own < 0 or loads[own] + work[row] > most:
            own = int(loads.argmin())
        dealt[row] = own
        loads[own] += work[row]
    return dealt


def even_counts(rows: int, parts: int) -> Numbers:
    """What single controllers do: consecutive chunks of equally many rows, [N]."""
    return np.arange(rows) * parts // max(rows, 1)


def excess(work: NDArray[np.float64], dealt: Numbers, parts: int) -> float:
    """By how much the slowest consumer has more work than the mean: 0.05 for 5 %."""
    loads = np.bincount(dealt, weights=work, minlength=parts)
    return float(loads.max() / loads.mean() - 1) if loads.any() else 0.0
