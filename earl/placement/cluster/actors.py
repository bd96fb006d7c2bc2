"""What runs inside Ray's processes. Constructors do nothing, so that heartbeats are answered while models load."""

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import distributed

from earl.algorithms.base import Algorithm
from earl.batch import Batch
from earl.config import Config
from earl.dispatch.plan import TransferPlan
from earl.dispatch.shard import Shard, empty
from earl.dispatch.transports import objects
from earl.engine.learner import Update
from earl.engine.model import Policy, outline
from earl.engine.probe import Probe, probe_rows, probe_tokens
from earl.engine.rank import join, sharded_learner
from earl.engine.sampler import Closes
from earl.engine.samplers import make_sampler, split_of
from earl.engine.sharding.band import Band, Meeting, listening
from earl.engine.sharding.mesh import Mesh
from earl.engine.split import SplitSampler
from earl.evaluate import Match
from earl.parallel.layout import Layout
from earl.placement.ahead import Ticket
from earl.placement.cluster.budget import Budget, thin_threads
from earl.placement.cluster.carry import Carried, Given, give
from earl.placement.cluster.guarded import Alive, Lines, bounded, losing_others, together
from earl.placement.cluster.manifest import Manifest, Moved
from earl.placement.cluster.meeting import Meets, Said
from earl.placement.cluster.network import free_port, interface_of
from earl.placement.cluster.offer import Described, Offered, described, offer
from earl.placement.cluster.stock import Drawn, Stock
from earl.placement.continuous import ContinuousFragment
from earl.placement.fragment import RolloutFragment
from earl.placement.holdings import Holdings, RowTable
from earl.recipe import build
from earl.rollout.invented import Invention
from earl.runs.records import matches_to_bytes
from earl.runs.trajectories import from_bytes, to_bytes
from earl.trajectory import GroupOf, Outline, Task

WARM_BYTES = 1 << 23
"""Of an object that Ray copies by several threads."""
WARM_WIDTH = 256
"""Of a product for which libraries take their buffers."""


class Plays(Meets, Alive):
    """An actor that holds a rollout fragment, and what was played with it until it has been learned from."""

    _fragment: RolloutFragment
    _holdings: Holdings

    _split: SplitSampler | None = None
    """Where its copy of the sampler is split over several actors, its part."""

    def limit(self, tokens: int) -> None:
        """Set the context limit of the episodes to come."""
        self._fragment.limit(tokens)

    @together("rollout")
    def play(
        self, step: int, tasks: Mapping[int, Task], seed: int
    ) -> tuple[dict[Ticket, GroupOf[Outline]], Mapping[str, float]]:
        """Play groups of a step, and keep them in place of those that were played of it before; and what it took, see
        `RolloutFragment.costs`."""
        self._holdings.forget(step)
        played = zip(tasks, self._fragment.play(step, tasks, seed), strict=True)
        kept = self._holdings.keep({Ticket(step, number): group for number, group in played})
        return kept, self._fragment.costs

    @together("demonstrations")
    def demonstrate(self, tasks: Mapping[int, Task], seed: int, limit: int) -> RowTable:
        """Play the teacher's episodes, and keep their rows."""
        return self._holdings.pack(*self._fragment.demonstrate(tasks, seed, limit))

    @together("rollout")
    def sample(self, invention: Invention, numbers: Sequence[int], seed: int) -> None:
        """Sample the replies of episodes that nobody plays."""
        self._fragment.sample(invention, numbers, seed)

    @together("rows")
    def invent(self, invention: Invention, numbers: Sequence[int], seed: int) -> RowTable:
        """Keep rows that nobody has played."""
        return self._holdings.pack(*self._fragment.invent(invention, numbers, seed))

    @together("rows")
    def table(self, step: int) -> RowTable:
        """The rows of what is learned from of a step, in numbers."""
        return self._holdings.table(step)

    @together("dispatch")
    def offer(self, manifest: Manifest, worker: int, checksums: bool) -> dict[int, Any]:
        """The rows of the last table, put into the object store once for every host that needs some; by host."""
        return objects.offer(manifest.plan(), manifest.layout.size + worker, self._shards(manifest, worker), checksums)

    @bounded("dispatch")
    def exchange(self, manifest: Manifest, process: int, checksums: bool) -> Said:
        """Give the rows of the last table to the ranks who need them."""
        shards = self._shards(manifest, process - manifest.layout.size)
        return Said(self.exchanged(manifest.plan(), process, shards, checksums).fault)

    def _shards(self, manifest: Manifest, worker: int) -> list[Shard]:
        return [self._holdings.shard(manifest.numbers(worker), manifest.table.columns)]

    @together("recording")
    def whole(self, tickets: Sequence[Ticket]) -> tuple[list[Ticket], bytes]:
        """Which of some groups are here, and these with their tokens; see `earl.runs.trajectories.to_bytes`."""
        found = self._holdings.whole(tickets)
        return [*found], to_bytes([*found.values()], 0)

    @together("evaluation")
    def evaluate(self, matches: Sequence[Match]) -> bytes:
        """Measure matches."""
        return matches_to_bytes(self._fragment.evaluate(matches))


class WorkerActor(Plays):
    """A rollout fragment with its sampler, in a process of its own."""

    _kind: type[RolloutFragment] = RolloutFragment
    _policy: Policy | None = None
    """Without weights: they come from the learner."""
    _meets: Any = None
    """Where the processes of its copy meet, on the first one."""

    def address(self) -> tuple[str, int]:
        """Where the processes of a copy meet whose first one this is; it listens from now on."""
        host = ray.util.get_node_ip_address()
        self._meets = listening(host)
        return host, self._meets.port

    @losing_others
    def setup(
        self, recipe: Mapping[str, Any], source: str | None, devices: Sequence[str], meeting: Meeting | None
    ) -> None:
        """Make the fragment, or give it another sampler: what there was of one is let go of first.

        Args:
            devices: the GPUs that it takes turns on with learner ranks; none: those that Ray gave it.
            meeting: where the actors of its copy meet; None: it has a whole copy.
        """
        show(devices)
        config = build(recipe)
        policy = self._policy = self._policy or outline_of(config, source)
        self._leave()
        self._budget = self._budget or begun(config)
        with Lines() as self._lines:
            band = joined_band(config, meeting, self._meets)
        sampler = make_sampler(config, policy, band)
        self._split = split_of(sampler)
        self._fragment = self._kind(config, policy.tokenizer, sampler)
        self._holdings = Holdings(config.context.learn_truncated)

    def _leave(self) -> None:
        """Let go of a sampler, before there is memory for another one."""
        self._split = None
        if hasattr(self, "_fragment"):
            if isinstance(self._fragment.sampler, Closes):
                self._fragment.sampler.close()
            del self._fragment

    @losing_others
    @bounded("weights")
    def load(self, weights: Offered | Drawn, probe: Probe, version: int) -> None:
        """Play with these weights from now on. Raises StaleWeights when the sampler does not compute with them."""
        self._fragment.load(weights.taken(), version, probe)
        self._holdings.drop(version)

    def rest(self) -> None:
        """Leave the device to others."""
        self._fragment.sampler.sleep()

    def wake(self) -> None:
        """Take the device again."""
        self._fragment.sampler.wake()


class ContinuousActor(WorkerActor):
    """A rollout fragment that plays on between calls, in a process of its own."""

    _kind = ContinuousFragment
    _fragment: ContinuousFragment

    def start(self, orders: Sequence[tuple[int, Mapping[int, Task], int, int]]) -> None:
        """Let groups begin: step, tasks by number, seed and context limit of each order."""
        for order in orders:
            self._fragment.start(*order)

    def ended(self, step: int, seconds: float) -> dict[Ticket, GroupOf[Outline]]:
        """The groups that have ended, which are kept; see `ContinuousFragment.ended`."""
        return self._holdings.keep(self._fragment.ended(step, seconds))

    def hold(self, tickets: Sequence[Ticket], groups: bytes) -> dict[Ticket, GroupOf[Outline]]:
        """Keep groups that were played before; see `whole`."""
        return self._holdings.keep(dict(zip(tickets, from_bytes(groups)[1], strict=True)))

    def abandon(self) -> None:
        """Forget all groups."""
        self._fragment.abandon()
        self._holdings.clear()


class RankActor(Meets, Alive):
    """One rank of the learner."""

    def address(self) -> tuple[str, int]:
        """Where the ranks meet: this node's address and a free port."""
        host = ray.util.get_node_ip_address()
        return host, free_port(host)

    def devices(self) -> list[str]:
        """The GPUs that Ray gave this rank, as CUDA names them."""
        return [str(number) for number in ray.get_gpu_ids()]

    @losing_others
    def setup(
        self,
        recipe: Mapping[str, Any],
        source: str | None,
        rank: int,
        meeting: tuple[str, int],
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
            mesh = joined(config, rank, meeting)
        self._budget = self._budget or begun(config, f"learner rank {rank}")
        with self._budget.stage("start"):
            path = Path(source) if source else None
            self._learner = sharded_learner(config, mesh, path, Carried(carried) if carried is not None else None)
            self._sound = 0

    def leave(self) -> Given:
        """Leave the other ranks, and give what this one has of the learner's state, without asking them."""
        given = give(self._learner.carried(), self._learner.steps - self._sound)
        for held in ("_learner", "_stock", "_rows", "_part", "_batch", "_corrected"):
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
    @bounded("weights")
    def weights(self, readers: int) -> tuple[list[Any] | None, Described, Probe]:
        """References to what this rank gives of the model's weights, by bucket; what they are, and a probe of them.

        No references: they are drawn from it, bucket by bucket, while it waits.

        Args:
            readers: how many processes will load them.
        """
        held = self._learner.held()
        tokens = probe_tokens(self._learner.vocab)
        logprobs = self._learner.logprobs(probe_rows(tokens), temperature=1.0)
        probe, known = Probe(tokens, logprobs[1:].tolist(), self._coarse), described(held)
        if self._drawn:
            self._stock = Stock(self._learner.held, self._rank, known, readers)
            return None, known, probe
        return offer(held, self._rank), known, probe

    @bounded("weights")
    def bucket(self, number: int) -> list[Any]:
        """A reference to a bucket of the weights as they are now."""
        return [self._stock.bucket(number)]

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


def show(devices: Sequence[str]) -> None:
    """Let this process compute on these GPUs; none: on those that Ray gave it."""
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)


def begun(config: Config, who: str = "") -> Budget:
    """The budget of a process that has begun: what Ray needs to copy large objects is there already, and the buffers
    that numpy and torch reserve for products."""
    if config.placement.memory_bytes is not None:
        thin_threads()
        ray.put(np.zeros(WARM_BYTES, np.uint8))
        square = np.ones((WARM_WIDTH, WARM_WIDTH), np.float32)
        torch.from_numpy(square @ square).mm(torch.from_numpy(square))
    return Budget(config.placement.memory_bytes, who)


def joined_band(config: Config, meeting: Meeting | None, place: Any) -> Band | None:
    """Join the other processes of a copy; None: there are none."""
    if meeting is None:
        return None
    torch.set_num_threads(1)  # processes share the cores
    os.environ["GLOO_SOCKET_IFNAME"] = interface_of(ray.util.get_node_ip_address()) or "lo"
    return Band(meeting, place, config.placement.stage_seconds)


def outline_of(config: Config, source: str | None) -> Policy:
    """The policy of a checkpoint, or the one that the recipe starts from, without weights: the learner gives them."""
    return outline(config.model.model_copy(update={"path": source}) if source else config.model)


def joined(config: Config, rank: int, meeting: tuple[str, int]) -> Mesh:
    """Meet the other ranks; they stay joined until they leave, or the process ends."""
    host, port = meeting
    os.environ["GLOO_SOCKET_IFNAME"] = interface_of(ray.util.get_node_ip_address()) or "lo"
    placement = config.placement
    device = "cuda:0" if torch.cuda.is_available() else "cpu"  # Ray shows a rank its own device alone
    return join(rank, Layout(placement.dp, placement.tp), host, port, device, placement.stage_seconds)
