"""Memory budget and peak memory of a process, by stage, relative to its start.

The kernel enforces the budget by RLIMIT_DATA (private memory, without Ray's shared object store), so torch raises its
usual out-of-memory error. On GPUs the device itself is the limit. The kernel counts reserved memory, and Ray's
processes reserve 100 MiB and more that they never touch, so the limit is reset every few milliseconds: reserved now +
budget - used now.
"""

import ctypes
import resource
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from earl.engine.heap import give_back
from earl.errors import OutOfMemory

SAID = ("can't allocate memory", "out of memory", "bad_alloc", "Cannot allocate memory")
"""Texts of out-of-memory errors; only CUDA has an error class for them."""
SPARE_BYTES = 16 << 20
"""Held back from the budget: memory reserved earlier may become used unnoticed, and other threads start."""
FOLLOW_SECONDS = 0.005  # interval at which the limit is reset
STACK_BYTES = 1 << 20  # per thread, instead of 8 MiB
ATTRIBUTES_BYTES = 64  # upper bound of glibc's struct of thread attributes
OWN = Path("/proc/self")
RESET_PEAK = "5"  # written to clear_refs: resets the peak to the resident size


class Budget:
    """One process's memory, from now on. most: bytes that it may use; None: unlimited. who: name for errors that reach
    processes other than the caller; empty: none."""

    def __init__(self, most: int | None, who: str = "") -> None:
        self._who = who
        self._cuda = torch.cuda.is_available()
        self._most = None if self._cuda else most
        if self._most is not None:
            give_back()
        trim()
        self._resident = status_bytes("RssAnon")
        self._peaks: dict[str, int] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Bound and measure a stage. Raises OutOfMemory for any such error, after the stage's objects are released."""
        shared = self._begin()
        said = None
        try:
            with self._kept():
                yield
        except (MemoryError, RuntimeError) as error:
            if not of_memory(error):
                raise
            said = str(error).partition("DefaultCPUAllocator: ")[2] or str(error) or "nothing is left of its budget"
            traceback.clear_frames(error.__traceback__)  # frames hold the stage's objects
        finally:
            peak = torch.cuda.max_memory_allocated() if self._cuda else status_bytes("VmHWM") - shared - self._resident
            self._peaks[name] = max(self._peaks.get(name, 0), peak)
        if said is not None:
            raise OutOfMemory(name, self._who, said.partition("\n")[0])

    @contextmanager
    def _kept(self) -> Iterator[None]:
        if self._most is None:
            yield
            return
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(FOLLOW_SECONDS):
                self._bind()

        following = threading.Thread(target=follow, daemon=True)
        following.start()  # while there is room for its stack
        try:
            self._bind()
            yield
        finally:
            ended.set()
            following.join()
            _LIMIT.change(resource.RLIM_INFINITY)

    def _bind(self) -> None:
        assert self._most is not None
        used = status_bytes("RssAnon") - self._resident
        _LIMIT.change(max(0, status_bytes("VmData") + self._most - SPARE_BYTES - used))

    def peaks(self) -> dict[str, int]:
        """Peak bytes above the start by stage, since this was last asked."""
        peaks, self._peaks = self._peaks, {}
        return peaks

    def _begin(self) -> int:
        """Resident bytes that are not this process's own: of the object store, and of libraries."""
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
            return 0
        if self._most is not None:
            trim()
        (OWN / "clear_refs").write_text(RESET_PEAK)
        return status_bytes("RssShmem") + status_bytes("RssFile")


class _Limit:
    """The kernel's limit for this process, in bytes; suspended while any thread is in `aside`."""

    def __init__(self) -> None:
        self._lock, self._aside, self._most = threading.Lock(), 0, resource.RLIM_INFINITY

    def change(self, most: int | None = None, aside: int = 0) -> None:
        """Set it (RLIM_INFINITY: none), or count one more user of `aside`, or one less."""
        with self._lock:
            self._aside += aside
            self._most = self._most if most is None else most
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            soft = hard if self._aside or self._most == resource.RLIM_INFINITY else self._most
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


_LIMIT = _Limit()


@contextmanager
def aside() -> Iterator[None]:
    """Suspend the limit while Ray copies into shared memory: it must be able to start threads."""
    _LIMIT.change(aside=1)
    try:
        yield
    finally:
        _LIMIT.change(aside=-1)


def of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one in its context, is an out-of-memory error."""
    if error is None:
        return False
    said = isinstance(error, MemoryError) or any(word in str(error) for word in SAID)
    return said or of_memory(error.__context__)


def status_bytes(key: str) -> int:
    """A memory count of /proc/self/status in bytes; 0 where it is missing."""
    for line in (OWN / "status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    return 0


def trim() -> None:
    """Give freed memory back to the system."""
    own = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if own is not None:
        own(0)


def thin_threads() -> None:
    """Give new threads smaller stacks: the kernel counts them whole, and Ray, which copies large objects by several
    threads, ends the process when it cannot start one."""
    library = ctypes.CDLL(None)
    if hasattr(library, "pthread_attr_setdefault_np"):
        attributes = ctypes.create_string_buffer(ATTRIBUTES_BYTES)
        library.pthread_attr_init(attributes)
        library.pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK_BYTES))
        library.pthread_attr_setdefault_np(attributes)
