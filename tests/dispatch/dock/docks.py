"""A small dock with two readers, one of which reads in order."""

import numpy as np

from earl.dispatch.ledger import Consumer, Ledger
from earl.dispatch.rows import columns

NAMES = ("tokens", "reference", "rewards")
SCORE = Consumer("score", columns(["tokens"]), np.arange(2).reshape(2, 1, 1))
UPDATE = Consumer("update", columns(NAMES), np.arange(4).reshape(2, 1, 2), in_order=True)
CAPACITY = 12


def ledger(capacity: int = CAPACITY, consumers=(SCORE, UPDATE)) -> Ledger:
    return Ledger(columns(NAMES), consumers, capacity)


def whole(dock: Ledger, size: int, length: int = 5, process: int = 0, names=NAMES) -> np.ndarray:
    """A group that is ready."""
    numbers = dock.open(size)
    dock.ready(numbers, np.full(size, length), process, names)
    return numbers
