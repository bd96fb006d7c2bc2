"""What a row consists of: named columns, of numbers for every token, or of one number for the whole row."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from earl.errors import unknown

Axis = Literal["token", "row"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a batch.

    Example:
        Column("topk_logprobs", "float32", width=20)   # of every token the 20 most likely: 80 bytes
    """

    name: str
    kind: str
    """As numpy calls the type of a number, without byte order."""
    width: int = 1
    """Numbers for each token or row."""
    axis: Axis = "token"

    @property
    def dtype(self) -> DTypeLike:
        """Of one number."""
        return np.dtype(self.kind)

    @property
    def size_bytes(self) -> int:
        """Of a token, or of a row."""
        return np.dtype(self.kind).itemsize * self.width


COLUMNS = {
    column.name: column
    for column in (
        Column("tokens", "int32"),
        Column("mask", "bool"),
        Column("targets", "int32"),
        Column("logprobs", "float32"),
        Column("turns", "int32"),
        Column("value_mask", "bool"),
        Column("reference", "float32"),
        Column("values", "float32"),
        Column("advantages", "float32"),
        Column("returns", "float32"),
        Column("rewards", "float32", axis="row"),
    )
}
"""Of a batch; see `earl.batch.Batch`."""


def top_k(k: int) -> tuple[Column, Column]:
    """What a model is distilled from: the `k` most likely tokens at every position, and their log-probs."""
    return Column("topk_tokens", "int32", k), Column("topk_logprobs", "float32", k)


def columns(names: Iterable[str]) -> tuple[Column, ...]:
    """Columns by name. Raises EarlError for one that there is not."""
    found = []
    for name in names:
        if name not in COLUMNS:
            raise unknown("column", name, COLUMNS)
        found.append(COLUMNS[name])
    return tuple(found)
