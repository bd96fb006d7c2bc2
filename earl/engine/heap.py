"""The C library's heap: where samples are long, freed memory is given back instead of being kept for later."""

import ctypes
import sys

LONG_TOKENS = 8192
"""Micro-batches from here on have activations of such sizes that keeping them for later costs more than it saves."""
PIECE_BYTES = 1 << 20
GIVE_BACK = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 16),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 16),
    "MALLOC_TOP_PAD_": "0",
    "MALLOC_ARENA_MAX": "1",
}
"""The environment of a process that is to have no more than it uses, whatever its samples: where memory is measured, or
where there is a budget for it."""
M_MMAP_THRESHOLD = -3
"""Of glibc's mallopt: larger pieces are mapped one by one, and unmapped when they are freed."""


def give_back(tokens: int) -> None:
    """Have pieces of PIECE_BYTES and more given back, in a process whose micro-batches have so many tokens.

    By default glibc keeps pieces of up to 32 MiB; measured in docs/notes.md. Other C libraries are left as they are.
    """
    if tokens >= LONG_TOKENS:
        give_back_pieces(PIECE_BYTES)


def give_back_pieces(size: int) -> None:
    """Have pieces of so many bytes and more given back."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_MMAP_THRESHOLD, size)
