"""A sampler whose model is split over several processes by tensor parallelism: weights, keys and values by heads.

Only the first process is called, as any sampler is. Under `together`, the others follow: they receive each `generate`
call and compute the same batches with their part of every layer. Only the first sees whole logits and chooses tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from earl.engine.local import LocalSampler
from earl.engine.model import Policy, bare, tensors_once
from earl.engine.sampler import InBoxes
from earl.engine.sharding.mesh import Band
from earl.engine.sharding.tensor_parallel import split
from earl.parallel.layout import Box
from earl.rollout.prompt import Completion, Prompt

R = TypeVar("R")


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
        if not self._band.leads:
            while order := self._band.told(()):
                self._follow(*_read(order))
            return None
        try:
            return work()
        finally:
            self._band.told(())

    def generate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        released, self._released = self._released, []
        self._band.told(_written(released, prompts))
        return self._follow(released, prompts)

    def release(self, sessions: Sequence[int]) -> None:
        self._released += sessions

    def close(self) -> None:
        """Free everything and leave the process group, so that this process can join others."""
        self._band.leave()
        super().close()

    def _follow(self, released: Sequence[int], prompts: Sequence[Prompt]) -> list[Completion]:
        super().release(released)
        return super().generate(prompts)

    def _described(self, config: Any) -> Any:
        model, layout = bare(config), self._band.layout
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors_once(model).items()}
        axes = split(model, self.tp, self._band.rank, self._band.group).axes
        self._boxes = {name: layout.box(shape, axes.get(name), self._band.rank) for name, shape in shapes.items()}
        return model

    def _part(self, weights: Mapping[str, Tensor], name: str) -> Tensor:
        """This process's part of a tensor; fetches only this part where possible."""
        box = self._boxes[name]
        return weights.part(name, box) if isinstance(weights, InBoxes) else weights[name][box.slices]

    def _whole(self, logits: Tensor) -> Tensor | None:
        return self._band.gathered(logits, self._words)

    def _choose(self, logits: Tensor, seeds: Any, greedy: Any, counter: int) -> tuple[Tensor, Tensor]:
        whole = self._whole(logits)
        chosen = None if whole is None else super()._choose(whole, seeds, greedy, counter)
        return self._band.agreed(chosen, len(logits))


def _written(released: Sequence[int], prompts: Sequence[Prompt]) -> list[int]:
    """A `generate` call as integers: count of released sessions, these, then each prompt with its length in front."""
    order = [len(released), *released]
    for prompt in prompts:
        head = (prompt.session, prompt.seed, prompt.max_tokens, int(prompt.greedy))
        order += (len(prompt.tokens), *head, *prompt.tokens)
    return order


def _read(order: Sequence[int]) -> tuple[Sequence[int], list[Prompt]]:
    at, prompts = order[0] + 1, []
    released = order[1:at]
    while at < len(order):
        length, session, seed, max_tokens, greedy = order[at : at + 5]
        at += 5 + length
        prompts.append(Prompt(session, order[at - length : at], seed, max_tokens, bool(greedy)))
    return released, prompts
