"""How much is on its way at once: pieces that are small enough, and the bucket that each one travels in."""

from collections.abc import Sequence

import numpy as np

from earl.dispatch.spread import Numbers
from earl.errors import EarlError
from earl.parallel.layout import Box

PIECES = 8
"""A piece is at most this part of a bucket, so that at most one such part of a bucket stays empty."""


def largest(bucket_bytes: int, number_bytes: int) -> int:
    """How many numbers a piece may have. Raises EarlError when it would be none."""
    if bucket_bytes < PIECES * number_bytes:
        raise EarlError(
            f"a bucket of {bucket_bytes} bytes has no room for {PIECES} numbers of {number_bytes} bytes; "
            f"give it {PIECES * number_bytes} bytes or more, better some hundred million"
        )
    return bucket_bytes // PIECES // number_bytes


def cut(box: Box, most: int) -> list[Box]:
    """A box in pieces of at most `most` numbers, along its first axes.

    Example:
        >>> [piece.shape for piece in cut(Box((0, 0), (5, 4)), 8)]   # two rows of four, two rows, one row
        [(2, 4), (2, 4), (1, 4)]
    """
    if box.numbers <= most:
        return [box]
    axis = next(axis for axis, size in enumerate(box.shape) if size > 1)
    length = box.shape[axis]
    step = max(1, most * length // box.numbers)
    pieces = []
    for start in range(0, length, step):
        offset = (*box.offset[:axis], box.offset[axis] + start, *box.offset[axis + 1 :])
        shape = (*box.shape[:axis], min(step, length - start), *box.shape[axis + 1 :])
        pieces += cut(Box(offset, shape), most)
    return pieces


def buckets(source: Numbers, destination: Numbers, size: Numbers, bucket_bytes: int, begin: int = 0) -> Numbers:
    """The bucket of each piece, [M]: of no process do those that it sends, receives and keeps add up to more than one.

    Pieces go in the order in which they are given; each into the first bucket that neither of its two processes has
    left yet and that has room for it on both sides.

    Args:
        size: of each piece in bytes, [M], at most `bucket_bytes`.
        begin: the number of the first bucket.
    """
    count = int(max(source.max(initial=-1), destination.max(initial=-1))) + 1
    at, load = [begin] * count, [0] * count
    chosen = np.empty(len(size), np.int64)
    for index, (one, other, add) in enumerate(_rows(source, destination, size)):
        bucket = max(at[one], at[other])
        if any(at[own] == bucket and load[own] + add > bucket_bytes for own in (one, other)):
            bucket += 1
        for own in {one, other}:
            if at[own] < bucket:
                at[own], load[own] = bucket, 0
            load[own] += add
        chosen[index] = bucket
    return chosen


def _rows(*columns: Numbers) -> Sequence[tuple[int, ...]]:
    return [*zip(*(column.tolist() for column in columns), strict=True)]
