"""A sampler whose model is split over several processes by tensor parallelism: weights, keys and values by heads.

Only the first process is called, as any sampler is. Under `together`, the others follow: they receive each `generate`
call and compute the same batches with their part of every layer. Only the first chooses tokens.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from earl.dispatch.transports.rendezvous import PATIENCE_SECONDS, Rendezvous, Sealed
from earl.engine.local import LocalSampler
from earl.engine.model import Policy, bare, shape_of, tensors_once
from earl.engine.sampler import InBoxes
from earl.engine.sharding.mesh import join_group
from earl.engine.sharding.tensor_parallel import gathered, split
from earl.parallel.layout import Box, Layout, check_split
from earl.rollout.prompt import Completion, Prompt

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Meeting:
    rank: int
    size: int
    place: Rendezvous  # the first process opens it


class Band:
    """A process's membership in the group of its copy; a process is in one group at a time. store: on the first
    process, an already opened store; None: opened now."""

    def __init__(
        self, meeting: Meeting, store: Sealed | None = None, timeout_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self.rank, self.layout = meeting.rank, Layout(1, meeting.size)
        cpu = torch.device("cpu")
        self._store = join_group(self.rank, meeting.size, meeting.place, store, cpu, timeout_seconds)
        group: ProcessGroup | None = distributed.group.WORLD
        assert group is not None
        self.group = group

    def told(self, order: bytes) -> bytes:
        """The first process's order, on all processes: JSON or nothing, so that no data can run code."""
        size = torch.tensor([len(order)])
        distributed.broadcast(size, 0)
        message = torch.empty(int(size), dtype=torch.uint8)
        if order:
            message = torch.frombuffer(bytearray(order), dtype=torch.uint8)
        if len(message):
            distributed.broadcast(message, 0)
        return message.numpy().tobytes()


class SplitSampler(LocalSampler):
    """One process's part of a sampler; every process of `band` makes its own. room_bytes: of this process. Raises
    EarlError when the model cannot be split over this many processes."""

    def __init__(self, policy: Policy, band: Band, temperature: float = 1.0, room_bytes: int | None = None) -> None:
        self._band, self.tp = band, band.layout.tp
        self._words = policy.model.config.get_text_config().vocab_size
        self._boxes: dict[str, Box] = {}
        self._released: list[int] = []
        super().__init__(policy, temperature, room_bytes)

    def together(self, work: Callable[[], R]) -> R | None:
        """Run `work`, which may call the sampler. All processes call this; the others follow the first until it is
        done. Returns its result on the first process."""
        if self._band.rank:
            while order := self._band.told(b""):
                released, asked = json.loads(order)
                self._follow(released, [Prompt(*fields) for fields in asked])
            return None
        try:
            return work()
        finally:
            self._band.told(b"")

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        released, self._released = self._released, []
        asked = [(p.session, [*p.tokens], p.seed, p.max_tokens, p.greedy) for p in prompts]
        self._band.told(json.dumps((released, asked), default=int).encode())
        return self._follow(released, prompts)

    def release(self, sessions: Sequence[int]) -> None:
        self._released += sessions

    def close(self) -> None:
        """Free everything and leave the process group, so that this process can join others."""
        distributed.destroy_process_group()
        super().close()

    def _follow(self, released: Sequence[int], prompts: Sequence[Prompt]) -> list[Completion]:
        super().release(released)
        return super().generate(prompts)

    def _described(self, config: Any) -> Any:
        model, layout = bare(config), self._band.layout
        check_split(shape_of(model), "sampler.tp", self.tp, replicated=False)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors_once(model).items()}
        axes = split(model, self.tp, self._band.rank, self._band.group).axes
        self._boxes = {name: layout.box(shape, axes.get(name), self._band.rank) for name, shape in shapes.items()}
        return model

    def _part(self, weights: Mapping[str, Tensor], name: str) -> Tensor:
        """This process's part of a tensor; fetches only this part where possible."""
        box = self._boxes[name]
        return weights.part(name, box) if isinstance(weights, InBoxes) else weights[name][box.slices]

    def _whole(self, logits: Tensor) -> Tensor:
        return gathered(logits, 1, self._words, self._band.group)

    def _choose(self, logits: Tensor, seeds: Any, greedy: Any, counter: int) -> tuple[Tensor, Tensor]:
        whole, agreed = self._whole(logits), torch.empty(2, len(logits), dtype=torch.float64)  # exact for both
        if not self._band.rank:
            agreed[0], agreed[1] = super()._choose(whole, seeds, greedy, counter)
        distributed.broadcast(agreed, 0)
        return agreed[0].long(), agreed[1].float()
