"""Rows between processes: bytes without pickle, and one order for all, however many processes there are."""

import io
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from earl.batch import Rows, offsets_of


def rows_to_bytes(rows: Rows, order: NDArray[np.int64]) -> bytes:
    """Rows, and the place of each row's episode [N] among those of all processes."""
    buffer = io.BytesIO()
    np.savez(buffer, order=order, **{field.name: getattr(rows, field.name) for field in fields(Rows)})
    return buffer.getvalue()


def rows_from_bytes(data: bytes) -> tuple[Rows, NDArray[np.int64]]:
    """What `rows_to_bytes` wrote."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return Rows(**{field.name: arrays[field.name] for field in fields(Rows)}), arrays["order"]


def joined(shares: Sequence[tuple[Rows, NDArray[np.int64]]]) -> Rows:
    """Rows of all processes in the order of their episodes, however many processes there are."""
    parts = [rows for rows, _ in shares]
    order = np.argsort(np.concatenate([order for _, order in shares]), kind="stable")
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(Rows)
        if field.name not in ("offsets", "turns")
    }
    turns, first = [], 0
    for part in parts:
        turns.append(np.where(part.turns >= 0, part.turns + first, -1).astype(np.int32))
        first += int(part.turns.max(initial=-1)) + 1
    lengths = np.concatenate([part.lengths for part in parts])
    return Rows(offsets=offsets_of(lengths), turns=np.concatenate(turns), **columns).select(order)
