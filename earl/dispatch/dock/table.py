"""Records in ascending order of their number: they come at the end, change anywhere, and go from anywhere."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from earl.dispatch.spread import Numbers

FIRST_ROOM = 64


class Table:
    """Plain arrays behind one another: no object for each record.

    Args:
        kind: a structured type with an integer field "number".
    """

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._room = np.zeros(FIRST_ROOM, kind)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Of all records, and of the room for more."""
        return self._room.nbytes

    def __getitem__(self, field: str) -> NDArray[Any]:
        """A field of all records, which may be changed in place."""
        return self._room[field][: self._count]

    def append(self, **fields: Any) -> None:
        """Add records. Each number is larger than all that there are.

        Args:
            fields: values of every field, one for each record or one for all of them.
        """
        more = len(fields["number"])
        if self._count + more > len(self._room):
            grown = np.zeros(max(self._count + more, 2 * self._count), self._room.dtype)
            grown[: self._count] = self._room[: self._count]
            self._room = grown
        new = self._room[self._count : self._count + more]
        for field, values in fields.items():
            new[field] = values
        self._count += more

    def keep(self, chosen: NDArray[np.bool_]) -> None:
        """Only these records remain."""
        kept = self._room[: self._count][chosen]
        self._room[: len(kept)] = kept
        self._count = len(kept)

    def find(self, numbers: Numbers) -> Numbers:
        """Where records stand, -1 for one that is not there."""
        own = self["number"]
        at = np.minimum(np.searchsorted(own, numbers), max(len(own) - 1, 0))
        return np.where(own[at] == numbers, at, -1) if len(own) else np.full(len(numbers), -1)
