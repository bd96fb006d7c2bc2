"""Weight sync: every sampler reads the weights from the learner's ranks, tensor by tensor.

Ranks pack buckets into the object stores of their hosts, in the sampler's dtype; the driver passes references only.
Only samplers hold whole weights, and a process of a split sampler is sent only its part. Of ranks with equal parts one
gives each, evenly spread. A host's store fetches an object once for all samplers there.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import numpy as np
import ray
import torch
from torch import Tensor

from earl.dispatch.transports.base import CHECKSUM_BYTES, Bytes, Corrupted, intact, seal
from earl.dispatch.weights import BUCKET_BYTES, SentWeights, Weight, WeightManifest, WeightPiece, holders, pack
from earl.engine.sampler import Probe
from earl.engine.train_state import HeldTensors
from earl.parallel.layout import Axis, Box, whole
from earl.placement.ray.actor_group import ActorGroup, Call, ask_all, method
from earl.placement.ray.memory_budget import aside
from earl.placement.ray.row_exchange import MESSAGE_HEARTBEATS, TRIES, CallResult, ExchangeFailed, hosts_of

SOON_SECONDS, LATER_SECONDS = 0.001, 0.05
"""Interval of asking whether a bucket may be read: at first, and at most."""
Reference = Any  # `ray.ObjectRef`; the type checker does not see Ray
Sender = tuple[int, int]  # a rank, and the process of a reader that its message is for: see `WeightPiece.reader`


def manifest_of(
    held: HeldTensors,
    bucket_bytes: int = BUCKET_BYTES,
    dtype: torch.dtype = torch.float32,
    split: Mapping[str, Axis] = MappingProxyType({}),
    readers: int = 1,
) -> WeightManifest:
    """dtype: of floating point on the way; split: the axis along which samplers split a tensor, by name."""
    weights = []
    for name, part in held.parts.items():
        kind = dtype if part.numbers.is_floating_point() else part.numbers.dtype
        weights.append(Weight(name, part.shape, kind, held.axes[name], split.get(name)))
    return WeightManifest(tuple(weights), held.layout, bucket_bytes, readers)


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """What one actor of a sampler loaded."""

    received_bytes: int
    """By this process, or by the worker processes of its engine together, whichever is more."""
    needed_bytes: int  # of the weights that these compute with
    damaged: tuple[str, ...]
    """Messages that arrived damaged and were sent again."""


@dataclass(frozen=True, slots=True)
class WeightSource:
    """The ranks that have the weights; the first one runs the barrier."""

    manifest: WeightManifest
    ranks: tuple[Any, ...]  # actors, each a `WeightServer`
    nodes: tuple[str, ...] = ()  # of the ranks
    checksums: bool = False

    def reader(self) -> "WeightReader":
        return WeightReader(self)

    def metrics(self, samplers: tuple[str, ...], loaded: Collection[LoadedWeights]) -> dict[str, float]:
        """Bytes that samplers received and needed, those between hosts, their lower bound, and the ratio. A host's
        object store fetches an object once, however many samplers are there. samplers: the node of each, that of all
        its processes; loaded: by each of these."""
        ranks = [*zip(self.manifest.plan.sent_bytes(), self.nodes, strict=True)]
        across = sum(size for host in {*samplers} for size, own in ranks if own != host)
        bound = _least(self.manifest, self.nodes, samplers)
        return {
            "weights/received_bytes": float(sum(own.received_bytes for own in loaded)),
            "weights/needed_bytes": float(sum(own.needed_bytes for own in loaded)),
            "weights/bytes_across": float(across),
            "weights/bytes_least": float(bound),
            "weights/ratio": across / bound if bound else 1.0,
        }


class WeightReader(Mapping[str, Tensor]):
    """Whole tensors, each made when it is read and not kept; tied ones once. Only messages of one bucket are held at a
    time, even if a tensor spans several; read in order, each is fetched once, and `received_bytes` counts them.
    `damaged` lists messages that arrived damaged and were sent again. Reading raises Corrupted when a message arrives
    damaged in every try, and RayError when a rank or its host is gone."""

    def __init__(self, source: WeightSource) -> None:
        self._source, self._name = source, uuid4().hex
        self._plan = source.manifest.plan
        self._numbers = {weight.name: number for number, weight in enumerate(self._plan.weights)}
        self._pieces: list[list[tuple[int, WeightPiece, int]]] = [[] for _ in self._numbers]
        for bucket, pieces in enumerate(self._plan.buckets):
            begins = Counter[Sender]()
            for piece in pieces:
                self._pieces[piece.weight].append((bucket, piece, begins[piece.source, piece.reader]))
                begins[piece.source, piece.reader] += piece.size
        self._left = set(self._numbers)
        self._bucket, self._messages = -1, dict[Sender, Bytes]()
        self._references: Sequence[Sequence[Reference | None]] = ()  # of the bucket, by rank and reader
        self.received_bytes = 0
        self.damaged: list[str] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __getitem__(self, name: str) -> Tensor:
        return self.part(name, whole(self._plan.weights[self._numbers[name]].shape))

    def part(self, name: str, box: Box) -> Tensor:
        """The part of a tensor in a box; only overlapping pieces are copied."""
        number = self._numbers[name]
        made = torch.empty(box.shape, dtype=self._plan.weights[number].dtype)
        overlapping = [(*own, common) for own in self._pieces[number] if (common := own[1].box.common(box))]
        for bucket, pieces in groupby(overlapping, key=lambda own: own[0]):
            own = [*pieces]
            self._fetch(bucket, {(piece.source, piece.reader) for _, piece, *_ in own})
            for _, piece, begin, common in own:
                message = self._messages[piece.source, piece.reader][begin : begin + piece.size]
                numbers = message.reshape(*piece.box.shape, -1)[common.inside(piece.box)].copy()  # the store has views
                made[common.inside(box)] = torch.from_numpy(numbers).view(made.dtype).view(common.shape)
        self._left.discard(name)
        if not self._left and self._messages:
            self._bucket, self._messages, self._references = -1, {}, ()
            ray.get([rank.leave_barrier.remote(self._name) for rank in self._source.ranks])
        return made

    def _fetch(self, bucket: int, senders: set[Sender]) -> None:
        """Drop another bucket's messages, and fetch those missing of this one, as views of the store."""
        if bucket != self._bucket:
            self._messages, self._references = {}, ()
            self._references, self._bucket = self._opened(bucket), bucket
        missing = sorted(senders - self._messages.keys())
        found = ray.get([self._references[rank][reader] for rank, reader in missing])
        for sender, message in zip(missing, found, strict=True):
            self.received_bytes += message.nbytes
            self._messages[sender] = self._checked(sender, message) if self._source.checksums else message

    def _opened(self, bucket: int) -> Sequence[Sequence[Reference | None]]:
        """References by rank and reader. Asking for a new bucket lets all ranks drop the previous one."""
        pause = SOON_SECONDS
        while not ray.get(self._source.ranks[0].come.remote(self._name, bucket)):
            time.sleep(pause)
            pause = min(2 * pause, LATER_SECONDS)
        opened: Sequence[Sequence[Reference | None]] = ray.get([r.bucket.remote(bucket) for r in self._source.ranks])
        return opened

    def _checked(self, sender: Sender, message: Bytes) -> Bytes:
        """A message without its checksum, packed again until it is intact, at most TRIES times."""
        rank, reader = sender
        bucket = f"bucket {self._bucket} of the weights of learner rank {rank}"
        said = f"{bucket} arrived damaged at a sampler: its checksum differs"
        for attempt in range(TRIES):
            if attempt:
                self.damaged.append(said)
                message = ray.get(ray.get(self._source.ranks[rank].bucket.remote(self._bucket, True))[reader])
            if intact(message):
                return message[:-CHECKSUM_BYTES]
        raise Corrupted(f"{said}; this was tried {TRIES} times, look at the network and the memory of both hosts")


# Samplers draw buckets from the ranks, so that weights never exist a second time. A rank packs a bucket and keeps it
# until the next one; all samplers are at the same bucket (`BucketBarrier`). The stores hold one bucket, plus the
# previous one until Ray frees it (milliseconds with `free_objects_batch_size` 1, else a second), plus one for a sampler
# that the others gave up on. Packing needs a rank's part of a bucket in its own memory for a moment, twice with
# checksums. The learner waits meanwhile: buckets hold the current weights.


@dataclass(slots=True)
class BucketStore:
    """One rank's buckets, each packed when it is requested."""

    held: Callable[[], HeldTensors]
    """Returns the rank's boxes, on host or device."""
    rank: int
    manifest: WeightManifest
    readers: int  # processes that load weights and are not done
    checksums: bool = False
    number: int = -1
    kept: Sequence[Reference | None] = ()

    def bucket(self, number: int, again: bool = False) -> Sequence[Reference | None]:
        """This rank's messages of a bucket in the object store, replacing those of the previous one: that for all
        processes of a reader, then one for each; None where there is nothing to say."""
        if number != self.number or again or not self.kept:
            self.kept, self.number = (), number
            self.kept = self._packed(number)
        return self.kept

    def leave(self) -> None:
        """A reader is done; after the last one, nothing is kept."""
        self.readers -= 1
        if self.readers <= 0:
            self.kept = ()

    def _packed(self, number: int) -> Sequence[Reference | None]:
        plan = self.manifest.plan
        messages: list[list[WeightPiece]] = [[] for _ in range(plan.readers + 1)]
        for piece in plan.buckets[number]:
            if piece.source == self.rank:
                messages[piece.reader].append(piece)
        held = {name: part.numbers for name, part in self.held().parts.items()} if any(messages) else {}
        return [self._put(pack(plan, self.rank, pieces, held)) if pieces else None for pieces in messages]

    def _put(self, message: Bytes) -> Reference:
        with aside():
            return ray.put(seal(message) if self.checksums else message)


@lru_cache(maxsize=4)
def _least(manifest: WeightManifest, ranks: tuple[str, ...], samplers: tuple[str, ...]) -> int:
    """Bytes that hosts of samplers need and none of their ranks has, once per host."""
    bound = 0
    for weight in manifest.weights:
        boxes = holders(weight, manifest.layout)
        for host in set(samplers):
            lacked = sum(box.numbers for box, having in boxes.items() if host not in {ranks[rank] for rank in having})
            bound += lacked * weight.dtype.itemsize
    return bound


PATIENCE_SECONDS = 10.0
"""Readers that are not back this long after a bucket was opened, or a new reader came, are left behind."""


class BucketBarrier:
    """Keeps readers at the same bucket: when all have left one, the lowest requested one opens. Readers may be late,
    slow, or dead: none is waited for longer than PATIENCE_SECONDS. readers: how many are expected, at least."""

    def __init__(self, readers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._expected, self._clock = readers, clock
        self._at: dict[str, int] = {}  # the bucket that each reader reads or waits for
        self._open, self._since = -1, clock()

    def come(self, reader: str, bucket: int) -> bool:
        """Whether a reader may have a bucket now; if not, it asks again. Asking releases its previous bucket."""
        late = self._clock() - self._since > PATIENCE_SECONDS
        if reader not in self._at:
            self._since = self._clock()
        self._at[reader] = bucket
        if late:
            self._expected = 0
            self._at = {name: at for name, at in self._at.items() if at != self._open or name == reader}
        if self._open not in self._at.values() and len(self._at) >= self._expected:
            self._open, self._since = min(self._at.values()), self._clock()
        return bucket == self._open

    def leave(self, reader: str) -> None:
        if self._at.pop(reader, None) is not None:
            self._expected -= 1


# Where learner and engines have GPUs of their own, ranks send the weights to the engines' worker processes themselves:
# in one exchange a bucket, each worker gets its slices, and no object store, no file and no actor lies between.


@dataclass(slots=True)
class WeightSender:
    """Sends weights from the learner's ranks to the workers of engines. All are one torch.distributed group, which is
    kept, and remade when a member was replaced."""

    ranks: ActorGroup
    tp: int  # workers of an engine
    heartbeat_seconds: float
    _met: Sequence[tuple[str, int]] = ()  # nodes and processes of the group

    def send(self, engines: ActorGroup, weights: tuple[WeightSource, Probe], version: int) -> list[LoadedWeights]:
        """Raises ExchangeFailed when an engine may not have them."""
        group, first = self.ranks.joined(engines.members), len(self.ranks)
        self._join(group)
        source, probe = weights
        sent = SentWeights(source.manifest, len(engines))

        def call(actor: Any, number: int) -> Any:
            return actor.send_weights.remote(sent) if number < first else actor.load_sent.remote(sent, probe, version)

        return [own.result for own in self._together(group, call)[first:]]

    def _join(self, group: ActorGroup) -> None:
        present = [(member.node, member.process) for member in group.members]
        if self._met == present:
            return
        [where] = ask_all(self.ranks, "weights", method("weights_address"), [0])
        first, seconds = len(self.ranks), MESSAGE_HEARTBEATS * self.heartbeat_seconds
        counts = [1 if number < first else self.tp for number in range(len(group))]
        hosts = np.repeat(hosts_of(group.members), counts).astype(np.int64)
        processes = np.cumsum([0, *counts]).tolist()
        self._together(group, lambda actor, n: actor.join_weights.remote(where, processes[n], hosts, seconds))
        self._met = present

    def _together(self, group: ActorGroup, call: Call) -> list[CallResult]:
        """Call all at once, since they wait for each other."""
        met, self._met = self._met, ()  # after any failure, some may have left the group
        answers = group.ask("weights", call, range(len(group)))
        for number in answers.lost:  # closed connections release processes that wait for it
            group.end(group.members[number])
        results = [answers.results[number] for number in sorted(answers.results)]
        if faults := [*answers.lost.values(), *sorted(own.fault for own in results if own.fault)]:
            raise ExchangeFailed(f"{faults[0]} (during weights)")
        self._met = met
        return results
