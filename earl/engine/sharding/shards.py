"""A learner sharded over a grid of processes: tensor parallelism along tp, experts along ep, FSDP2 along dp × cp.

Each process computes its data-parallel share of the rows, of these its context-parallel portion of the tokens, with its
tensor-parallel part of every layer, and of a mixture with its experts. FSDP2 shards parameters, gradients and moments
of a part over the processes of a replica that compute with it, and gathers one layer at a time; gradients are summed
over the replicas once per optimizer step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from earl.config import LearnerConfig, ModelConfig
from earl.dispatch.weights import Weight, WeightPiece, regrouping
from earl.engine.checkpoint_tensors import Stored, TensorPart, TensorSource
from earl.engine.lora import adapt, base_name, initial_factor, is_factor
from earl.engine.model import Policy, layers, make_buffers, meta_model, meta_policy, recompute, shape_of
from earl.engine.ranks import Ranks, gradient_of
from earl.engine.score import Scorer, own_name
from earl.engine.sharding.expert_parallel import expert_layers, spread
from earl.engine.sharding.mesh import Mesh
from earl.engine.sharding.tensor_parallel import gathered, split
from earl.engine.source import folder_of
from earl.parallel.layout import EXPERTS, Axis, check_shared, chunk


class Shards(Ranks):
    """This process's part of a learner. stored: source of the weights, read slice by slice; None: the policy's model
    holds them."""

    def __init__(self, mesh: Mesh, stored: TensorSource | None = None) -> None:
        self.mesh, self.layout, self._stored = mesh, mesh.layout, stored
        self.share, self.shares = mesh.grid.get_local_rank("dp"), mesh.layout.dp
        self.rank = mesh.rank
        self._partial: frozenset[str] = frozenset()
        self._experts: tuple[DeviceMesh, ProcessGroup] | None = None  # None: the model has none, or is not yet made
        self._root: Any = None
        self._made: tuple[Any, LearnerConfig] | None = None

    def place(self, policy: Policy, learner: LearnerConfig, values: bool, frozen: bool = False) -> Scorer:
        """Build the policy's model without weights, split it, and read this process's part of the weights."""
        self._made = policy.model.config, learner
        scorer = self._root = self._built(values, frozen)
        weights = {} if self._stored else policy.model.state_dict()
        for name, parameter in scorer.model.named_parameters():
            box, shape = self.box(name, parameter)
            if not box.numbers:
                continue
            if is_factor(name):
                part = initial_factor(name, shape)[box.slices]
            elif self._stored:
                part = self._stored.read(base_name(name), box)
            else:
                part = weights[base_name(name)][box.slices]
            self.local(parameter.detach()).copy_(part)
        return scorer

    def twin(self, scorer: Scorer) -> Scorer:
        """A frozen copy of the shards, in host memory between uses if the recipe says so."""
        frozen = self._built(scorer.value_head is not None, frozen=True)
        for own, other in zip(frozen.parameters(), scorer.parameters(), strict=True):
            self.local(own).copy_(self.local(other.detach()))
        return frozen

    def frozen(self, path: str, learner: LearnerConfig) -> Scorer:
        other, plain = Shards(self.mesh, Stored(folder_of(path))), learner.model_copy(update={"lora_rank": 0})
        return other.place(meta_policy(ModelConfig(path=path)), plain, values=False, frozen=True)

    def add(self, values: Tensor) -> Tensor:
        """The sum over the data-parallel group; tp and cp groups hold equal values."""
        total = values.to(self.mesh.device)
        distributed.all_reduce(total, group=self.mesh.grid.get_group("dp"))
        return total.cpu()

    def most(self, count: int) -> int:
        counts = torch.tensor(count, device=self.mesh.device)
        distributed.all_reduce(counts, distributed.ReduceOp.MAX)
        return int(counts)

    def begin(self, last: bool) -> None:
        self._root.set_requires_all_reduce(last)

    def finish(self, parameters: Mapping[str, nn.Parameter], sums: Tensor, max_norm: float) -> tuple[float, Tensor]:
        """FSDP2 has summed gradients over dp × cp, those of experts over all processes; other unsplit parameters still
        have to be synchronised over tp."""
        named = [(name, self.local(gradient_of(parameter))) for name, parameter in parameters.items()]
        self._even(named)
        squares = torch.zeros((), device=self.mesh.device)
        for name, gradient in named:
            copies = 1 if name in self.axes else self.layout.tp
            squares += gradient.float().square().sum() / copies / self.layout.replicas
        distributed.all_reduce(squares)
        norm = float(squares.sqrt())
        for _, gradient in named:
            gradient.mul_(min(1.0, max_norm / (norm + 1e-6)))
        return norm, self.add(sums)

    def _even(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Over tp, sum partial gradients, and average those of unsplit parameters, so that these stay equal."""
        group, alike = self.mesh.tp_group, [(name, g) for name, g in named if name not in self.axes]
        if group is None or not alike:
            return
        message = torch.cat([gradient.flatten() for _, gradient in alike])
        distributed.all_reduce(message, group=group)
        parts = torch.split(message, [gradient.numel() for _, gradient in alike])
        for (name, gradient), part in zip(alike, parts, strict=True):
            share = 1.0 if name in self._partial else 1.0 / self.layout.tp
            gradient.copy_(part.view_as(gradient)).mul_(share)

    def local(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def gathered(self, name: str, tensor: Tensor) -> Tensor:
        part = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        axis, group = self.axes.get(name), self.mesh.tp_group
        if axis == EXPERTS and self._experts:
            axis, group = 0, self._experts[1]
        return part if axis is None or group is None else gathered(part, int(axis), self.shapes[name][int(axis)], group)

    def regrouped(self, parts: Mapping[str, TensorPart], owners: Mapping[str, int]) -> Mapping[str, Tensor]:
        if self.layout.size == 1:
            return super().regrouped(parts, owners)
        axes = {base_name(name): axis for name, axis in self.axes.items()}
        return regrouped(parts, axes, owners, self.mesh)

    def _built(self, values: bool, frozen: bool) -> Scorer:
        """A scorer of this process's shards; only the value head is initialised, to zero."""
        assert self._made is not None
        config, learner = self._made
        tp, group = self.layout.tp, self.mesh.tp_group
        with torch.device("meta"):
            model = meta_model(config)
            adapt(model, learner)
            scorer = Scorer(model, values)
        named = scorer.named_parameters(remove_duplicate=False)
        self.shapes = {own_name(name): tuple(parameter.shape) for name, parameter in named}
        check_shared(shape_of(model), self.layout)
        self.axes = {}
        if expert_layers(model):
            self._experts = self._experts or self.mesh.experts()
            self.axes = spread(model, self._experts[1], group)
        if group is not None:
            rank = self.mesh.grid.get_local_rank("tp")
            splits = split(model, tp, rank, group)
            self.axes, self._partial = {**self.axes, **splits.axes}, splits.partial
            scorer.words = (group, chunk(config.get_text_config().vocab_size, tp, rank)[0])
        scorer.context = self.mesh.cp_group
        if frozen:
            scorer.requires_grad_(False)
        elif learner.recompute:
            recompute(model)
        self._shard(scorer, learner, frozen)
        make_buffers(model, self.mesh.device)
        return scorer

    def _shard(self, scorer: Scorer, learner: LearnerConfig, frozen: bool) -> None:
        """Apply FSDP2 to the experts of every layer, every layer, and the scorer around them; then allocate memory."""
        narrow = learner.dtype == "bfloat16"
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if narrow else MixedPrecisionPolicy()
        hosted = frozen and learner.offload and self.mesh.device.type != "cpu"
        offload = CPUOffloadPolicy() if hosted else OffloadPolicy()
        kinds = [(module, self._experts[0]) for module in expert_layers(scorer.model).values() if self._experts]
        kinds += [(module, self.mesh.shards) for module in (*layers(scorer.model), scorer)]
        for module, mesh in kinds:
            fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=policy, offload_policy=offload)
        for module in scorer.modules():
            if isinstance(module, FSDPModule):  # sum gradients: the loss is already a share of the mean over all tokens
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo supports only this
        scorer.to_empty(device="cpu" if hosted else self.mesh.device)
        scorer.device = self.mesh.device
        if scorer.value_head is not None:
            for parameter in scorer.value_head.parameters():
                self.local(parameter.detach()).zero_()


# Regrouping: from every rank's boxes to whole tensors, each on the rank that writes it. No rank ever holds more than
# its own boxes, its own files, and one round of the exchange.

ROUND_BYTES = 1 << 25
"""What a rank sends in one round, and what it receives, at most."""


def regrouped(
    parts: Mapping[str, TensorPart], axes: Mapping[str, Axis], owners: Mapping[str, int], mesh: Mesh
) -> dict[str, Tensor]:
    """The tensors that this rank owns, whole and in host memory. All ranks call this, each with its parts."""
    layout = mesh.layout
    weights = [Weight(name, part.shape, part.numbers.dtype, axes.get(name)) for name, part in parts.items()]
    owned = {own.name: torch.empty(own.shape, dtype=own.dtype) for own in weights if owners[own.name] == mesh.rank}
    ranks = [owners[weight.name] for weight in weights]
    for pieces in regrouping(weights, ranks, layout, ROUND_BYTES // layout.size):
        for piece, numbers in _exchanged(pieces, weights, ranks, parts, mesh):
            weight = weights[piece.weight]
            owned[weight.name][piece.box.slices] = numbers.clone().view(weight.dtype).view(piece.box.shape)
    return owned


def _exchanged(
    pieces: Sequence[WeightPiece],
    weights: Sequence[Weight],
    owners: Sequence[int],
    parts: Mapping[str, TensorPart],
    mesh: Mesh,
) -> list[tuple[WeightPiece, Tensor]]:
    """The pieces for this rank's tensors, and their bytes in host memory."""
    going = sorted((piece for piece in pieces if piece.source == mesh.rank), key=lambda piece: owners[piece.weight])
    coming = sorted((piece for piece in pieces if owners[piece.weight] == mesh.rank), key=lambda piece: piece.source)
    given, taken = [0] * mesh.layout.size, [0] * mesh.layout.size
    sent = [torch.empty(0, dtype=torch.uint8, device=mesh.device)]
    for piece in going:
        part = parts[weights[piece.weight].name]
        numbers = part.numbers.detach()[piece.box.inside(part.box)].to(mesh.device)
        sent.append(numbers.flatten().view(torch.uint8))
        given[owners[piece.weight]] += piece.size
    for piece in coming:
        taken[piece.source] += piece.size
    came = torch.empty(sum(taken), dtype=torch.uint8, device=mesh.device)
    distributed.all_to_all_single(came, torch.cat(sent), taken, given)
    return [*zip(coming, torch.split(came.cpu(), [piece.size for piece in coming]), strict=True)]
