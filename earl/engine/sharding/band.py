"""The processes that one copy of a sampler's model is split over: the first leads, the others compute what it says.

first:   order ─▶ forward ─▶ logits of all words ─▶ tokens ─▶ …        and nothing else is told
others:  order ─▶ forward ─▶ own words' logits ──┘      └─▶ tokens ─▶ …
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup, TCPStore  # type: ignore[attr-defined]

from earl.parallel.layout import Layout


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the processes of a copy meet, and which of them this one is.

    Example:
        Meeting(rank=1, size=2, address="10.0.0.7", port=40123)
    """

    rank: int
    size: int
    address: str
    port: int
    """At which the first process listens."""


def listening(address: str, port: int = 0) -> Any:
    """Where processes will meet, on the first one's side: who comes to a place that is open is not kept waiting.

    Args:
        port: 0: any that is free; the result, a store of `torch.distributed`, knows which.
    """
    return TCPStore(address, port, is_master=True, wait_for_workers=False)


class Band:
    """A process among those of its copy, from when it was made until `leave`; a process is in one at a time.

    Args:
        place: on the first process, where the others come to; None: it is opened now.
        timeout_seconds: how long an exchange waits before it is given up.
    """

    def __init__(self, meeting: Meeting, place: Any = None, timeout_seconds: float = 1800.0) -> None:
        self.rank, self.layout = meeting.rank, Layout(1, meeting.size)
        if not self.leads:
            place = TCPStore(meeting.address, meeting.port, is_master=False, timeout=timedelta(seconds=timeout_seconds))
        place = place or listening(meeting.address, meeting.port)
        distributed.init_process_group(
            "gloo", store=place, rank=self.rank, world_size=meeting.size, timeout=timedelta(seconds=timeout_seconds)
        )

    @property
    def leads(self) -> bool:
        """Whether this process says what is done."""
        return self.rank == 0

    @property
    def group(self) -> ProcessGroup:
        """All processes of the copy."""
        group: ProcessGroup | None = distributed.group.WORLD
        assert group is not None
        return group

    def told(self, order: Any) -> Any:
        """The first process's order, on all processes."""
        message = [order]
        distributed.broadcast_object_list(message)
        return message[0]

    def gathered(self, part: Tensor, length: int) -> Tensor | None:
        """Parts [B, V'] that were cut along their last axis, put together [B, length]; on the first process alone."""
        size = self.layout.tp
        padded = part.new_zeros(len(part), -(-length // size))
        padded[:, : part.shape[1]] = part
        parts = [torch.empty_like(padded) for _ in range(size)] if self.leads else None
        distributed.gather(padded, parts)
        return torch.cat(parts, dim=1)[:, :length] if parts else None

    def agreed(self, chosen: tuple[Tensor, Tensor] | None, count: int) -> tuple[Tensor, Tensor]:
        """The first process's tokens [count] and log-probs [count], on all processes."""
        message = torch.empty(2, count, dtype=torch.float64)  # holds either exactly
        if chosen is not None:
            message[0], message[1] = chosen
        distributed.broadcast(message, 0)
        return message[0].long(), message[1].float()

    def leave(self) -> None:
        """Be alone again, so that another copy can be joined."""
        distributed.destroy_process_group()
