"""Messages through torch.distributed: gloo, or NCCL with devices between, over one group of processes that persists.

Messages go in rounds (rounds.py), one after another, so that nobody gets from several hosts at once: where many send to
one, its link drops what does not fit, and all wait for what is sent again.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo, Store, Work

from earl.dispatch.messages import Bytes
from earl.dispatch.spread import Numbers
from earl.dispatch.transports.roll import NOBODY, Roll
from earl.dispatch.transports.rounds import Round, rounds

PATIENCE_SECONDS = 600.0
_DATA, _AGREEMENT = 0, 1
"""Tags."""
_CPU = torch.device("cpu")


@dataclass(slots=True)
class _Pending:
    """A message on its way."""

    work: Work
    other: int


class Peers:
    """One process of the group; a `Transport`."""

    def __init__(
        self, group: Any, roll: Roll, process: int, hosts: Numbers, seconds: float, device: torch.device = _CPU
    ) -> None:
        """See `join`. torch does not declare the types of its groups."""
        self.process, self.hosts = process, hosts
        self._group, self._roll, self._device = group, roll, device
        self._patience = timedelta(seconds=seconds)

    def exchange(self, outgoing: Mapping[int, Bytes], expected: Mapping[int, int]) -> Mapping[int, Bytes]:
        """See `Transport`."""
        came = {source: torch.empty(size, dtype=torch.uint8, device=self._device) for source, size in expected.items()}
        inside: list[_Pending] = []
        for current in rounds(self.hosts, self.process, outgoing, expected):
            started = self._start(current, outgoing, came)
            if current.inside:
                inside += started  # they meet no link, and may take as long as all the others do
            else:
                self._finish(started)
        self._finish(inside)
        return {source: message.cpu().numpy() for source, message in came.items()}

    def most(self, number: int) -> int:
        """See `Transport`. After round k each process knows the most of 2^k processes."""
        count, step = len(self.hosts), 1
        while step < count:
            theirs = torch.zeros(1, dtype=torch.int64, device=self._device)
            own = torch.tensor([number], device=self._device)
            to, source = (self.process + step) % count, (self.process - step) % count
            self._finish(self._post([(source, theirs)], [(to, own)], _AGREEMENT))
            number = max(number, int(theirs))
            step *= 2
        return number

    def close(self) -> None:
        """Leave the group."""
        self._roll.close()
        self._group.shutdown()

    def _start(self, current: Round, outgoing: Mapping[int, Bytes], came: Mapping[int, Tensor]) -> list[_Pending]:
        coming = [(source, came[source]) for source in current.sources]
        going = [(to, torch.from_numpy(outgoing[to]).to(self._device)) for to in current.to]
        return self._post(coming, going, _DATA)

    def _post(self, coming: list[tuple[int, Tensor]], going: list[tuple[int, Tensor]], tag: int) -> list[_Pending]:
        if self._group.supports_coalescing:  # NCCL: what meets has to be launched as one
            self._group._start_coalescing()
        pending = []
        for other, message in coming:
            with self._blaming(other):
                pending.append(_Pending(self._group.recv([message], other, tag), other))
        for other, message in going:
            with self._blaming(other):
                pending.append(_Pending(self._group.send([message], other, tag), other))
        if self._group.supports_coalescing:
            work = self._group._end_coalescing()
            pending = [_Pending(work, own.other) for own in pending]
        return pending

    def _finish(self, pending: list[_Pending]) -> None:
        for own in pending:
            self._roll.waits_for = own.other
            with self._blaming(own.other):
                own.work.wait(self._patience)
        self._roll.waits_for = NOBODY

    @contextmanager
    def _blaming(self, other: int) -> Iterator[None]:
        """Find out who is at fault when a message does not get through."""
        try:
            yield
        except RuntimeError as error:
            raise self._roll.blame(other, self._patience.total_seconds()) from error


def join(
    store: Store, process: int, hosts: Numbers, address: str, seconds: float = PATIENCE_SECONDS, device: str = "cpu"
) -> Peers:
    """Become one of the group. All processes call this.

    Args:
        store: the same for all; it is where they find each other.
        hosts: the host of each process, [P].
        address: this process's own, which the others reach it at.
        seconds: within which a fault of another process is an error, and how long it may take for a message.
        device: "cuda" for NCCL. Messages then pass through the memory of the current device.

    Raises:
        Lost, Late: with the name of the process that ended, or did not come.
    """
    answer = min(5.0, seconds / 5)
    patience = seconds - 2 * answer
    wait, size = timedelta(seconds=patience), len(hosts)
    store.set_timeout(wait)
    roll = Roll(store, process, hosts, address, answer)
    try:
        group = _gloo(store, process, size, address, wait) if device == "cpu" else _nccl(store, process, size, wait)
    except RuntimeError as error:  # somebody ended, or stays away, while others were still finding each other
        raise roll.blame(process, patience) from error
    return Peers(group, roll, process, hosts, patience, torch.device(device))


def _gloo(store: Store, process: int, size: int, address: str, wait: timedelta) -> Any:
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=address)]
    options._timeout = wait
    return gloo(store, process, size, options)


def _nccl(store: Store, process: int, size: int, wait: timedelta) -> Any:
    """Never run: no machine with several GPUs was there."""
    from torch._C import _distributed_c10d as backends

    nccl: Any = backends.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = wait
    return nccl(store, process, size, options)
