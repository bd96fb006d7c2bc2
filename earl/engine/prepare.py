"""Experience preparation, as far as the learner's model is needed for it. The rows are prepared where they lie."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.correction import corrected
from earl.batch import Batch, Rows
from earl.config import Config
from earl.engine.part import Part
from earl.errors import EarlError, OutOfMemory
from earl.rollout.pack import complete


class Prepares(ABC):
    """What a learner makes of rows before it learns from them. With a `part`, of those that are in this process."""

    costs: Mapping[str, float] = MappingProxyType({})
    """Of getting rows to where they are learned from: none, they are here."""
    given: Mapping[str, float] = MappingProxyType({})
    """Of giving weights to samplers: none, they are here too."""

    @abstractmethod
    def logprobs(
        self, rows: Rows, reference: bool = False, temperature: float | None = None, part: Part | None = None
    ) -> NDArray[np.float32]:
        """Log-probs [T] of the targets at rows.mask."""

    @abstractmethod
    def values(self, rows: Rows, part: Part | None = None) -> NDArray[np.float32]:
        """The value head's estimates [T] at rows.value_mask."""

    def relayout(self, config: Config, after: OutOfMemory | None = None) -> None:  # noqa: ARG002
        """Raises EarlError: one that shares its processes with the players has no other layout."""
        raise after or EarlError("an embedded learner has one layout; use placement.kind = 'colocated'")

    def peaks(self) -> Mapping[str, float]:
        """Not counted: players take of the same process."""
        return {}

    def take(self, rows: Rows, seed: int, minibatches: int) -> Rows:  # noqa: ARG002
        """The rows as the other methods want them: they are here already."""
        return rows

    def turn_values(self, rows: Rows, part: Part | None = None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The turns of the rows, and the value head's estimate before each."""
        return rows.turns[rows.value_mask], self.values(rows, part)[rows.value_mask]

    def complete(
        self,
        rows: Rows,
        advantages: NDArray[np.float32],
        returns: NDArray[np.float32],
        reference: bool,
        part: Part | None = None,
    ) -> Batch:
        """The batch of `rows`.

        Args:
            advantages: of all turns of the step, [K], as are the returns.
            reference: whether log-probs of the reference model are read.
        """
        return complete(
            rows, advantages, returns, self.logprobs(rows, reference=True, part=part) if reference else None
        )

    def corrected(
        self, batch: Batch, mode: Literal["token", "sequence"], cap: float, part: Part | None = None
    ) -> tuple[Batch, dict[str, float]]:
        """The batch with its importance corrected, and what was corrected; see `earl.algorithms.correction`."""
        return corrected(batch, self.logprobs(batch, part=part), mode, cap)

    def collected(self, batch: Batch) -> tuple[Batch, NDArray[np.float32]]:
        """The whole batch, to be written down, and its log-probs [T] as they are now."""
        return batch, self.logprobs(batch)
