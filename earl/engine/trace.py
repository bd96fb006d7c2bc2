"""A rank's step of training without memory, devices or other processes: the learner's own code, on fake tensors.

    Learner(…) ─▶ complete ─▶ update ─▶ logprobs ─▶ held, pack ─▶ snapshot      the functions of a run, of one rank
         │ each operation of torch
    FakeNumbers     floating-point tensors have shapes and no memory (FakeTensorMode); indices are real
    Recorder        live bytes and their peak, exchanges, floating-point operations
         │
    torch's fake process group, of any size: exchanges send nothing

A `Recorder` around real tensors and real processes counts the same, which tests compare. As on CPUs: attention takes
the kernel for them, and what CUDA's kernels and allocator need beside tensors is not seen.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, distributed
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
    is_traceable_wrapper_subclass_type,
)
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from transformers import AutoConfig

from earl.algorithms.registry import algorithm_of
from earl.batch import Batch, Rows
from earl.config import Config
from earl.dispatch.weights import BUCKET_BYTES, Weight, pack, plan_weights
from earl.engine.learner import Learner, RowShare, Update, make_learner
from earl.engine.model import CLOSED, Policy, meta_model
from earl.engine.sharding.mesh import Mesh, mesh_of
from earl.engine.sharding.shards import Shards
from earl.engine.source import folder_of
from earl.errors import EarlError
from earl.parallel.layout import Box
from earl.parallel.memory import Known
from earl.parallel.memory import known as known_model
from earl.parallel.traced import Exchange, StageTrace, Trace, TracedStage, TraceJob
from earl.rollout.synthetic import SyntheticEpisodes, advantages_of, rows_of

_ATEN: Any = torch.ops.aten
_FLASH_ON_CPU: Any = _ATEN._scaled_dot_product_flash_attention_for_cpu
_FLASH_ON_CPU_BACKWARD: Any = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward
_WRAPPED: Any = torch.ops._c10d_functional._wrap_tensor_autograd.default


class FakeNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Floating-point tensors are fake; integers and booleans are real as long as they follow from others alone, so that
    code may branch on them. A number that is read from a fake tensor is 1, and the best k of n are spread evenly."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # such as DTensor, whose operations on what it wraps come here, too
        kwargs = kwargs or {}
        given = [own for own in tree_leaves((args, kwargs)) if isinstance(own, Tensor)]
        asks_for_shapes = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
        if asks_for_shapes or not _faked(func, given, kwargs):  # DTensor asks by fake tensors of its own
            return func(*args, **kwargs)
        if func is _ATEN._local_scalar_dense.default:
            return 1.0 if given[0].is_floating_point() else 1
        if func is _WRAPPED or (func is _ATEN.copy_.default and not isinstance(args[0], FakeTensor)):
            return args[0]  # as it is: an exchange's result, or memory of numpy, which needs no numbers
        with self.fake:
            result = func(*args, **kwargs)
        if func is _ATEN.topk.default:
            best, places = result
            even = torch.arange(places.numel()) % given[0].shape[-1]
            return best, even.view(places.shape)
        return result


def _faked(func: Any, given: list[Tensor], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation has to be computed with fake tensors."""
    if any(isinstance(own, FakeTensor) for own in given):
        return True
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    if any(own.is_meta for own in given):
        return device is not None and torch.device(device).type != "meta"
    if device is not None and torch.device(device).type == "meta":
        return False
    if given and func.is_view:
        return False
    if given:
        return any(own.is_floating_point() for own in given) or (dtype is not None and dtype.is_floating_point)
    makes_tensor = func._schema.returns and str(func._schema.returns[0].type) == "Tensor"
    if dtype is None:
        return bool(makes_tensor) and func._overloadpacket is not _ATEN.arange
    return bool(dtype.is_floating_point)


class FakeArrays(TorchFunctionMode):
    """Turns fake tensors into numpy arrays of zeros."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.numpy and isinstance(args[0], FakeTensor):
            return np.zeros(tuple(args[0].shape), np.float32)
        return func(*args, **(kwargs or {}))


OPERATIONS = {
    "_allgather_base_": "all-gather",
    "allgather_": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "allreduce_": "all-reduce",
    "all_reduce": "all-reduce",
    "alltoall_base_": "all-to-all",
    "all_to_all_single": "all-to-all",
    "broadcast_": "broadcast",
}
"""torch's operations that exchange tensors, with and without gradients, by their common names."""


FLOPS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,  # of torch's FlopCounterMode
    _ATEN.addmm_: flop_registry[_ATEN.addmm],
    _FLASH_ON_CPU: flop_registry[_ATEN._scaled_dot_product_flash_attention],
    _FLASH_ON_CPU_BACKWARD: flop_registry[_ATEN._scaled_dot_product_flash_attention_backward],
    _ATEN._grouped_mm: lambda rows, weights, *_, **__: 2 * rows.numel() * weights.shape[-1],
}


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts, within its context, the bytes of live tensors and their peak, exchanges, and floating-point operations.
    FSDP2 frees and takes memory by resizing storages, which is no operation. groups: see `groups_of`.
    fake: the mode of fake tensors that stand for real ones; DTensor makes others, to learn of shapes."""

    def __init__(self, groups: Mapping[str, str], fake: FakeTensorMode | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._groups, self._fake, self._sizes = groups, fake, dict[int, int]()
        self.live = 0
        self._begin()

    def _begin(self) -> None:
        self._peak, self._operation, self._moment = self.live, "", ""
        self._exchanged: Counter[tuple[str, str, int]] = Counter()
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._flops: Counter[str] = Counter()

    def __enter__(self) -> "Recorder":
        resize, known = torch.UntypedStorage.resize_, self._sizes

        def resized(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            if storage._cdata in known:
                self._operation = "resize_"
                self._changed(storage)
            return result

        self._patch = patch.object(torch.UntypedStorage, "resize_", resized)
        self._patch.start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patch.stop()

    def stage(self, name: TracedStage, work: Callable[[], Any]) -> tuple[StageTrace, Any]:
        """Call `work`; returns what was counted meanwhile, and its result."""
        held = self.live
        self._begin()
        result = work()
        kinds = sorted(self._exchanged.items())
        exchanges = tuple(Exchange(*kind, count=self._counts[kind], bytes=size) for kind, size in kinds)
        return StageTrace(name, held, self._peak, self._moment, exchanges, dict(self._flops)), result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        self._operation = name = packet.__name__
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and self._has_memory(tensor):
                self._changed(tensor.untyped_storage())
        if func.namespace in ("c10d", "_c10d_functional") and name in OPERATIONS:
            self._exchange(OPERATIONS[name], func, args, result)
        if packet in FLOPS:
            self._flops[name] += FLOPS[packet](*args, **(kwargs or {}), out_val=result)
        return result

    def _has_memory(self, tensor: Tensor) -> bool:
        if isinstance(tensor, FakeTensor):
            return tensor.fake_mode is self._fake and tensor.device.type != "meta"
        return not is_traceable_wrapper_subclass(tensor) and tensor.untyped_storage().device.type != "meta"

    def _changed(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._sizes:
            weakref.finalize(storage, self._gone, key)
        self.live += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        if self.live > self._peak:
            self._peak, self._moment = self.live, self._operation

    def _gone(self, key: int) -> None:
        self.live -= self._sizes.pop(key)

    def _exchange(self, operation: str, func: Any, args: Any, result: Any) -> None:
        group = _group(func, args)
        tensors = [[own for own in tree_leaves(part) if isinstance(own, Tensor)] for part in (*args, result)]
        most = max(sum(own.nbytes for own in several) for several in tensors)
        self.count(operation, self._groups.get(group.group_name, "others"), group.size(), most)

    def count(self, operation: str, group: str, ranks: int, size: int) -> None:
        self._counts[operation, group, ranks] += 1
        self._exchanged[operation, group, ranks] += size


def _group(func: Any, args: Any) -> Any:
    if func.namespace == "c10d":
        return distributed.ProcessGroup.unbox(next(own for own in args if isinstance(own, torch.ScriptObject)))
    return torch._C._distributed_c10d._resolve_process_group(args[-1])


# The stages of a step, as a run's rank calls them (`earl/placement/ray/learner.py`).


class FakeWeights:
    """Stands for a model's files."""

    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})

    def read(self, name: str, wanted: Box) -> Tensor:
        return torch.empty(wanted.shape).normal_(std=0.02)


def groups_of(mesh: Mesh) -> dict[str, str]:
    """The names of a rank's groups in a trace, by torch's names of them."""
    *replicas, shards = mesh.shards.get_all_groups()
    named = {
        "all": distributed.group.WORLD,
        "replicas": replicas[0] if replicas else None,
        "dp x cp": shards,
        "dp": mesh.grid.get_group("dp"),  # where cp is 1, the same as before
        "cp": mesh.cp_group,
        "tp": mesh.tp_group,
    }
    return {group.group_name: name for name, group in named.items() if group}


def record_step(mesh: Mesh, described: Any, config: Config, job: TraceJob, fake: FakeTensorMode | None = None) -> Trace:
    """Record a learner's step on one rank, after a small step that has given the optimizer its moments.
    described: the model's configuration, as `transformers` has it; fake: of the tensors, None: they are real."""
    kind = algorithm_of(config)
    policy, ranks = Policy(meta_model(described), None), Shards(mesh, FakeWeights())
    with Recorder(groups_of(mesh), fake) as recorder:
        loading, learner = recorder.stage("load", lambda: make_learner(config, policy, ranks))
        rows, part = _rows(replace(job, row_tokens=LITTLE, micro_batch_tokens=LITTLE, micro_batches=1), learner.vocab)
        learner.update(_experience(learner, config, rows, part), kind, _update(config), part)
        rows, part = _rows(job, learner.vocab)
        experience, batch = recorder.stage("experience", lambda: _experience(learner, config, rows, part))
        others: list[tuple[TracedStage, Callable[[], Any]]] = [
            ("update", lambda: learner.update(batch, kind, _update(config), part)),
            ("recording", lambda: learner.logprobs(batch, part=part)),
            ("weights", lambda: _pack_weights(learner, job.rank, recorder)),
            ("checkpoint", learner.snapshot),
        ]
        stages = (loading, experience, *(recorder.stage(name, work)[0] for name, work in others))
    return Trace(job, stages)


LITTLE = 64  # tokens of the row of the first update


def _rows(job: TraceJob, vocab: int) -> tuple[Rows, RowShare]:
    """A data-parallel rank's rows, whose tokens but the first are all learned, and its share of the step."""
    rows = rows_of(SyntheticEpisodes(job.row_tokens, 1, 1.0, vocab), range(job.rows), seed=job.rank)
    learned, turns = (np.tile(rows.per_row(marked), job.layout.dp) for marked in (rows.mask, rows.value_mask))
    own = job.rank // (job.layout.size // job.layout.dp) * job.rows
    return rows, RowShare(np.arange(own, own + job.rows), learned, turns, alone=True)


def _experience(learner: Learner, config: Config, rows: Rows, part: RowShare) -> Batch:
    """Prepare experience like `earl.placement.pipeline.StepPipeline.prepare`, with made-up advantages and returns."""
    kind, how = algorithm_of(config), config.algorithm
    if kind.needs_values:
        learner.turn_values(rows, kind.by_token, part)
    if how.kl and not how.loss_kl:
        learner.divergences(rows, how.kl_estimator, part)
    return learner.complete(rows, advantages_of(rows, kind.by_token, seed=0), bool(how.loss_kl), part)


def _update(config: Config) -> Update:
    """One optimizer step."""
    made = Update.of(config, config.learner.learning_rate, config.algorithm.entropy, 0)
    return replace(made, minibatches=1, epochs=1)


def _pack_weights(learner: Learner, rank: int, recorder: Recorder) -> None:
    """Pack this rank's part of the weights for samplers, as `earl.placement.ray.weight_sync.BucketStore` does."""
    held = learner.state.held()
    weights = [Weight(name, own.shape, own.numbers.dtype, held.axes[name]) for name, own in held.parts.items()]
    plan, numbers = plan_weights(weights, held.layout, BUCKET_BYTES), {n: own.numbers for n, own in held.parts.items()}
    for bucket in plan.buckets:
        if pieces := [piece for piece in bucket if piece.source == rank]:
            recorder.count("give", "samplers", 1, pack(plan, rank, pieces, numbers).nbytes)


@contextmanager
def _single_rank(job: TraceJob) -> Iterator[Mesh]:
    """A rank's place in a grid without the other ranks."""
    distributed.init_process_group("fake", store=FakeStore(), rank=job.rank, world_size=job.layout.size)
    try:
        yield mesh_of(job.rank, job.layout, torch.device("cpu"), None)
    finally:
        distributed.destroy_process_group()
        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]  # it holds the names of groups


def trace_step(described: Any, config: Config, job: TraceJob) -> Trace:
    """Trace a step of a recipe's learner with the model of a configuration of `transformers`. Raises EarlError for what
    fake tensors cannot stand for."""
    if config.learner.offload:
        raise EarlError(
            "learner.offload cannot be traced: the trace has one kind of memory; set it to false, or plan more GPUs"
        )
    try:
        with _single_rank(job) as mesh, FakeArrays(), FakeNumbers() as numbers:
            return record_step(mesh, described, config, job, numbers.fake)
    except RuntimeError as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise EarlError(f"a {described.model_type} learner cannot be traced in this layout: {reason}") from error


def transformers_config(model: str) -> Any:
    """The configuration of a model in a folder or of the catalogue, without the hub. Raises EarlError."""
    found = known_model(model)
    if found is None or Path(model).exists():
        return AutoConfig.from_pretrained(folder_of(model, weights=False), **CLOSED)
    return AutoConfig.for_model(**catalogue_config(found))


def catalogue_config(found: Known) -> dict[str, Any]:
    """A model of the catalogue in the words of `transformers`."""
    shape = found.shape
    width = shape.intermediate // shape.experts_per_token
    mixture = {
        "num_experts": shape.experts,
        "num_local_experts": shape.experts,
        "num_experts_per_tok": shape.experts_per_token,
        "moe_intermediate_size": width,
    }
    return dict(
        model_type=found.type,
        hidden_size=shape.hidden,
        intermediate_size=width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=shape.tied,
        **(mixture if shape.experts > 1 else {}),
        **({"sliding_window": None} if found.type == "mistral" else {}),
    )
