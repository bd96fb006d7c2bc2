"""The learner of a cluster, as the stages see it: every call goes to all ranks, who answer as one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from earl.algorithms.base import Algorithm
from earl.batch import Batch, Rows
from earl.engine.learner import Update
from earl.placement.cluster.crew import Call, Crew, Keeper
from earl.placement.peers import Lost


class Ranks:
    """The ranks of a learner.

    Every rank is given the same rows and takes its share. What they have in common is read from the first.

    Raises:
        Lost: from every method, when a rank has died or hangs: all that was not saved is lost with it.
    """

    def __init__(self, crew: Crew, keeper: Keeper) -> None:
        self._crew, self._keeper = crew, keeper

    def update(self, batch: Batch, algorithm: Algorithm, update: Update) -> dict[str, float]:
        """Learn from a batch; the mean of each statistic."""
        stats: dict[str, float] = self._first("update", "update", ray.put(batch), algorithm, update)
        return stats

    def logprobs(self, rows: Rows, reference: bool = False) -> NDArray[np.float32]:
        """Log-probs [T] of the targets at rows.mask."""
        logprobs: NDArray[np.float32] = self._first("scoring", "logprobs", ray.put(rows), reference)
        return logprobs

    def values(self, rows: Rows) -> NDArray[np.float32]:
        """The value head's estimates [T] at rows.value_mask."""
        values: NDArray[np.float32] = self._first("values", "values", ray.put(rows))
        return values

    def weights(self) -> Any:
        """A reference to the weights, which lie with the first rank and do not come here, and a probe of them."""
        return self._first("weights", "weights")

    def snapshot(self) -> Callable[[Path], None]:
        """Let every rank copy its part; the result lets every rank write it, whatever else they do meanwhile."""
        self._first("snapshot", "snapshot")
        return self._save

    def _save(self, folder: Path) -> None:
        name = str(folder.resolve())
        ask_all(self._crew, "saving", lambda actor, _: actor.save.remote(name))

    def restore(self, folder: Path) -> None:
        """Let every rank read its part."""
        self._first("restoring", "restore", str(folder.resolve()))

    def _first(self, stage: str, method: str, *arguments: Any) -> Any:
        self._keeper.turn(self._crew)
        return ask_all(self._crew, stage, lambda actor, _: getattr(actor, method).remote(*arguments))[0]


def ask_all(crew: Crew, stage: str, call: Call) -> list[Any]:
    """Every rank's answer. Raises Lost when one gives none."""
    answers = crew.ask(stage, call, range(len(crew)))
    if answers.lost:
        raise Lost(f"{'; '.join(answers.lost.values())} during {stage}")
    return [answers.results[number] for number in range(len(crew))]
