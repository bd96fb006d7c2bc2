"""The processes that share the work of an embedded run: same program, same weights, each its share.

`earl train` is rank 0, which also records; it starts the other ranks, which end with it. They are connected by gloo
over loopback.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import FileStore, ProcessGroupGloo

from earl.errors import EarlError

PATIENCE = timedelta(minutes=30)
"""How long a process waits for another one. The death of a process is noticed at once, by its closed connection."""
PR_SET_PDEATHSIG = 1
Item = TypeVar("Item")


class WorkerLost(EarlError):
    """Another process of the run has ended."""


class Peers:
    """One process's connection to the others. In a single process, every exchange is the identity."""

    def __init__(self, rank: int = 0, size: int = 1, group: ProcessGroupGloo | None = None) -> None:
        self.rank, self.size = rank, size
        self._group: Any = group  # torch does not declare the types of its collectives

    def add(self, values: Tensor) -> Tensor:
        """The sum over all processes, bit-identical on each."""
        if self._group is not None:
            with _naming_loss():
                self._group.allreduce([values]).wait()
        return values

    def gather(self, data: bytes) -> list[bytes]:
        """Every process's bytes, by rank, on every process."""
        if self._group is None:
            return [data]
        with _naming_loss():
            sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
            self._group.allgather([sizes], [torch.tensor([len(data)])]).wait()
            longest = max(int(size) for size in sizes)
            own = torch.zeros(longest, dtype=torch.uint8)
            own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else own[:0]
            parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
            self._group.allgather([parts], [own]).wait()
        return [part[: int(size)].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]

    def share(self, value: Item, write: Callable[[Item], bytes], read: Callable[[bytes], Item]) -> list[Item]:
        """Every process's value, by rank, on every process."""
        return [value] if self._group is None else [read(data) for data in self.gather(write(value))]

    def agree(self, flag: bool) -> bool:
        return bool(self.add(torch.tensor([float(flag)])).item())


@contextmanager
def start_peers(size: int, rendezvous: Path, command: Sequence[str]) -> Iterator[Peers]:
    """Start `size` - 1 more processes and join them; they end with this context. rendezvous: a temporary file to find
    each other. command: the arguments of Python; rank, size, rendezvous are appended."""
    if size == 1:
        yield Peers()
        return
    rendezvous.unlink(missing_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    children = [
        subprocess.Popen(
            [sys.executable, *command, str(rank), str(size), str(rendezvous)],
            stdin=subprocess.PIPE,
            stdout=2,  # standard output is for the first process's results
            env=environment,
            process_group=0,  # Ctrl-C is only for the first process
        )
        for rank in range(1, size)
    ]
    try:
        with join_peers(0, size, rendezvous, lambda: any(child.poll() is not None for child in children)) as peers:
            yield peers
    finally:
        for child in children:
            assert child.stdin is not None
            child.stdin.close()  # a peer ends when this pipe does
        for child in children:
            child.wait()
        rendezvous.unlink(missing_ok=True)


@contextmanager
def join_peers(rank: int, size: int, rendezvous: Path, lost: Callable[[], bool] = lambda: False) -> Iterator[Peers]:
    """Be one of `size` processes until the context ends. lost: tells, during set-up, whether another one has ended."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    with _naming_loss():
        group = _meet(lambda: ProcessGroupGloo(FileStore(str(rendezvous), size), rank, size, PATIENCE), lost)
    yield Peers(rank, size, group)


def _meet(join: Callable[[], ProcessGroupGloo], lost: Callable[[], bool]) -> ProcessGroupGloo:
    """Call `join` in a thread, which is abandoned if it would wait for a process that has ended."""
    joined: Future[ProcessGroupGloo] = Future()

    def attempt() -> None:
        try:
            joined.set_result(join())
        except RuntimeError as error:
            joined.set_exception(error)

    threading.Thread(target=attempt, daemon=True).start()
    while not wait([joined], timeout=0.05).done:
        if lost():
            raise RuntimeError("it ended before it had joined")
    return joined.result()


def end_with_parent() -> None:
    """End this process when its parent ends, in whatever way, and whatever this process is doing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        os.read(0, 1)  # returns when the pipe closes; no data is ever written
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _naming_loss() -> Iterator[None]:
    """Turn a broken connection into a WorkerLost with a one-line message."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise WorkerLost(
            f"a process of this run was lost ({first}); its own message stands above; continue with --resume"
        ) from error
