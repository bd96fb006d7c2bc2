"""What all transports promise."""

from collections.abc import Mapping
from typing import Protocol

from earl.dispatch.messages import Bytes
from earl.dispatch.spread import Numbers
from earl.errors import EarlError


class Transport(Protocol):
    """How messages get from process to process. All processes call each function, in the same order."""

    def exchange(self, outgoing: Mapping[int, Bytes], sizes: Numbers) -> Mapping[int, Bytes]:
        """Give every process its message and take one from each of the others.

        Args:
            outgoing: by destination; each may be made when it is first asked for.
            sizes: [P, P], bytes from each process to each other one, the same on all; 0 where there is no message.

        Raises:
            Lost, Late: with the name of the process, and where it is.
        """

    def most(self, number: int) -> int:
        """The largest number, at least 0, that any process gives: none goes on before all have come here.

        Raises:
            Lost, Late: as above.
        """


class Corrupted(EarlError):
    """A message is not what was sent."""


class Lost(EarlError):
    """A process has ended, or cannot be reached."""


class Late(EarlError):
    """A process is there, and did not do its part in time."""
