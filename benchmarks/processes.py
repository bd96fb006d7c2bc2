"""Processes of a benchmark on hosts of a rehearsed network, or all on this machine's loopback."""

import ctypes
import multiprocessing
import os
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from earl.errors import EarlError
from earl.rehearsal.cluster import laid
from earl.rehearsal.plan import RehearsedCluster

NAME = "dispatch"
_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of `setns(2)`, which Python has from 3.12 on."""
_PRELOADED = ["earl.benchmarks.layouts", "earl.dispatch.transports.peers"]
_LAST_WORDS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Seat:
    process: int
    address: str
    interface: str
    hosts: tuple[int, ...]

    @property
    def carried(self) -> tuple[int, int]:
        """Bytes received and sent over this host's link, as the kernel counts them."""
        lines = Path("/proc/self/net/dev").read_text().splitlines()
        [counters] = [line.split(":")[1].split() for line in lines if line.split(":")[0].strip() == self.interface]
        return int(counters[0]), int(counters[8])


def seat_of(cluster: RehearsedCluster | None, hosts: Sequence[int], process: int) -> Seat:
    address, interface = (cluster.ip(hosts[process] + 1), cluster.interface) if cluster else ("127.0.0.1", "lo")
    return Seat(process, address, interface, tuple(hosts))


def shaped(hosts: int, rate: str) -> AbstractContextManager[RehearsedCluster]:
    """A network of hosts, until the context ends. Raises EarlError if not permitted, or if one is in use."""
    return laid(NAME, hosts, rate)


@contextmanager
def started(
    cluster: RehearsedCluster | None, hosts: Sequence[int], work: Callable[..., Any], *arguments: Any
) -> Iterator[list[Connection]]:
    """Processes that call `work(seat, *arguments)` and send its result; they end with this context.

    `hosts` [P] is the host of each process, from 0 on. Without a cluster all are on loopback.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    begun, pipes = [], []
    for number, host in enumerate(hosts):
        ours, theirs = context.Pipe(duplex=False)
        seat = seat_of(cluster, hosts, number)
        namespace = f"/run/netns/{cluster.namespace(host + 1)}" if cluster else None
        process = context.Process(target=_inside, args=(namespace, theirs, seat, work, arguments), daemon=True)
        process.start()
        theirs.close()
        begun.append(process)
        pipes.append(ours)
    try:
        yield pipes
    finally:
        for process in begun:
            process.join(_LAST_WORDS_SECONDS)
            process.kill()
            process.join()


def run(cluster: RehearsedCluster | None, hosts: Sequence[int], work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The result of each process. Raises EarlError if one ends without a result."""
    with started(cluster, hosts, work, *arguments) as pipes:
        results: dict[Any, Any] = {}
        while len(results) < len(pipes):
            ready: list[Any] = wait([pipe for pipe in pipes if pipe not in results])
            for pipe in ready:
                try:
                    results[pipe] = pipe.recv()
                except EOFError as error:
                    process = pipes.index(pipe)
                    raise EarlError(f"process {process} ended without a result; its message stands above") from error
        return [results[pipe] for pipe in pipes]


def _inside(
    namespace: str | None, pipe: Connection, seat: Seat, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    threading.Thread(target=_end_with, args=(pipe.fileno(),), daemon=True).start()
    if namespace:
        _enter(namespace)
    pipe.send(work(seat, *arguments))


def _end_with(pipe: int) -> None:
    """End this process once its pipe has no reader: then its parent was killed."""
    broken = select.poll()
    broken.register(pipe, 0)
    broken.poll()
    os._exit(1)


def _enter(namespace: str) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        if library.setns(descriptor, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(descriptor)
