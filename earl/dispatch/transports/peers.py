"""Transports over torch.distributed, over one persistent process group; rows lie in host memory on both sides.

Over gloo, messages between hosts go in steps (`schedule.py`), so that no host receives from several at once: with many
senders to one receiver the link drops packets, and all wait for retransmission. Over NCCL, where every process has its
own GPU, an exchange is one all-to-all through device memory. An error names the process that did not answer; it may
itself have waited for another one, which actors' heartbeats tell (`ActorGroup`).
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import _distributed_c10d as backends
from torch._C._distributed_c10d import AllToAllOptions, ProcessGroupGloo, Store, Work

from earl.dispatch.rows import Numbers
from earl.dispatch.transports.base import Bytes, PeerLost
from earl.dispatch.transports.rendezvous import Sealed, backend_for
from earl.dispatch.transports.schedule import stepped_sizes, steps

PATIENCE_SECONDS = 600.0
_CPU = torch.device("cpu")
_POLL_SECONDS = 0.001


class PeerTransport:
    def __init__(self, group: Any, process: int, hosts: Numbers, seconds: float) -> None:
        """See `join`. torch does not declare types for its process groups."""
        self.process, self.hosts, self._group = process, hosts, group
        self._patience = timedelta(seconds=seconds)

    def exchange(self, outgoing: Mapping[int, Bytes], sizes: Numbers) -> Mapping[int, Bytes]:
        process, stepped = self.process, stepped_sizes(self.hosts, sizes)
        counts = dict(enumerate(sizes[:, process].tolist()))
        came = {source: torch.empty(count, dtype=torch.uint8) for source, count in counts.items() if count}
        going = {to: torch.from_numpy(message) for to, message in outgoing.items()}
        at_once = self._post(
            [(source, message) for source, message in came.items() if not stepped[source, process]],
            [(to, going[to]) for to in np.flatnonzero(sizes[process] > stepped[process]).tolist()],
        )
        for step in steps(self.hosts, process, stepped):
            coming = [(part.other, came[part.other][part.begin : part.end]) for part in (step.source,) if part]
            parting = [(part.other, going[part.other][part.begin : part.end]) for part in (step.to,) if part]
            self._finish(self._post(coming, parting))
        self._finish(at_once)
        return {source: message.numpy() for source, message in came.items()}

    def close(self) -> None:
        self._group.shutdown()

    def _post(self, coming: list[tuple[int, Tensor]], going: list[tuple[int, Tensor]]) -> list[tuple[int, Work]]:
        pending = []
        for other, message in coming:
            with self._naming(other):
                pending.append((other, self._group.recv([message], other, 0)))
        for other, message in going:
            with self._naming(other):
                pending.append((other, self._group.send([message], other, 0)))
        return pending

    def _finish(self, pending: list[tuple[int, Work]]) -> None:
        for other, work in pending:
            with self._naming(other):
                work.wait(self._patience)

    @contextmanager
    def _naming(self, other: int | None = None) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            name = "another process" if other is None else f"process {other} (host {self.hosts[other]})"
            raise PeerLost(
                f"{name} ended, cannot be reached, or did not do its part within "
                f"{self._patience.total_seconds():g} s; what was exchanged is thrown away: repeat it"
            ) from error


class DeviceTransport(PeerTransport):
    """One all-to-all through the memory of `device`: NCCL schedules its messages itself. Never run on a GPU; over gloo
    it does the same in host memory."""

    def __init__(self, *arguments: Any, device: torch.device = _CPU) -> None:
        super().__init__(*arguments)
        self._device = device

    def exchange(self, outgoing: Mapping[int, Bytes], sizes: Numbers) -> Mapping[int, Bytes]:
        to, source = (np.flatnonzero(counts).tolist() for counts in (sizes[self.process], sizes[:, self.process]))
        going = torch.from_numpy(np.concatenate([np.empty(0, np.uint8), *(outgoing[other] for other in to)]))
        coming = sizes[:, self.process].tolist()
        came = torch.empty(sum(coming), dtype=torch.uint8, device=self._device)
        given = going.to(self._device)
        options = AllToAllOptions()
        self._complete(lambda: self._group.alltoall_base(came, given, coming, sizes[self.process].tolist(), options))
        parts = np.split(came.cpu().numpy(), np.cumsum(coming)[:-1])
        return {other: parts[other] for other in source}

    def close(self) -> None:
        self._group.abort()  # what is under way may never end

    def _complete(self, start: Callable[[], Work]) -> None:
        """Run a collective. NCCL's own `wait` only queues behind it, and would never notice a missing process."""
        deadline = time.monotonic() + self._patience.total_seconds()
        with self._naming():
            work = start()
            while not work.is_completed():
                if time.monotonic() > deadline:
                    raise RuntimeError("timed out")
                time.sleep(_POLL_SECONDS)
            work.wait()


def join(
    store: Store,
    process: int,
    hosts: Numbers,
    address: str,
    seconds: float = PATIENCE_SECONDS,
    device: torch.device = _CPU,
) -> PeerTransport:
    """Join the process group. All processes call this.

    Args:
        store: the same for all; processes find each other through it.
        hosts: [P], the host of each process.
        address: at which the others reach this process.
        seconds: the limit for a message, and for all to have joined.
        device: through whose memory messages pass; a GPU that no other process uses, or the CPU.

    Raises:
        PeerLost: when a process ended, or did not join.
    """
    wait = timedelta(seconds=seconds)
    store.set_timeout(wait)
    by_nccl = "nccl" in backend_for(device)
    try:
        make = _nccl if by_nccl else _gloo
        group = make(store, process, len(hosts), address, wait)
    except RuntimeError as error:
        raise PeerLost(
            f"process {process} (host {hosts[process]}) did not meet all others within {seconds:g} s: one ended, did "
            "not start, or cannot be reached"
        ) from error
    if by_nccl:
        return DeviceTransport(group, process, hosts, seconds, device=device)
    return PeerTransport(group, process, hosts, seconds)


def _gloo(store: Store, process: int, size: int, address: str, wait: timedelta) -> Any:
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=address)]
    options._timeout = wait
    return gloo(store, process, size, options)


def _nccl(store: Store, process: int, size: int, address: str, wait: timedelta) -> Any:  # noqa: ARG001
    nccl: Any = backends.ProcessGroupNCCL  # absent from builds for CPUs
    options = nccl.Options()
    options._timeout = 2 * wait  # its watchdog ends the process; `DeviceTransport` gives up before
    return nccl(store.plain if isinstance(store, Sealed) else store, process, size, options)
