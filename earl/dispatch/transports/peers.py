"""Transports over torch.distributed, over one persistent process group; rows lie in host memory on both sides.

Over gloo, messages between hosts go in steps (`schedule.py`), so that no host receives from several at once: with many
senders to one receiver the link drops packets, and all wait for retransmission. Over NCCL, where every process has its
own GPU, an exchange is one all-to-all through device memory. `Liveness` finds the process at fault.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import _distributed_c10d as backends
from torch._C._distributed_c10d import AllreduceOptions, AllToAllOptions, ProcessGroupGloo, ReduceOp, Store, Work

from earl.dispatch.rows import Numbers
from earl.dispatch.transports.base import Bytes, Late, ProcessLost
from earl.dispatch.transports.rendezvous import Sealed, backend_for
from earl.dispatch.transports.schedule import apart, steps
from earl.errors import EarlError

# A broken or silent connection of the process group does not tell which process failed: a neighbour may itself be
# waiting. So every process also answers on a socket of its own; on an error, a process asks all others, follows the
# chain of waiting processes to its end, and tells all others what it found before it gives up.

NO_PROCESS = -1
GONE, SILENT = -2, -3
"""In place of an answer: the process ended or cannot be reached; it accepts connections but does not answer."""
_KINDS: dict[str, type[EarlError]] = {kind.__name__: kind for kind in (ProcessLost, Late)}
_LINE_BYTES = 4096


class Liveness:
    """One process's view of the others: answers whom it waits for, and finds the process at fault."""

    def __init__(self, register: Store, process: int, hosts: Numbers, address: str, seconds: float) -> None:
        """Listen on `address`, this process's own; `seconds` is the limit for an answer. Raises Late when another
        process does not listen within the register's timeout."""
        self.waits_for = NO_PROCESS  # the process that this one waits for
        self._process, self._hosts, self._seconds = process, hosts, seconds
        self._told: EarlError | None = None
        self._door = socket.create_server((address, 0), backlog=len(hosts))
        register.set(f"door-{process}", json.dumps(self._door.getsockname()[:2]))
        self._doors = [self._door_of(register, other) for other in range(len(hosts))]
        threading.Thread(target=self._answer, daemon=True).start()

    def close(self) -> None:
        self._door.close()

    def _door_of(self, register: Store, other: int) -> tuple[str, int]:
        try:
            address, port = json.loads(register.get(f"door-{other}"))
        except RuntimeError as error:
            raise Late(f"{self._names([other])} has not come: it did not start, or cannot reach the others") from error
        return address, port

    def blame(self, other: int, waited_seconds: float) -> EarlError:
        """The error to raise when a message from or to another process failed; all others are told."""
        if self._told is None:
            with ThreadPoolExecutor(min(32, len(self._hosts))) as pool:
                answers = dict(enumerate(pool.map(self._ask, range(len(self._hosts)))))
                found = self._found(answers, other, waited_seconds)
                self._told = self._told or found
                line = json.dumps([type(self._told).__name__, str(self._told)])
                list(pool.map(lambda process: self._ask(process, line), range(len(self._hosts))))
        return self._told

    def _found(self, answers: dict[int, int], other: int, waited_seconds: float) -> EarlError:
        gone = [process for process, answer in answers.items() if answer == GONE]
        silent = [process for process, answer in answers.items() if answer == SILENT]
        if gone:
            return ProcessLost(
                f"{self._names(gone)} ended or cannot be reached; what was exchanged is thrown away: repeat it"
            )
        if silent:
            return Late(
                f"{self._names(silent)} did not do its part within {waited_seconds:g} s and does not answer: it is "
                "stopped, or its host is; end it and repeat the exchange"
            )
        late = self._names([_last(answers, other)])
        return Late(
            f"{late} did not do its part within {waited_seconds:g} s; it answers, so that its link is slow or it is "
            "busy: wait longer, or see what it does"
        )

    def _names(self, processes: list[int]) -> str:
        return ", ".join(f"process {process} (host {self._hosts[process]})" for process in processes)

    def _ask(self, other: int, line: str = "") -> int:
        """The process that another one waits for; `line` is a message for it."""
        try:
            with socket.create_connection(self._doors[other], self._seconds) as connection:
                connection.sendall(line.encode()[: _LINE_BYTES - 1] + b"\n")
                try:
                    return int(connection.makefile().readline() or GONE)
                except TimeoutError:
                    return SILENT
        except OSError:
            return GONE

    def _answer(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.settimeout(self._seconds)
                    said = connection.makefile().readline(_LINE_BYTES).strip()
                    connection.sendall(f"{self.waits_for}\n".encode())
                except OSError:
                    continue  # the other side closed the connection
            if said and self._told is None:
                kind, message = json.loads(said)
                self._told = _KINDS[kind](message)


def _last(answers: dict[int, int], first: int) -> int:
    """The end of a chain of processes that wait for each other; the first one when they wait in a cycle."""
    seen, last = {first}, first
    while answers[last] != NO_PROCESS:
        last = answers[last]
        if last in seen:
            return first
        seen.add(last)
    return last


PATIENCE_SECONDS = 600.0
_DATA, _AGREEMENT = 0, 1
_BRANCHES = 8  # fan-out of the agreement tree
_CPU = torch.device("cpu")
_POLL_SECONDS = 0.001


class PeerTransport:
    def __init__(self, group: Any, liveness: Liveness, process: int, hosts: Numbers, seconds: float) -> None:
        """See `join`. torch does not declare types for its process groups."""
        self.process, self.hosts = process, hosts
        self._group, self._liveness = group, liveness
        self._patience = timedelta(seconds=seconds)

    def exchange(self, outgoing: Mapping[int, Bytes], sizes: Numbers) -> Mapping[int, Bytes]:
        process, stepped = self.process, apart(self.hosts, sizes)
        came = {
            source: torch.empty(int(sizes[source, process]), dtype=torch.uint8)
            for source in np.flatnonzero(sizes[:, process]).tolist()
        }

        going = {to: torch.from_numpy(message) for to, message in outgoing.items()}
        at_once = self._post(
            [(source, message) for source, message in came.items() if not stepped[source, process]],
            [(to, going[to]) for to in np.flatnonzero(sizes[process] > stepped[process]).tolist()],
            _DATA,
        )
        for step in steps(self.hosts, process, stepped):
            coming = [(part.other, came[part.other][part.begin : part.end]) for part in (step.source,) if part]
            parting = [(part.other, going[part.other][part.begin : part.end]) for part in (step.to,) if part]
            self._finish(self._post(coming, parting, _DATA))
        self._finish(at_once)
        return {source: message.numpy() for source, message in came.items()}

    def most(self, number: int) -> int:
        """Up a tree of all processes, and down again."""
        below = range(self.process * _BRANCHES + 1, min((self.process + 1) * _BRANCHES + 1, len(self.hosts)))
        theirs = [(other, torch.zeros(1, dtype=torch.int64)) for other in below]
        self._finish(self._post(theirs, [], _AGREEMENT))
        agreed = torch.tensor([max([number, *(int(own) for _, own in theirs)])])
        if self.process:
            above = (self.process - 1) // _BRANCHES
            self._finish(self._post([], [(above, agreed)], _AGREEMENT))
            self._finish(self._post([(above, agreed)], [], _AGREEMENT))
        self._finish(self._post([], [(other, agreed) for other in below], _AGREEMENT))
        return int(agreed)

    def close(self) -> None:
        self._liveness.close()
        self._group.shutdown()

    def _post(
        self, coming: list[tuple[int, Tensor]], going: list[tuple[int, Tensor]], tag: int
    ) -> list[tuple[int, Work]]:
        pending = []
        for other, message in coming:
            with self._blaming(other):
                pending.append((other, self._group.recv([message], other, tag)))
        for other, message in going:
            with self._blaming(other):
                pending.append((other, self._group.send([message], other, tag)))
        return pending

    def _finish(self, pending: list[tuple[int, Work]]) -> None:
        for other, work in pending:
            self._liveness.waits_for = other
            with self._blaming(other):
                work.wait(self._patience)
        self._liveness.waits_for = NO_PROCESS

    @contextmanager
    def _blaming(self, other: int) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise self._liveness.blame(other, self._patience.total_seconds()) from error


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

    def most(self, number: int) -> int:
        agreed, options = torch.tensor([number], device=self._device), AllreduceOptions()
        options.reduceOp = ReduceOp.MAX  # type: ignore[assignment]
        self._complete(lambda: self._group.allreduce([agreed], options))
        return int(agreed)

    def close(self) -> None:
        self._liveness.close()
        self._group.abort()  # what is under way may never end

    def _complete(self, start: Callable[[], Work]) -> None:
        """Run a collective. NCCL's own `wait` only queues behind it, and would never notice a missing process."""
        # The next process: an asking process is led on by those that wait, to the first that does not.
        self._liveness.waits_for = other = (self.process + 1) % len(self.hosts)
        deadline = time.monotonic() + self._patience.total_seconds()
        with self._blaming(other):
            work = start()
            while not work.is_completed():
                if time.monotonic() > deadline:
                    raise RuntimeError("timed out")
                time.sleep(_POLL_SECONDS)
            work.wait()
        self._liveness.waits_for = NO_PROCESS


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
        seconds: the limit for a message, and for detecting a fault of another process.
        device: through whose memory messages pass; a GPU that no other process uses, or the CPU.

    Raises:
        ProcessLost, Late: naming the process that ended, or did not join.
    """
    answer = min(5.0, seconds / 5)
    patience = seconds - 2 * answer
    wait = timedelta(seconds=patience)
    store.set_timeout(wait)
    liveness = Liveness(store, process, hosts, address, answer)
    by_nccl = "nccl" in backend_for(device)
    try:
        make = _nccl if by_nccl else _gloo
        group = make(store, process, len(hosts), address, wait)
    except RuntimeError as error:  # a process failed or is missing during set-up
        raise liveness.blame(process, patience) from error
    if by_nccl:
        return DeviceTransport(group, liveness, process, hosts, patience, device=device)
    return PeerTransport(group, liveness, process, hosts, patience)


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
