"""Makes the C library's heap return freed memory to the system where samples are long."""

import ctypes
import sys

LONG_TOKENS = 8192
"""From this micro-batch size on, keeping freed activations costs more than it saves."""
PIECE_BYTES = 1 << 20
GIVE_BACK = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 16),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 16),
    "MALLOC_TOP_PAD_": "0",
    "MALLOC_ARENA_MAX": "1",
}
"""Environment of a process that has to return all freed memory: where memory is measured, or has a budget."""
M_MMAP_THRESHOLD = -3
"""Parameter of glibc's mallopt: larger blocks are mapped one by one, and unmapped when freed."""


def give_back(tokens: int = LONG_TOKENS) -> None:
    """Return blocks of PIECE_BYTES and more, if micro-batches have at least LONG_TOKENS tokens. By default glibc keeps
    blocks of up to 32 MiB; measured in docs/notes.md. Other C libraries are left alone."""
    if tokens >= LONG_TOKENS and sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_MMAP_THRESHOLD, PIECE_BYTES)
