"""Who goes through the same buckets keeps step, so that there is one bucket at a time.

    reader: lets go of a bucket ─▶ comes to its next one ─▶ waits until nobody reads any more ─▶ the lowest one opens

Readers may come late, be slow, or die: nobody is waited for longer than PATIENCE_SECONDS.
"""

import time
from collections.abc import Callable

PATIENCE_SECONDS = 10.0
"""Since a bucket was opened, or somebody came for the first time, until those who are not back are left behind."""


class Lockstep:
    """The one bucket that may be read now.

    Args:
        readers: how many are expected; more may come.
        clock: gives the seconds.

    Example:
        >>> steps = Lockstep(readers=2)
        >>> steps.come("one", 0), steps.come("other", 0), steps.come("one", 0)  # the first asks again
        (False, True, True)
        >>> steps.come("one", 1), steps.leave("other"), steps.come("one", 1)  # the other reads, then leaves
        (False, None, True)
    """

    def __init__(self, readers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._expected, self._clock = readers, clock
        self._known: set[str] = set()
        self._waiting: dict[str, int] = {}
        self._reading: set[str] = set()
        self._open = -1
        self._since = clock()

    def come(self, reader: str, bucket: int) -> bool:
        """Whether a reader may have a bucket now; else it asks again. Of others that it had it has let go."""
        if reader not in self._known:
            self._known.add(reader)
            self._since = self._clock()
        if reader in self._reading and bucket == self._open:
            return True
        self._reading.discard(reader)
        self._waiting[reader] = bucket
        if self._reading and bucket == self._open:
            self._admit()
        elif not (self._reading or len(self._known) < self._expected) or self._late():
            self._expected = 0
            self._reading.clear()
            self._open = min(self._waiting.values())
            self._admit()
            self._since = self._clock()
        return reader in self._reading

    def leave(self, reader: str) -> None:
        """A reader has all that it wants."""
        self._reading.discard(reader)
        self._waiting.pop(reader, None)

    def _late(self) -> bool:
        return self._clock() - self._since > PATIENCE_SECONDS

    def _admit(self) -> None:
        """Let all read who wait for the bucket that is open."""
        self._reading |= {reader for reader, bucket in self._waiting.items() if bucket == self._open}
        for reader in self._reading:
            self._waiting.pop(reader, None)
