"""Messages between processes of one host through memory that they share; all others by another transport. Linux only.

sender: message ─▶ memory without a name ─▶ its process and descriptor, by the other transport ─▶ receiver maps it

Memory without a name is gone with its last user, however that one ends: nothing is left behind.
"""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from earl.dispatch.messages import Bytes
from earl.dispatch.spread import Numbers
from earl.dispatch.transports.base import Lost, Transport

TICKET_BYTES = 16
"""What goes by the other transport: two numbers."""


class Shared:
    """A `Transport` around another one."""

    def __init__(self, others: Transport, process: int, hosts: Numbers) -> None:
        """`others` carries what leaves the host. hosts: [P], the host of each process."""
        self._others, self._process, self._hosts = others, process, hosts

    def exchange(self, outgoing: Mapping[int, Bytes], expected: Mapping[int, int]) -> Mapping[int, Bytes]:
        """See `Transport`."""
        lent: list[int] = []
        try:
            tickets = {other: self._lend(message, lent) for other, message in outgoing.items() if self._near(other)}
            sizes = {other: TICKET_BYTES if self._near(other) else size for other, size in expected.items()}
            came = self._others.exchange({**outgoing, **tickets}, sizes)
            messages = {
                other: self._borrowed(other, message, expected[other]) if self._near(other) else message
                for other, message in came.items()
            }
            self._others.most(0)  # all have it before the sender lets go
            return messages
        finally:
            for descriptor in lent:
                os.close(descriptor)

    def most(self, number: int) -> int:
        """See `Transport`."""
        return self._others.most(number)

    def _near(self, other: int) -> bool:
        return bool(self._hosts[other] == self._hosts[self._process])

    def _lend(self, message: Bytes, lent: list[int]) -> Bytes:
        descriptor = os.memfd_create("earl")
        lent.append(descriptor)
        os.truncate(descriptor, len(message))
        with mmap.mmap(descriptor, len(message)) as memory:
            memory.write(message.data)
        return np.array([os.getpid(), descriptor], np.int64).view(np.uint8)

    def _borrowed(self, other: int, ticket: Bytes, size: int) -> Bytes:
        process, descriptor = ticket.view(np.int64).tolist()
        try:
            with Path(f"/proc/{process}/fd/{descriptor}").open("rb") as file:
                return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8)
        except OSError as error:
            raise Lost(
                f"process {other} (host {self._hosts[other]}) ended or hides its memory; what was exchanged is thrown "
                "away: repeat it"
            ) from error
