"""The learner of a cluster, as the stages see it: every call goes to all ranks, whose results are combined."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import ray
from numpy.typing import NDArray

from earl.algorithms.base import Algorithm
from earl.batch import Batch
from earl.config import Config
from earl.engine.learner import Update
from earl.engine.sampler import Probe
from earl.errors import OutOfMemory
from earl.parallel.layout import Layout
from earl.placement.peers import WorkerLost
from earl.placement.ray.actor_group import ActorGroup, ActorOwner, ask_all, method
from earl.placement.ray.exchange_member import EpisodeTable
from earl.placement.ray.reshard import Given
from earl.placement.ray.row_exchange import RowDispatcher, hosts_of
from earl.placement.ray.weight_sync import WeightSource, sync_metrics
from earl.placement.rollout_backend import most


@dataclass(frozen=True, slots=True)
class Taken:
    """A handle of the rows, or the batch, that the ranks hold."""

    corrected: bool = False


class LearnerGroup:
    """The ranks of a learner, each with its dispatched rows; ranks of a tp or cp group have the same rows. Every method
    raises WorkerLost when a rank is dead or hangs: unsaved state is lost with it."""

    def __init__(self, crew: ActorGroup, keeper: ActorOwner, dispatcher: RowDispatcher) -> None:
        self._crew, self._keeper, self._dispatcher = crew, keeper, dispatcher
        self.costs: Mapping[str, float] = {}
        self.given: Mapping[str, float] = {}

    def relayout(self, config: Config, after: OutOfMemory | None = None) -> None:
        """Change to a recipe's layout in place: processes stay and exchange the learner's state; dispatched rows are
        dropped. Raises WorkerLost when this is impossible, as when memory ran out (`after`) in the middle of an update;
        `mend` then continues from the last checkpoint, with the new layout."""
        self._dispatcher.layout = rows_of(config)
        self._keeper.keep(config)
        if after and after.stuck:
            raise WorkerLost(f"{after}, and others wait for it")
        self._keeper.turn(self._crew)
        given: list[Given] = ask_all(self._crew, "leaving", method("leave"))
        steps = {own.steps for own in given}
        if len(steps) > 1 or (after and after.stage == "update" and steps != {0}):
            raise WorkerLost(f"{after}, in the middle of what it had begun to learn")
        self._keeper.rejoin(config, given)

    def peaks(self) -> dict[str, float]:
        return most(ask_all(self._crew, "peaks", method("peaks")))

    def take(self, rows: EpisodeTable, seed: int, minibatches: int) -> Taken:
        self.costs = self._dispatcher.send(rows, seed, minibatches)
        return Taken()

    def turn_values(self, rows: Taken) -> tuple[NDArray[np.int32], NDArray[np.float32]]:  # noqa: ARG002
        parts = self._parts("values", "turn_values")
        return np.concatenate([turns for turns, _ in parts]), np.concatenate([values for _, values in parts])

    def complete(
        self, rows: Taken, advantages: NDArray[np.float32], returns: NDArray[np.float32], reference: bool
    ) -> Taken:
        """Make the batch: advantages and returns [K] are scalars by turn, and spread over tokens by the ranks."""
        self._parts("preparation", "complete", ray.put(advantages), ray.put(returns), reference)
        return rows

    def corrected(self, batch: Taken, mode: Literal["token", "sequence"], cap: float) -> tuple[Taken, dict[str, float]]:
        """The batch with importance correction, and its statistics: means over all trained tokens."""
        return replace(batch, corrected=True), _mean(self._parts("scoring", "corrected", mode, cap))

    def update(self, batch: Taken, algorithm: Algorithm, update: Update) -> dict[str, float]:
        stats: dict[str, float] = self._parts("update", "update", batch.corrected, algorithm, update)[0]
        return stats

    def collected(self, batch: Taken) -> tuple[Batch, NDArray[np.float32]]:  # noqa: ARG002
        parts = self._parts("recording", "collected")
        whole = Batch.joined([part for _, part, _ in parts])
        ranked = replace(whole, reference=np.concatenate([logprobs for _, _, logprobs in parts]))
        order = np.argsort(np.concatenate([numbers for numbers, _, _ in parts]))
        return whole.select(order), ranked.select(order).reference

    def weights(self) -> tuple[WeightSource, Probe]:
        """Handles of the weights, which stay with the ranks, and a probe of them."""
        loading, checksums = self._dispatcher.workers.loading, self._dispatcher.settings.checksums
        manifest, probe = self._all("weights", "weights", len(loading.crew), checksums)[0]
        hosts, ranks = hosts_of([*self._crew.members, *loading.members]).tolist(), len(self._crew)
        self.given = sync_metrics(manifest, tuple(hosts[:ranks]), tuple(hosts[ranks:]))
        return WeightSource(manifest, tuple(member.actor for member in self._crew.members), checksums), probe

    def snapshot(self) -> Callable[[Path], None]:
        """Let every rank copy its part; the result lets every rank write it, while they go on."""
        self._parts("snapshot", "snapshot")
        return self._save

    def _save(self, folder: Path) -> None:
        name = str(folder.resolve())
        ask_all(self._crew, "saving", method("save", name))

    def restore(self, folder: Path) -> None:
        self._parts("restoring", "restore", str(folder.resolve()))

    def _parts(self, stage: str, name: str, *arguments: Any) -> list[Any]:
        """The results of all ranks, one per group with the same rows."""
        return self._all(stage, name, *arguments)[:: self._dispatcher.layout.tp]

    def _all(self, stage: str, name: str, *arguments: Any) -> list[Any]:
        self._keeper.turn(self._crew)
        return ask_all(self._crew, stage, method(name, *arguments))


def rows_of(config: Config) -> Layout:
    """Rows are dispatched whole to all ranks of a tp and a cp group, which share the work on them."""
    return Layout(config.placement.dp, config.placement.tp * config.placement.cp)


def _mean(parts: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """The mean of each statistic. parts: trained tokens, and means over them."""
    known = [(count, stats) for count, stats in parts if stats]
    total = sum(count for count, _ in known)
    return {name: sum(count * stats[name] for count, stats in known) / total for name in (known[0][1] if known else ())}
