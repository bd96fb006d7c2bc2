"""One rank of the learner, in a process of Ray's. Its constructor does nothing; see workers.py."""

import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import ray
from numpy.typing import NDArray
from torch import distributed

from earl.algorithms.base import Algorithm
from earl.batch import Batch
from earl.dispatch.plan import TransferPlan
from earl.dispatch.shard import Shard, empty
from earl.dispatch.transports import objects
from earl.dispatch.transports.rendezvous import Rendezvous, Sealed, fresh, opened
from earl.engine.learner import Update
from earl.engine.rank import sharded_learner
from earl.placement.cluster.begin import begun, joined
from earl.placement.cluster.carry import Carried, Given, give
from earl.placement.cluster.gives import Gives
from earl.placement.cluster.guarded import Lines, bounded, losing_others
from earl.placement.cluster.manifest import Manifest, Moved
from earl.placement.cluster.meeting import Meets, Said
from earl.recipe import build


class RankActor(Meets, Gives):
    """One rank of the learner."""

    _meets: Sealed | None = None
    """Where the ranks meet, on the first one."""

    def address(self, rank: int) -> Rendezvous | None:
        """Where the ranks meet, which the first one opens: this node's address, a free port, and a secret."""
        self._meets = None if rank else opened(fresh(ray.util.get_node_ip_address()))
        return self._meets.place if self._meets else None

    def devices(self) -> list[str]:
        """The GPUs that Ray gave this rank, as CUDA names them."""
        return [str(number) for number in ray.get_gpu_ids()]

    @losing_others
    def setup(
        self,
        recipe: Mapping[str, Any],
        source: str | None,
        rank: int,
        meeting: Rendezvous,
        carried: Sequence[Given] | None = None,
    ) -> None:
        """Join the other ranks and make the learner.

        Args:
            carried: what all ranks gave, to go on from; see `leave`.
        """
        config = build(recipe)
        self._coarse = config.learner.dtype == "bfloat16"
        self._rank = rank
        # Adapters are merged by all ranks together, and who plays on loads while the learner learns.
        self._drawn = not config.learner.lora_rank and not config.placement.max_staleness
        with Lines() as self._lines:
            mesh = joined(config, rank, meeting, self._meets)
        self._budget = self._budget or begun(config, f"learner rank {rank}")
        with self._budget.stage("start"):
            path = Path(source) if source else None
            self._learner = sharded_learner(config, mesh, path, Carried(carried) if carried is not None else None)
            self._sound = 0

    def leave(self) -> Given:
        """Leave the other ranks, and give what this one has of the learner's state, without asking them."""
        given = give(self._learner.carried(), self._learner.steps - self._sound)
        for held in ("_learner", "_stock", "_lockstep", "_rows", "_part", "_batch", "_corrected"):
            self.__dict__.pop(held, None)
        if distributed.is_initialized():
            distributed.destroy_process_group()
        gc.collect()  # modules and their hooks know each other
        return given

    @losing_others
    @bounded("dispatch")
    def take(self, manifest: Manifest, rank: int, references: Mapping[int, Any], checksums: bool) -> Moved | None:
        """Take this rank's rows of a step. The first one says what all of them were sent."""
        plan = manifest.plan()
        taken = objects.take(plan, rank, references, _nothing(plan, rank), checksums)
        self._rows, self._part = manifest.taken(taken["token"])
        return Moved.by(plan) if rank == 0 else None

    @bounded("dispatch")
    def exchange(self, manifest: Manifest, process: int, checksums: bool) -> Said:
        """Take this rank's rows of a step from those who give them. The first one says what all of them were sent."""
        plan = manifest.plan()
        said = self.exchanged(plan, process, _nothing(plan, process), checksums)
        if said.fault:
            return said
        self._rows, self._part = manifest.taken(said.result["token"])
        return Said(result=Moved.by(plan) if process == 0 else None)

    @losing_others
    @bounded("values")
    def turn_values(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The turns of its rows, and the value head's estimate before each."""
        return self._learner.turn_values(self._rows, self._part)

    @losing_others
    @bounded("preparation")
    def complete(self, advantages: NDArray[np.float32], returns: NDArray[np.float32], reference: bool) -> None:
        """Make the batch of its rows, with advantages and returns of all turns [K]."""
        self._sound = self._learner.steps
        self._batch = self._learner.complete(self._rows, advantages, returns, reference, self._part)

    @losing_others
    @bounded("scoring")
    def corrected(self, mode: Literal["token", "sequence"], cap: float) -> tuple[int, dict[str, float]]:
        """Correct the importance of its batch: how many tokens are learned, and means over them."""
        self._corrected, stats = self._learner.corrected(self._batch, mode, cap, self._part)
        return int(self._batch.mask.sum()), stats

    @losing_others
    @bounded("update")
    def update(self, corrected: bool, algorithm: Algorithm, update: Update) -> dict[str, float]:
        """Learn from the batch."""
        return self._learner.update(self._corrected if corrected else self._batch, algorithm, update, self._part)

    @losing_others
    @bounded("recording")
    def collected(self) -> tuple[NDArray[np.int64], Batch, NDArray[np.float32]]:
        """The numbers of its rows, its batch, and the log-probs [T] as they are now: for the record."""
        logprobs = self._learner.logprobs(self._batch, part=self._part)
        return self._part.numbers, self._batch, logprobs

    @losing_others
    @bounded("snapshot")
    def snapshot(self) -> None:
        """Copy this rank's part of a checkpoint, to be saved."""
        self._write: Callable[[Path], None] | None = self._learner.snapshot()

    @ray.method(concurrency_group="saving")  # type: ignore[untyped-decorator]
    def save(self, folder: str) -> None:
        """Write the snapshot, beside whatever the actor computes."""
        assert self._write is not None, "a snapshot is written once"
        self._write(Path(folder))
        self._write = None

    @losing_others
    @bounded("restoring")
    def restore(self, folder: str) -> None:
        """Continue from a checkpoint."""
        self._learner.restore(Path(folder))

    def rest(self) -> None:
        """Leave the device to others."""
        self._learner.offload()

    def wake(self) -> None:
        """Take the device again."""
        self._learner.reload()


def _nothing(plan: TransferPlan, process: int) -> list[Shard]:
    """What a process that only receives holds of a plan's legs."""
    return [empty(leg.source, process, plan.lengths, leg.axis, leg.columns) for leg in plan.legs]
