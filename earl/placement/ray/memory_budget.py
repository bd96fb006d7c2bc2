"""What a process of a cluster may take of memory, and what it took: by stage, above what it had at its start.

The kernel refuses what is above the budget (RLIMIT_DATA: private memory, not what is shared with Ray's object store),
so that torch raises the very error that it raises where a machine has no more. On GPUs the device itself does.

    bound = what is reserved now + budget - what is in use now          set again every few milliseconds

The kernel counts what is reserved, and Ray's processes reserve 100 MiB and more that they never touch: stacks of
threads, and heaps of each. A bound that follows what is in use leaves that out.
"""

import ctypes
import resource
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from earl.engine.heap import PIECE_BYTES, give_back_pieces
from earl.errors import OutOfMemory

SAID = ("can't allocate memory", "out of memory", "bad_alloc", "Cannot allocate memory")
"""In what torch raises where there is no memory; only CUDA has a class of errors for it."""
SPARE_BYTES = 16 << 20
"""Of the budget, beside what work may take: what was reserved before is in use without asking the kernel again, and
others begin threads."""
FOLLOW_SECONDS = 0.005
"""How often the bound follows what is in use."""
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
        self._resident = _status("RssAnon")
        self._peaks: dict[str, int] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Bound and measure a stage.

        Raises:
            OutOfMemory: for whatever error says so, once all that the stage held is let go of.
        """
        shared = self._begin()
        said = None
        try:
            with self._kept():
                yield
        except (MemoryError, RuntimeError) as error:
            if not of_memory(error):
                raise
            said = str(error).partition("DefaultCPUAllocator: ")[2] or str(error) or "nothing is left of its budget"
            traceback.clear_frames(error.__traceback__)  # they hold what the stage had made
        finally:
            self._peaks[name] = max(self._peaks.get(name, 0), self._peak(shared))
        if said is not None:
            raise OutOfMemory(name, self._who, said.partition("\n")[0])

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Have the kernel refuse what is above the budget, for as long as this lasts."""
        if self._most is None:
            yield
            return
        ended = threading.Event()
        following = threading.Thread(target=self._follow, args=(ended,), daemon=True)
        following.start()  # while there is still room for its stack
        try:
            self._bind()
            yield
        finally:
            ended.set()
            following.join()
            _BOUND.set(resource.RLIM_INFINITY)

    def _follow(self, ended: threading.Event) -> None:
        while not ended.wait(FOLLOW_SECONDS):
            self._bind()

    def _bind(self) -> None:
        assert self._most is not None
        used = _status("RssAnon") - self._resident
        _BOUND.set(max(0, _status("VmData") + self._most - SPARE_BYTES - used))

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


class _Bound:
    """What the kernel lets this process reserve; nothing is refused while anybody stands aside."""

    def __init__(self) -> None:
        self._lock, self._aside, self._most = threading.Lock(), 0, resource.RLIM_INFINITY

    def set(self, most: int) -> None:
        """From now on. most: bytes, RLIM_INFINITY for no bound."""
        with self._lock:
            self._most = most
            self._apply()

    def step(self, aside: int) -> None:
        """One more that stands aside, or one less."""
        with self._lock:
            self._aside += aside
            self._apply()

    def _apply(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = hard if self._aside or self._most == resource.RLIM_INFINITY else self._most
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


_BOUND = _Bound()


@contextmanager
def aside() -> Iterator[None]:
    """Let Ray do its own part of a stage: it copies into shared memory, by threads that it must be able to begin."""
    _BOUND.step(1)
    try:
        yield
    finally:
        _BOUND.step(-1)


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
