"""The processes that one copy of a sampler's model is split over: the first leads, the others follow its orders.

Each computes the logits of its part of the vocabulary; the first gathers them, chooses tokens, and broadcasts these.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from earl.dispatch.transports.rendezvous import PATIENCE_SECONDS, Rendezvous, Sealed
from earl.engine.sharding.mesh import join_group
from earl.parallel.layout import Layout


@dataclass(frozen=True, slots=True)
class Meeting:
    rank: int
    size: int
    place: Rendezvous  # the first process opens it


class Band:
    """A process's membership in the group of its copy, until `leave`; a process is in one group at a time. store: on
    the first process, an already opened store; None: opened now."""

    def __init__(
        self, meeting: Meeting, store: Sealed | None = None, timeout_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self.rank, self.layout = meeting.rank, Layout(1, meeting.size)
        cpu = torch.device("cpu")
        self._store = join_group(self.rank, meeting.size, meeting.place, store, cpu, timeout_seconds)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def group(self) -> ProcessGroup:
        group: ProcessGroup | None = distributed.group.WORLD
        assert group is not None
        return group

    def told(self, order: Sequence[int]) -> list[int]:
        """The first process's order, on all processes: 64-bit integers, so that no data can run code."""
        size = torch.tensor([len(order)])
        distributed.broadcast(size, 0)
        if not int(size):
            return []
        own = torch.frombuffer(array("q", order), dtype=torch.int64) if self.leads else None
        message = torch.empty(int(size), dtype=torch.int64) if own is None else own
        distributed.broadcast(message, 0)
        numbers: list[int] = message.tolist()
        return numbers

    def gathered(self, part: Tensor, length: int) -> Tensor | None:
        """Parts [B, V'] cut along the last axis, concatenated to [B, length]; on the first process only."""
        size = self.layout.tp
        padded = part.new_zeros(len(part), -(-length // size))
        padded[:, : part.shape[1]] = part
        parts = [torch.empty_like(padded) for _ in range(size)] if self.leads else None
        distributed.gather(padded, parts)
        return torch.cat(parts, dim=1)[:, :length] if parts else None

    def agreed(self, chosen: tuple[Tensor, Tensor] | None, count: int) -> tuple[Tensor, Tensor]:
        """The first process's tokens [count] and log-probs [count], on all processes."""
        message = torch.empty(2, count, dtype=torch.float64)  # exact for both
        if chosen is not None:
            message[0], message[1] = chosen
        distributed.broadcast(message, 0)
        return message[0].long(), message[1].float()

    def leave(self) -> None:
        distributed.destroy_process_group()
