"""The learner of a cluster: an actor for each rank, and their group as the stages see it.

State moves to another layout through Ray's object store: every rank puts its parts into the store of its host, the
driver passes references, and ranks of the new layout fetch the objects that their boxes overlap with. On one host the
store is shared memory: data is copied only into it and out of it.
"""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from earl.algorithms.base import Advantages, Algorithm
from earl.algorithms.loss import KlEstimator
from earl.batch import Batch, bundles
from earl.config import Config
from earl.dispatch.rows import Numbers, Work, empty_shard
from earl.dispatch.transports.peers import PeerTransport, join
from earl.dispatch.transports.rendezvous import Rendezvous, join_store, open_store
from earl.dispatch.weights import SentWeights, WeightManifest
from earl.documents import Fingerprints
from earl.engine.checkpoint_tensors import TensorPart
from earl.engine.learner import Learner, Update
from earl.engine.local import split_axes
from earl.engine.sampler import Probe, probe_rows, probe_tokens
from earl.engine.samplers import sampler_dtype
from earl.errors import EarlError, OutOfMemory
from earl.parallel.layout import Box, Layout
from earl.placement.episode_store import Counts
from earl.placement.peers import WorkerLost
from earl.placement.pipeline import most
from earl.placement.ray.actor_group import ActorGroup, Call, GroupOwner, ask_all, method
from earl.placement.ray.actor_setup import Actor, Connections, join_mesh, lost_peers, new_budget, sharded_learner, stage
from earl.placement.ray.rollout_workers import SamplerGroup
from earl.placement.ray.row_exchange import (
    MESSAGE_HEARTBEATS,
    TRIES,
    CallResult,
    EpisodeTable,
    ExchangeFailed,
    ExchangeMember,
    Manifest,
    call_result,
    hosts_of,
    row_device,
    shares,
    traffic,
)
from earl.placement.ray.weight_sync import BucketBarrier, BucketStore, WeightSource, manifest_of
from earl.recipe import build
from earl.rollout.pack import Estimates

OBJECT_BYTES = 1 << 24  # tensors are collected into objects of at most this size; a larger one gets its own
Reference = Any  # `ray.ObjectRef`; the type checker does not see Ray
Piece = tuple[str, Box, tuple[int, ...]]
"""A tensor's name, the box of the part, and the shape of the whole."""


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank's part of the learner's state, in Ray's object store."""

    pieces: tuple[tuple[Piece, ...], ...]  # by object, in its order
    references: tuple[Reference, ...]
    steps: int  # optimizer steps since its rows were prepared


def put_state(parts: Iterator[tuple[str, TensorPart]], steps: int) -> RankState:
    """Put a rank's parts into Ray's object store, which needs no memory of the process itself."""
    pieces: list[tuple[Piece, ...]] = []
    references = []
    for several in bundles(parts, lambda own: own[1].numbers.nbytes, OBJECT_BYTES):
        pieces.append(tuple((name, part.box, part.shape) for name, part in several))
        references.append(ray.put([part.numbers.cpu().numpy() for _, part in several]))
    return RankState(tuple(pieces), tuple(references), steps)


class CarriedState:
    """The state of all ranks, from which any part of any tensor can be read. It keeps the objects alive."""

    def __init__(self, given: Sequence[RankState]) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._places: dict[str, list[tuple[Reference, int, Box]]] = defaultdict(list)
        self._arrays: dict[Reference, list[Any]] = {}
        for own in given:
            for pieces, reference in zip(own.pieces, own.references, strict=True):
                for place, (name, box, shape) in enumerate(pieces):
                    self._places[name].append((reference, place, box))
                    self.shapes[name] = shape

    def read(self, name: str, wanted: Box) -> Tensor:
        """A part of a tensor. Raises EarlError when no rank gave it, and Ray's errors when its rank is gone."""
        result, found = torch.empty(wanted.shape), 0
        for reference, place, box in self._places[name]:
            if (common := box.common(wanted)) is not None:
                if reference not in self._arrays:
                    self._arrays[reference] = ray.get(reference)
                array = self._arrays[reference][place][common.inside(box)]
                result[common.inside(wanted)] = torch.from_numpy(np.array(array))  # Ray's arrays are read-only
                found += common.numbers
        if found != wanted.numbers:
            raise EarlError(f"no rank gave {name!r}, or a part of it, to the next layout; continue with --resume")
        return result


class WeightServer(Actor):
    """An actor that holds a part of the learner's weights, and serves it to samplers while the learner waits."""

    _learner: Learner
    _rank: int
    _sending: PeerTransport | None = None
    _coarse: bool  # whether it computes in bfloat16
    _sent_as: torch.dtype  # that of the samplers

    @stage("weights")
    def weights(self, readers: int, tp: int, checksums: bool) -> tuple[WeightManifest, Probe]:
        """Serve the present weights to `readers` processes; returns their manifest, and a probe. tp: processes that
        each sampler's weights are split over; checksums: whether readers verify what they load."""
        state, held = self._learner.state, self._learner.state.held()
        tokens = probe_tokens(self._learner.vocab)
        logprobs = self._learner.logprobs(probe_rows(tokens), temperature=1.0)
        split = split_axes(self._learner.scorer.model.config) if tp > 1 else {}
        manifest = manifest_of(held, dtype=self._sent_as, split=split, readers=tp)
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
        """References to this rank's messages of a bucket of the present weights, packed anew if `again`; see
        `BucketStore.bucket`."""
        return [*self._buckets.bucket(number, again)]

    def leave_barrier(self, reader: str) -> None:
        self._barrier.leave(reader)
        self._buckets.leave()

    # Sent straight to the workers of engines: see `WeightSender`.

    def weights_address(self) -> Rendezvous:
        self._weights_meet = open_store(Rendezvous(ray.util.get_node_ip_address()))
        return self._weights_meet.place

    def join_weights(self, where: Rendezvous, process: int, hosts: Numbers, seconds: float) -> CallResult:
        if self._sending:
            self._sending.close()
            self._sending = None

        def joined() -> None:
            self._sending_store, address = join_store(where), ray.util.get_node_ip_address()
            self._sending = join(self._sending_store, process, hosts, address, seconds, self._learner.scorer.device)

        return call_result(joined)

    @stage("weights")
    def send_weights(self, sent: SentWeights) -> CallResult:
        peers = self._sending
        assert peers is not None, "all have joined"

        def send() -> None:
            held = {name: part.numbers for name, part in self._buckets.held().parts.items()}
            for messages, sizes in zip(sent.messages(self._rank, held), sent.exchanges(), strict=True):
                peers.exchange(messages, sizes)

        return call_result(send)


class LearnerActor(ExchangeMember, WeightServer):
    @lost_peers
    def setup(
        self,
        recipe: Mapping[str, Any],
        source: str | None,
        rank: int,
        meeting: Rendezvous,
        carried: Sequence[RankState] | None = None,
    ) -> None:
        """Join the other ranks and make the learner. carried: all ranks' state to continue from; see `leave`."""
        config = build(recipe)
        self._coarse, self._sent_as = config.learner.dtype == "bfloat16", sampler_dtype(config)
        self._rank = rank
        with Connections() as self._connections:
            mesh = join_mesh(config, rank, meeting, self._meets)
        self._budget = self._budget or new_budget(config, f"learner rank {rank}")
        with self._budget.stage("start"):
            state = None if carried is None else CarriedState(carried)
            self._learner = sharded_learner(config, mesh, source, state)
            self._sound = 0

    def leave(self) -> RankState:
        """Leave the other ranks, and give this rank's part of the learner's state; needs no other rank."""
        given = put_state(self._learner.state.carried(), self._learner.state.steps - self._sound)
        for held in ("_learner", "_buckets", "_barrier", "_rows", "_part", "_batch"):
            self.__dict__.pop(held, None)
        if distributed.is_initialized():
            distributed.destroy_process_group()
        gc.collect()  # modules and hooks form reference cycles
        return given

    @stage("dispatch")
    def exchange(self, manifest: Manifest, process: int, checksums: bool) -> CallResult:
        """Take this rank's rows of a step from its peers. The result is the costs, on the first rank alone."""
        plan = manifest.plan()
        nothing = empty_shard(plan.source, process, plan.lengths, plan.columns)  # it only receives
        outcome = self.exchanged(plan, process, nothing, checksums)
        if not outcome.fault:
            self._rows, self._part = manifest.taken(outcome.result)
            outcome = CallResult(result=traffic(plan) if process == 0 else {})
        return outcome

    @stage("values")
    def turn_values(self, by_token: bool) -> Estimates:
        return self._learner.turn_values(self._rows, by_token, self._part)

    @stage("preparation")
    def divergences(self, estimator: KlEstimator) -> Estimates:
        return self._learner.divergences(self._rows, estimator, self._part)

    @stage("preparation")
    def complete(self, advantages: Advantages, reference: bool) -> None:
        """Make the batch of its rows, with advantages of all turns."""
        self._sound = self._learner.state.steps
        self._batch = self._learner.complete(self._rows, advantages, reference, self._part)

    @stage("update")
    def update(self, algorithm: Algorithm, update: Update) -> dict[str, float]:
        return self._learner.update(self._batch, algorithm, update, self._part)

    @stage("recording")
    def collected(self) -> tuple[NDArray[np.int64], Batch, NDArray[np.float32]]:
        """The numbers of its rows, its batch, and the current log-probs [T], to be recorded."""
        logprobs = self._learner.logprobs(self._batch, part=self._part)
        return self._part.numbers, self._batch, logprobs

    @stage("snapshot")
    def snapshot(self) -> None:
        self._write: Callable[[Path], Fingerprints] | None = self._learner.snapshot()

    @ray.method(concurrency_group="saving")  # type: ignore[untyped-decorator]
    def save(self, folder: str) -> Fingerprints:
        """Write the snapshot and hash its files, while the actor computes."""
        assert self._write is not None, "a snapshot is written once"
        written = self._write(Path(folder))
        self._write = None
        return written

    @stage("restoring")
    def restore(self, folder: str) -> None:
        self._learner.restore(Path(folder))

    def rest(self) -> None:
        self._learner.state.move(hosted=True)

    def wake(self) -> None:
        self._learner.state.move(hosted=False)


class LearnerGroup:
    """The ranks of a learner, each with its dispatched rows; ranks of a tp or cp group have the same rows. Every method
    raises WorkerLost when a rank is dead or hangs: unsaved state is lost with it. samplers: copies of a sampler, whose
    first processes hold the rows that they played; work: cost model of a row.

    Row holders and ranks form one torch.distributed group, kept from step to step and remade when a member was
    replaced. All of them are called at once: `enter`, then `exchange` with the manifest. A lost member is named and
    ended, so that the others need not wait; a failed exchange leaves no rows behind.
    """

    def __init__(self, group: ActorGroup, owner: GroupOwner, samplers: SamplerGroup, work: Work) -> None:
        self._group, self._owner, self._samplers, self._work = group, owner, samplers, work
        self._met: Sequence[tuple[str, int]] = ()  # nodes and processes of the group
        self.costs: Mapping[str, float] = {}

    @property
    def _layout(self) -> Layout:
        """Rows are dispatched whole to all ranks of a tp and a cp group, which share the work on them."""
        placement = self._owner.config.placement
        return Layout(placement.dp, placement.tp * placement.cp)

    def relayout(self, config: Config, after: OutOfMemory | None = None) -> None:
        """Change to a recipe's layout in place: processes stay and exchange the learner's state; dispatched rows are
        dropped. Raises WorkerLost when this is impossible, as when memory ran out (`after`) in the middle of an update;
        `mend` then continues from the last checkpoint, with the new layout."""
        self._owner.config = config
        if after and after.stuck:
            raise WorkerLost(f"{after}, and others wait for it")
        self._owner.turn(self._group)
        given: list[RankState] = ask_all(self._group, "leaving", method("leave"))
        steps = {own.steps for own in given}
        if len(steps) > 1 or (after and after.stage == "update" and steps != {0}):
            raise WorkerLost(f"{after}, in the middle of what it had begun to learn")
        self._owner.join_ranks(given)

    def peaks(self) -> dict[str, float]:
        return most(ask_all(self._group, "peaks", method("peaks")))

    def take(self, rows: EpisodeTable, seed: int, minibatches: int) -> EpisodeTable:
        """Send all rows of a step to the ranks; the table then stands for them, and later for the batch. seed,
        minibatches: of the update. Raises WorkerLost also when the rows do not arrive in `TRIES` attempts."""
        part = shares(rows, self._work, self._layout.dp, seed, minibatches)
        for _ in range(TRIES):
            try:
                self.costs = self._sent(rows, part)
                return rows
            except ExchangeFailed as error:
                self._owner.note("dispatch", f"{error}: sent again")
                fault = error
        raise WorkerLost(f"{fault}; this was tried {TRIES} times")

    def _sent(self, rows: EpisodeTable, part: Counts) -> Mapping[str, float]:
        """Send the rows once; returns the costs by metric name."""
        manifest = ray.put(Manifest(rows, part, self._layout, self._join()))
        checksums = self._owner.config.placement.checksums
        costs: Mapping[str, float] = self._together(
            lambda actor, process: actor.exchange.remote(manifest, process, checksums)
        )
        return costs

    def _join(self) -> Counts:
        """Make the group, unless it exists; returns the host of each process, [P]."""
        members = (*self._group.members, *self._samplers.members)
        hosts = hosts_of(members)
        present = [(member.node, member.process) for member in members]
        if self._met != present:
            [where] = ask_all(self._group, "dispatch", method("address"), [0])
            seconds = MESSAGE_HEARTBEATS * self._owner.config.placement.heartbeat_seconds
            device = row_device(members)
            self._together(lambda actor, process: actor.enter.remote(where, process, hosts, seconds, device))
            self._met = present
        return hosts

    def _together(self, call: Call) -> Any:
        """Call all processes, ranks and then row holders, at once, since they wait for each other; returns the first
        one's result. Raises WorkerLost when a rank is gone, ExchangeFailed otherwise; lost row holders have then been
        replaced, and have their rows again."""
        first, met, self._met = len(self._group), self._met, ()
        group = self._group.joined(self._samplers.members)
        answers = group.ask("dispatch", call, range(len(group)))
        if lost := answers.lost:
            for number in lost:  # closed connections release processes that wait for it
                group.end(group.members[number])
            said = f"{'; '.join(lost.values())} during dispatch"
            if min(lost) < first:
                raise WorkerLost(said)
            self._samplers.replace("dispatch", {(number - first) * self._samplers.tp: lost[number] for number in lost})
            raise ExchangeFailed(said)
        results: list[CallResult] = [answers.results[number] for number in range(len(group))]
        if faults := sorted({own.fault for own in results if own.fault}):
            raise ExchangeFailed(f"{faults[0]} (during dispatch)")
        self._met = met  # after any failure, some may have left the group
        return results[0].result

    def turn_values(self, rows: EpisodeTable, by_token: bool) -> Estimates:
        return self._estimates("values", "turn_values", by_token)

    def divergences(self, rows: EpisodeTable, estimator: KlEstimator) -> Estimates:
        return self._estimates("preparation", "divergences", estimator)

    def _estimates(self, stage: str, name: str, how: object) -> Estimates:
        turns, found = zip(*self._parts(stage, name, how), strict=True)
        return np.concatenate(turns), np.concatenate(found)

    def complete(self, rows: EpisodeTable, advantages: Advantages, reference: bool) -> EpisodeTable:
        """Make the batch: the ranks spread what stands for turns over tokens."""
        self._parts("preparation", "complete", ray.put(advantages), reference)
        return rows

    def update(self, batch: EpisodeTable, algorithm: Algorithm, update: Update) -> dict[str, float]:
        stats: dict[str, float] = self._parts("update", "update", algorithm, update)[0]
        return stats

    def collected(self, batch: EpisodeTable) -> tuple[Batch, NDArray[np.float32]]:
        parts = self._parts("recording", "collected")
        whole = Batch.joined([part for _, part, _ in parts])
        ranked = replace(whole, reference=np.concatenate([logprobs for _, _, logprobs in parts]))
        order = np.argsort(np.concatenate([numbers for numbers, _, _ in parts]))
        return whole.select(order), ranked.select(order).reference

    def weights(self) -> tuple[WeightSource, Probe]:
        """Handles of the weights, which stay with the ranks, and a probe of them."""
        loading, checksums = self._samplers.loading, self._owner.config.placement.checksums
        manifest, probe = self._all("weights", "weights", len(loading.group), loading.parts, checksums)[0]
        members = self._group.members
        ranks, nodes = tuple(member.actor for member in members), tuple(member.node for member in members)
        return WeightSource(manifest, ranks, nodes, checksums), probe

    def snapshot(self) -> Callable[[Path], Fingerprints]:
        """Let every rank copy its part; the result lets every rank write and hash it, while they go on."""
        self._parts("snapshot", "snapshot")
        return self._save

    def _save(self, folder: Path) -> Fingerprints:
        written: list[Fingerprints] = ask_all(self._group, "saving", method("save", str(folder.resolve())))
        return {name: own for files in written for name, own in files.items()}

    def restore(self, folder: Path) -> None:
        self._parts("restoring", "restore", str(folder.resolve()))

    def _parts(self, stage: str, name: str, *arguments: Any) -> list[Any]:
        """The results of all ranks, one per group with the same rows."""
        return self._all(stage, name, *arguments)[:: self._layout.tp]

    def _all(self, stage: str, name: str, *arguments: Any) -> list[Any]:
        self._owner.turn(self._group)
        return ask_all(self._group, stage, method(name, *arguments))
