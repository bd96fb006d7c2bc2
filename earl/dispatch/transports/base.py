"""What all transports promise."""

from collections.abc import Mapping
from typing import Protocol

from earl.dispatch.messages import Bytes
from earl.errors import EarlError


class Transport(Protocol):
    """How messages get from process to process. All processes call each function, in the same order."""

    def exchange(self, outgoing: Mapping[int, Bytes], expected: Mapping[int, int]) -> Mapping[int, Bytes]:
        """Give every process its message and take one from each of the others.

        Args:
            outgoing: by destination.
            expected: the size of what comes, in bytes, by source.

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
