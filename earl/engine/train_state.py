"""The state of a learner: weights and optimizer moments by name, copied, restored and moved."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from earl.config import LearnerConfig
from earl.engine.checkpoint_tensors import (
    Snapshot,
    Stored,
    TensorFile,
    TensorPart,
    TensorSource,
    describe,
    weight_files,
)
from earl.engine.lora import base_name, factor_names, is_factor, merge
from earl.engine.model import tensors_once
from earl.engine.ranks import Ranks
from earl.engine.score import Scorer, own_name
from earl.parallel.layout import Axis, Layout, whole


@dataclass(frozen=True, slots=True)
class HeldTensors:
    """One process's part of a model's tensors, tied ones once, adapters merged; all processes know all names."""

    parts: Mapping[str, TensorPart]
    """By name; shares memory with the model, except for merged adapters."""
    axes: Mapping[str, Axis | None]
    """By name, what it is split along beside FSDP2."""
    layout: Layout


STATE = "learner"
"""Folder of moments, value head and adapters; inference engines would read them as weights beside config.json."""
REFERENCE = "reference"
"""Folder of the reference model, also the base of adapters; missing until there is one."""
MOMENTS = ("exp_avg", "exp_avg_sq")
EMA = "ema"  # running mean of the weights, kept beside the moments
STEP = "step"


class TrainState:
    """A scorer's tensors and their optimizer. Every process holds its part of them (`Ranks.box`). Files record each
    part's place, so that a checkpoint can be read under any layout."""

    def __init__(self, scorer: Scorer, tokenizer: Any, learner: LearnerConfig, ranks: Ranks) -> None:
        self._scorer, self._config, self._ranks = scorer, learner, ranks
        self._moments = (*MOMENTS, EMA) if learner.ema else MOMENTS
        self._tokenizer = copy.deepcopy(tokenizer)  # written while rollout uses the other one
        self._named = {own_name(name): parameter for name, parameter in scorer.named_parameters()}
        self.trained = {name: parameter for name, parameter in self._named.items() if parameter.requires_grad}
        self.optimizer = torch.optim.AdamW(
            self.trained.values(),
            betas=(learner.beta1, learner.beta2),
            weight_decay=learner.weight_decay,
            fused=True,
        )
        self.named_reference: Scorer | None = None  # by the recipe; no checkpoint holds it
        self.frozen: Scorer | None = None
        self._frozen_named: dict[str, nn.Parameter] = {}
        self._frozen_adapters: dict[str, Tensor] = {}  # all that of a reference with adapters differs
        self.steps = 0
        self._snapshots: WeakSet[Snapshot] = WeakSet()  # that may share tensors with this object

    @property
    def adapted(self) -> bool:
        return bool(self._config.lora_rank)

    def forget_reference(self) -> None:
        """Let the model be the reference as it is when this is next used."""
        self.frozen, self._frozen_named, self._frozen_adapters = None, {}, {}

    @contextmanager
    def reference(self) -> Iterator[Scorer]:
        """The model that the recipe names, or this one as it was the first time: a frozen copy, or the model itself
        with the adapters that it had then."""
        if self.named_reference is not None:
            yield self.named_reference
            return
        if not self.adapted:
            yield self._freeze()
            return
        own = {name: parameter.detach().clone() for name, parameter in self._named.items() if is_factor(name)}
        self._frozen_adapters = self._frozen_adapters or own
        self._fill_adapters(self._frozen_adapters)
        try:
            yield self._scorer
        finally:
            self._fill_adapters(own)

    def _freeze(self) -> Scorer:
        if self.frozen is None:
            self.frozen = self._ranks.twin(self._scorer)
            # Named now: an interrupted forward pass leaves gathered tensors in their place.
            self._frozen_named = dict(self.frozen.model.named_parameters())
        return self.frozen

    def _fill_adapters(self, adapters: Mapping[str, Tensor]) -> None:
        self._keep_snapshots()
        for name, kept in adapters.items():
            self._ranks.local(self._named[name].detach()).copy_(self._ranks.local(kept))

    def step(self) -> None:
        """Step the optimizer; with offloading, its state is moved to the device and back."""
        self.steps += 1
        if self._config.offload:
            self._move_moments(self._scorer.device)
        self._keep_snapshots()
        self.optimizer.step()
        if self._config.ema:
            for parameter, state in self.optimizer.state.items():
                updates = float(state[STEP])  # a run's first weights are far from its last: few of them count
                decay = min(self._config.ema, (1 + updates) / (10 + updates))
                state.setdefault(EMA, parameter.detach().clone()).lerp_(parameter.detach(), 1 - decay)
        if self._config.offload:
            self._move_moments(torch.device("cpu"))

    def take_average(self) -> None:
        """Set the weights to their running mean."""
        self._keep_snapshots()
        for parameter, state in self.optimizer.state.items():
            parameter.detach().copy_(state[EMA])

    def weights(self) -> dict[str, Tensor]:
        """Every tensor of the model under all its names, whole, adapters merged; empty on processes that do not save.
        They are gathered one by one: other processes never hold more than one whole tensor."""
        tensors = self._scorer.model.state_dict()
        whole = ((base_name(name), self._merged(name, tensors)) for name in tensors if not is_factor(name))
        return {name: tensor for name, tensor in whole if not self._ranks.rank}

    def held(self) -> HeldTensors:
        """This process's boxes of the weights, in host memory where there are adapters; only tensors with adapters are
        gathered, one at a time."""
        names = [name for name in tensors_once(self._scorer.model) if not is_factor(name)]
        axes = {base_name(name): self._ranks.axes.get(name) for name in names}
        return HeldTensors(dict(self._boxes(self._scorer)), axes, self._ranks.layout)

    def _boxes(self, scorer: Scorer, adapted: bool = True) -> Iterator[tuple[str, TensorPart]]:
        """This process's boxes of a model, with adapters merged or left out."""
        tensors = tensors_once(scorer.model)
        for name, tensor in tensors.items():
            if is_factor(name):
                continue
            box, shape = self._ranks.box(name, tensor)
            merges = adapted and factor_names(name)
            own = self._merged(name, tensors)[box.slices].clone() if merges else self._ranks.local(tensor)
            own = own if own.shape == box.shape else own[box.slices]
            yield base_name(name), TensorPart(own.cpu() if self.adapted else own, box, shape)

    def snapshot(self) -> Snapshot:
        """This process's part of the present state, to be written; see `Learner.snapshot`."""
        models = {"": self._boxes(self._scorer)}
        if self.adapted:
            models[REFERENCE] = self._boxes(self._scorer, adapted=False)
        elif self.frozen is not None:
            models[REFERENCE] = self._boxes(self.frozen)
        files = [TensorFile.of_parts(f"{STATE}/rank-{self._ranks.rank:05}.safetensors", dict(self._own_parts()))]
        plans, shared = {}, self._ranks.layout.size == 1  # regrouped tensors are copies
        for folder, boxes in models.items():
            parts = dict(boxes)
            plans[folder] = planned = weight_files(parts, self._ranks.layout.size)
            owners = {name: file.rank for file in planned for name in file.tensors}
            whole = self._ranks.regrouped(parts, owners)
            files += [
                TensorFile(str(Path(folder, file.name)), {name: whole[name] for name in file.tensors}, shared)
                for file in planned
                if file.rank == self._ranks.rank
            ]

        def describe_models(folder: Path) -> None:
            for name, planned in plans.items():
                describe(folder / name, self._scorer.model, planned)
            self._tokenizer.save_pretrained(folder)

        snapshot = Snapshot(files, (lambda _: None) if self._ranks.rank else describe_models)
        self._snapshots.add(snapshot)
        return snapshot

    def restore(self, folder: Path) -> None:
        """Read this process's part of snapshots that were written under any layout."""
        if self._config.lora_rank:
            self.take(Stored(folder / REFERENCE, (folder / STATE, "")))
        else:
            self.take(Stored(folder, (folder / STATE, ""), (folder / REFERENCE, f"{REFERENCE}/")))

    def carried(self) -> Iterator[tuple[str, TensorPart]]:
        """This process's parts of all that `take` needs: its own memory, without parts that another process gives."""
        for name, parameter in self._named.items():
            if not _own(name):
                yield from self._given(base_name(name), name, parameter)
        yield from self._own_parts()
        for name, parameter in self._frozen_named.items():
            yield from self._given(f"{REFERENCE}/{name}", name, parameter)

    def _own_parts(self) -> Iterator[tuple[str, TensorPart]]:
        """The parts of value head, adapters, the reference's adapters, and optimizer state."""
        for name, kept in self._frozen_adapters.items():
            yield from self._given(f"{REFERENCE}/{name}", name, kept)
        for name, parameter in self.trained.items():
            if _own(name):
                yield from self._given(name, name, parameter)
            if state := self.optimizer.state.get(parameter):
                for key in self._moments:
                    yield from self._given(f"{key}/{name}", name, state[key])
                if not self._ranks.rank:
                    yield f"{STEP}/{name}", TensorPart(state[STEP], whole(()), ())

    def _given(self, stored_name: str, name: str, tensor: Tensor) -> Iterator[tuple[str, TensorPart]]:
        box, shape = self._ranks.box(name, tensor)
        if self._ranks.layout.keeps(self._ranks.axes.get(name), self._ranks.rank) and box.numbers:
            yield stored_name, TensorPart(self._ranks.local(tensor.detach()), box, shape)

    def take(self, state: TensorSource) -> None:
        """Read this process's part of what all processes of any layout gave; see `carried`."""
        self._keep_snapshots()
        if not any(name.startswith(f"{REFERENCE}/") for name in state.shapes):
            self.forget_reference()
        for name, parameter in self._named.items():
            self._fill(name, parameter, state, name if _own(name) else base_name(name))
        self.optimizer.state.clear()
        for name, parameter in self.trained.items():
            if f"{STEP}/{name}" in state.shapes:
                moments = {key: torch.zeros_like(parameter, requires_grad=False) for key in self._moments}
                for key, moment in moments.items():
                    self._fill(name, moment, state, f"{key}/{name}")
                step = state.read(f"{STEP}/{name}", whole(())).clone().to(parameter.device)
                self.optimizer.state[parameter] = {STEP: step, **moments}
        if self.adapted:
            stored = [name for name in self.trained if f"{REFERENCE}/{name}" in state.shapes]
            self._frozen_adapters = {name: self.trained[name].detach().clone() for name in stored}
            for name, kept in self._frozen_adapters.items():
                self._fill(name, kept, state, f"{REFERENCE}/{name}")
        elif any(name.startswith(f"{REFERENCE}/") for name in state.shapes):
            self._freeze()
            for name, parameter in self._frozen_named.items():
                self._fill(name, parameter, state, f"{REFERENCE}/{name}")

    def move(self, hosted: bool) -> None:
        """Move all tensors to host memory, or back to the device; a no-op on a CPU."""
        device = torch.device("cpu") if hosted else self._scorer.device
        self._scorer.to(device)
        if not self._config.offload:
            self._move_moments(device)
            for reference in filter(None, (self.frozen, self.named_reference)):
                reference.to(device)
        if hosted and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _move_moments(self, device: torch.device) -> None:
        for state in self.optimizer.state.values():
            for key in self._moments:
                state[key] = state[key].to(device)

    def _fill(self, name: str, tensor: Tensor, stored: TensorSource, stored_name: str) -> None:
        box, _ = self._ranks.box(name, tensor)
        if box.numbers:
            self._ranks.local(tensor.detach()).copy_(stored.read(stored_name, box))

    def _keep_snapshots(self) -> None:
        """Before tensors change: snapshots that are not written yet share them."""
        for snapshot in self._snapshots:
            snapshot.keep()
        self._snapshots.clear()

    def _merged(self, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
        """A whole tensor of the model with its adapter merged; gathered by all processes together."""
        weight = self._ranks.gathered(name, tensors[name].detach())
        if thin := factor_names(name):
            first, second = (self._ranks.gathered(factor, tensors[factor].detach()) for factor in thin)
            return merge(weight, first, second, self._config)
        return weight


def _own(name: str) -> bool:
    """Whether a tensor is the learner's own, and not part of the exported model."""
    return is_factor(name) or name.startswith("value_head.")
