"""One rank of the learner, as a Ray actor. Its constructor does nothing; see `rollout_actor.py`."""

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
from earl.dispatch.rows import Shard, empty
from earl.dispatch.transports import objects
from earl.dispatch.transports.rendezvous import Rendezvous
from earl.engine.learner import Learner, Update
from earl.engine.sampler import Probe, probe_rows, probe_tokens
from earl.placement.ray.actor_setup import Alive, Lines, begun, joined, losing_others, sharded_learner, stage
from earl.placement.ray.exchange_member import CallResult, ExchangeMember, Manifest, traffic
from earl.placement.ray.reshard import Carried, Given, give
from earl.placement.ray.weight_sync import BucketBarrier, BucketStore, WeightManifest, manifest_of
from earl.recipe import build


class WeightServer(Alive):
    """An actor that holds a part of the learner's weights, and serves it to samplers while the learner waits."""

    _learner: Learner
    _rank: int
    _coarse: bool  # whether it computes in bfloat16

    @stage("weights")
    def weights(self, readers: int, checksums: bool) -> tuple[WeightManifest, Probe]:
        """Serve the present weights to `readers` processes; returns their manifest, and a probe. checksums: whether
        readers verify what they load."""
        state, held = self._learner.state, self._learner.state.held()
        tokens = probe_tokens(self._learner.vocab)
        logprobs = self._learner.logprobs(probe_rows(tokens), temperature=1.0)
        manifest = manifest_of(held)
        # Adapters are merged by all ranks together, so only now; other tensors may move to host memory meanwhile.
        source = (lambda: held) if state.adapted else state.held
        self._buckets = BucketStore(source, self._rank, manifest, readers, checksums)
        self._barrier = BucketBarrier(readers)
        return manifest, Probe(tokens, logprobs[1:].tolist(), self._coarse)

    def come(self, reader: str, bucket: int) -> bool:
        """Whether a reader may have a bucket now; called on the first rank."""
        return self._barrier.come(reader, bucket)

    @stage("weights")
    def bucket(self, number: int, again: bool = False) -> list[Any]:
        """A reference to a bucket of the present weights, packed anew if `again`; None where this rank gives
        nothing."""
        return [self._buckets.bucket(number, again)]

    def leave_barrier(self, reader: str) -> None:
        self._barrier.leave(reader)
        self._buckets.leave()


class LearnerActor(ExchangeMember, WeightServer):
    @losing_others
    def setup(
        self,
        recipe: Mapping[str, Any],
        source: str | None,
        rank: int,
        meeting: Rendezvous,
        carried: Sequence[Given] | None = None,
    ) -> None:
        """Join the other ranks and make the learner. carried: all ranks' state to continue from; see `leave`."""
        config = build(recipe)
        self._coarse = config.learner.dtype == "bfloat16"
        self._rank = rank
        with Lines() as self._lines:
            mesh = joined(config, rank, meeting, self._meets)
        self._budget = self._budget or begun(config, f"learner rank {rank}")
        with self._budget.stage("start"):
            self._learner = sharded_learner(config, mesh, source, Carried(carried) if carried is not None else None)
            self._sound = 0

    def leave(self) -> Given:
        """Leave the other ranks, and give this rank's part of the learner's state; needs no other rank."""
        given = give(self._learner.state.carried(), self._learner.state.steps - self._sound)
        for held in ("_learner", "_buckets", "_barrier", "_rows", "_part", "_batch", "_corrected"):
            self.__dict__.pop(held, None)
        if distributed.is_initialized():
            distributed.destroy_process_group()
        gc.collect()  # modules and hooks form reference cycles
        return given

    @stage("dispatch")
    def take(self, manifest: Manifest, rank: int, references: Mapping[int, Any], checksums: bool) -> dict[str, float]:
        """Take this rank's rows of a step from the object store. Returns the costs, on the first rank alone."""
        plan = manifest.plan()
        taken = objects.take(plan, rank, references, _nothing(plan, rank), checksums)
        self._rows, self._part = manifest.taken(taken)
        return traffic(plan) if rank == 0 else {}

    @stage("dispatch")
    def exchange(self, manifest: Manifest, process: int, checksums: bool) -> CallResult:
        """Take this rank's rows of a step by the row exchange. Its result is as that of `take`."""
        plan = manifest.plan()
        said = self.exchanged(plan, process, _nothing(plan, process), checksums)
        if said.fault:
            return said
        self._rows, self._part = manifest.taken(said.result)
        return CallResult(result=traffic(plan) if process == 0 else {})

    @stage("values")
    def turn_values(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        return self._learner.turn_values(self._rows, self._part)

    @stage("preparation")
    def complete(self, advantages: NDArray[np.float32], returns: NDArray[np.float32], reference: bool) -> None:
        """Make the batch of its rows, with advantages and returns of all turns [K]."""
        self._sound = self._learner.state.steps
        self._batch = self._learner.complete(self._rows, advantages, returns, reference, self._part)

    @stage("scoring")
    def corrected(self, mode: Literal["token", "sequence"], cap: float) -> tuple[int, dict[str, float]]:
        """Correct the importance of its batch; returns the number of trained tokens, and means over them."""
        self._corrected, stats = self._learner.corrected(self._batch, mode, cap, self._part)
        return int(self._batch.mask.sum()), stats

    @stage("update")
    def update(self, corrected: bool, algorithm: Algorithm, update: Update) -> dict[str, float]:
        return self._learner.update(self._corrected if corrected else self._batch, algorithm, update, self._part)

    @stage("recording")
    def collected(self) -> tuple[NDArray[np.int64], Batch, NDArray[np.float32]]:
        """The numbers of its rows, its batch, and the current log-probs [T], to be recorded."""
        logprobs = self._learner.logprobs(self._batch, part=self._part)
        return self._part.numbers, self._batch, logprobs

    @stage("snapshot")
    def snapshot(self) -> None:
        self._write: Callable[[Path], None] | None = self._learner.snapshot()

    @ray.method(concurrency_group="saving")  # type: ignore[untyped-decorator]
    def save(self, folder: str) -> None:
        """Write the snapshot, while the actor computes."""
        assert self._write is not None, "a snapshot is written once"
        self._write(Path(folder))
        self._write = None

    @stage("restoring")
    def restore(self, folder: str) -> None:
        self._learner.restore(Path(folder))

    def rest(self) -> None:
        self._learner.state.move(hosted=True)

    def wake(self) -> None:
        self._learner.state.move(hosted=False)


def _nothing(plan: TransferPlan, process: int) -> Shard:
    """The empty shard of a process that only receives."""
    return empty(plan.source, process, plan.lengths, plan.columns)
