"""What a process of a cluster may take of memory, and what it took: by stage, above what it had at its start.

The kernel refuses what is above the budget (RLIMIT_DATA: private memory, not what is shared with Ray's object store),
so that torch raises the very error that it raises where a machine has no more. On GPUs the device itself does.
"""

import ctypes
import resource
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from earl.engine.heap import PIECE_BYTES, give_back_pieces
from earl.errors import OutOfMemory

SAID = ("can't allocate memory", "out of memory", "bad_alloc", "Cannot allocate memory")
"""In what torch raises where there is no memory; only CUDA has a class of errors for it."""
RESERVED_BYTES = 64 << 20
"""That a process may reserve without ever touching it: stacks, and what allocators keep in advance; the kernel counts
it all the same."""
STACK_BYTES = 1 << 20
"""Of a thread, instead of 8 MiB."""
ATTRIBUTES_BYTES = 64
"""What glibc keeps of a thread's attributes, at most."""
OWN = Path("/proc/self")
RESET_PEAK = "5"
"""Written to clear_refs: the peak is what is resident now."""


class Budget:
    """One process's memory, from now on.

    Args:
        most: bytes that it may take from now on; None: as many as there are.
        who: has it, where others may hear of it that did not ask; empty: whoever asked knows.
    """

    def __init__(self, most: int | None, who: str = "") -> None:
        self._who = who
        self._cuda = torch.cuda.is_available()
        self._most = None if self._cuda else most
        if self._most is not None:
            give_back_pieces(PIECE_BYTES)
        _trim()
        self._data = _status("VmData")
        self._resident = _status("RssAnon")
        self._peaks: dict[str, int] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Bound and measure a stage.

        Raises:
            OutOfMemory: for whatever error says so, once all that the stage held is let go of.
        """
        shared, hard = self._begin(), resource.getrlimit(resource.RLIMIT_DATA)[1]
        said = None
        try:
            if self._most is not None:
                resource.setrlimit(resource.RLIMIT_DATA, (self._data + self._most + RESERVED_BYTES, hard))
            yield
        except (MemoryError, RuntimeError) as error:
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
            if not of_memory(error):
                raise
            said = str(error).partition("DefaultCPUAllocator: ")[2] or str(error) or "nothing is left of its budget"
            traceback.clear_frames(error.__traceback__)  # they hold what the stage had made
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
            self._peaks[name] = max(self._peaks.get(name, 0), self._peak(shared))
        if said is not None:
            raise OutOfMemory(name, self._who, said.partition("\n")[0])

    def peaks(self) -> dict[str, int]:
        """The most bytes above the start by stage, since this was last asked."""
        peaks, self._peaks = self._peaks, {}
        return peaks

    def _begin(self) -> int:
        """Bytes in view already that are not this process's own: of the object store, and of libraries."""
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
            return 0
        if self._most is not None:
            _trim()
        (OWN / "clear_refs").write_text(RESET_PEAK)
        return _status("RssShmem") + _status("RssFile")

    def _peak(self, shared: int) -> int:
        if self._cuda:
            return torch.cuda.max_memory_allocated()
        return max(0, _status("VmHWM") - shared - self._resident)


@contextmanager
def aside() -> Iterator[None]:
    """Let Ray do its own part of a stage: it copies into shared memory, by threads that it must be able to begin."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def of_memory(error: BaseException | None) -> bool:
    """Whether an error says that there is no memory, or came of one that does."""
    if error is None:
        return False
    said = isinstance(error, MemoryError) or any(word in str(error) for word in SAID)
    return said or of_memory(error.__context__)


def _status(key: str) -> int:
    """A line of the kernel's account of this process, in bytes."""
    for line in (OWN / "status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    return 0


def _trim() -> None:
    """Give freed memory back to the kernel."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def thin_threads() -> None:
    """Give threads that begin from now on less stack: the kernel counts all of it, and Ray ends the process when it
    cannot begin one. It copies a large object by several."""
    library = ctypes.CDLL(None)
    if hasattr(library, "pthread_attr_setdefault_np"):
        attributes = ctypes.create_string_buffer(ATTRIBUTES_BYTES)
        library.pthread_attr_init(attributes)
        library.pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK_BYTES))
        library.pthread_attr_setdefault_np(attributes)
