"""Groups in the order in which they were opened: how many rows, who makes them, and what each is to every consumer."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from earl.batch import offsets_of
from earl.dispatch.dock.places import few
from earl.dispatch.dock.table import Table
from earl.dispatch.spread import Numbers
from earl.errors import EarlError, unknown

WAITING, TAKEN, DONE = 0, 1, 2
"""What a group is to a consumer."""
NOBODY = -1
"""Who makes a group that nobody has begun."""


class Groups:
    """The groups of a ledger, G of them, each named by the number of its first row.

    Args:
        consumers: their names.
    """

    def __init__(self, consumers: Sequence[str]) -> None:
        self._consumers = consumers
        state = ("state", np.uint8, (len(consumers),))
        self.table = Table(np.dtype([("number", np.int64), ("size", np.int64), ("maker", np.int32), state]))

    @property
    def sizes(self) -> Numbers:
        """[G], in rows."""
        sizes: Numbers = self.table["size"]
        return sizes

    @property
    def starts(self) -> Numbers:
        """[G], where the rows of each begin."""
        return offsets_of(self.sizes)[:-1]

    def append(self, number: int, size: int) -> None:
        """A group that everybody waits for, and nobody makes."""
        self.table.append(number=[number], size=size, maker=NOBODY, state=WAITING)

    def begin(self, number: int, process: int) -> None:
        """A process makes a group. Raises EarlError when it is not there, or another one does."""
        at = self.table.find(np.array([number]))
        if at[0] < 0 or self.table["maker"][at[0]] != NOBODY:
            raise EarlError(
                f"group {number} is not in the dock, or is made already; begin what `open` gave or `lost` named, once"
            )
        self.table["maker"][at] = process

    def makers(self, numbers: Numbers) -> NDArray[np.int32]:
        """The process that makes, or made, each of some groups."""
        makers: NDArray[np.int32] = self.table["maker"][self.table.find(numbers)]
        return makers

    def lost(self, process: int, rows: Numbers) -> Numbers:
        """The groups that a process makes, or made, and those of some rows, each once: nobody makes them now."""
        number, maker = self.table["number"], self.table["maker"]
        struck = maker == process
        struck[np.searchsorted(number, rows, side="right") - 1] = True
        maker[struck] = NOBODY
        found: Numbers = number[struck]
        return found

    def waiting(self, consumer: str) -> NDArray[np.bool_]:
        """Whether each still waits for a consumer, [G]."""
        waits: NDArray[np.bool_] = self._state(consumer) == WAITING
        return waits

    def take(self, consumer: str, at: Numbers) -> None:
        """Groups, by their place, are a consumer's."""
        self._state(consumer)[at] = TAKEN

    def settle(self, consumer: str, numbers: Numbers, to: int) -> None:
        """What became of groups that a consumer had taken. Raises EarlError when it had not."""
        at, state = self.table.find(numbers), self._state(consumer)
        if (at < 0).any() or (state[at] != TAKEN).any():
            raise EarlError(
                f"{consumer!r} has not taken groups {few(numbers)}, or has said what became of them; "
                "say done or back once for each hand-out"
            )
        state[at] = to

    def over(self) -> NDArray[np.bool_]:
        """Whether every consumer is done with each, [G]."""
        over: NDArray[np.bool_] = (self.table["state"] == DONE).all(axis=1)
        return over

    def idle(self, number: int) -> NDArray[np.bool_]:
        """True for one group alone, [G]. Raises EarlError when it is not there, or on its way to a consumer."""
        at = self.table.find(np.array([number]))
        if at[0] < 0 or (self.table["state"][at] == TAKEN).any():
            raise EarlError(f"group {number} is not in the dock, or is taken; give up one that waits for its rows")
        found: NDArray[np.bool_] = np.arange(len(self.table)) == at[0]
        return found

    def _state(self, consumer: str) -> NDArray[np.uint8]:
        """[G], may be changed in place."""
        if consumer not in self._consumers:
            raise unknown("consumer", consumer, self._consumers)
        state: NDArray[np.uint8] = self.table["state"][:, self._consumers.index(consumer)]
        return state
