"""Transport through shared memory inside a host; other messages go by another transport. Linux only.

The sender copies a message into an anonymous memfd, and sends process id and descriptor by the other transport; the
receiver maps it. Anonymous memory is freed with its last user, however that process ends.
"""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from earl.dispatch.rows import Numbers
from earl.dispatch.transports.base import Bytes, ProcessLost, Transport

TICKET_BYTES = 16  # two numbers: process id and descriptor


class Shared:
    """A `Transport` around another one. Memory is reused: getting it from the kernel costs more than copying. A message
    is overwritten two exchanges later; its receiver is done with it when it enters the exchange in between."""

    def __init__(self, others: Transport, process: int, hosts: Numbers) -> None:
        self._others, self._process, self._hosts = others, process, hosts
        self._turn = 0
        self._lent: dict[tuple[int, int], tuple[int, mmap.mmap]] = {}
        self._borrowed: dict[tuple[int, int], mmap.mmap] = {}

    def exchange(self, outgoing: Mapping[int, Bytes], sizes: Numbers) -> Mapping[int, Bytes]:
        """See `Transport`. Messages have to be read before the next exchange."""
        self._turn ^= 1
        messages = {
            other: self._lend(other, message) if self._near(other) else message for other, message in outgoing.items()
        }
        near = (self._hosts[:, None] == self._hosts[None, :]) & (sizes > 0)
        came = self._others.exchange(messages, np.where(near, TICKET_BYTES, sizes))
        return {
            other: self._borrow(other, message, int(sizes[other, self._process])) if self._near(other) else message
            for other, message in came.items()
        }

    def most(self, number: int) -> int:
        return self._others.most(number)

    def _near(self, other: int) -> bool:
        return bool(self._hosts[other] == self._hosts[self._process])

    def _lend(self, other: int, message: Bytes) -> Bytes:
        descriptor, memory = self._lent.get((other, self._turn), (-1, None))
        if memory is None or len(memory) < len(message):
            descriptor = os.memfd_create("earl") if memory is None else descriptor
            os.truncate(descriptor, len(message))
            memory = mmap.mmap(descriptor, len(message))
            self._lent[other, self._turn] = descriptor, memory
        memory[: len(message)] = message.data
        return np.array([os.getpid(), descriptor], np.int64).view(np.uint8)

    def _borrow(self, other: int, ticket: Bytes, size: int) -> Bytes:
        process, descriptor = ticket.view(np.int64).tolist()
        memory = self._borrowed.get((process, descriptor))
        if memory is None or len(memory) < size:
            try:
                with Path(f"/proc/{process}/fd/{descriptor}").open("rb") as file:
                    memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise ProcessLost(
                    f"process {other} (host {self._hosts[other]}) ended or hides its memory; what was exchanged is "
                    "thrown away: repeat it"
                ) from error
            self._borrowed[process, descriptor] = memory
        return np.frombuffer(memory, np.uint8, size)
