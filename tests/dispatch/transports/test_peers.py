"""Transfers between real processes, and what happens to them when one of these fails."""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pytest

from earl.benchmarks import processes
from earl.benchmarks.dispatch import gather_and_scatter
from earl.benchmarks.processes import run, started
from earl.dispatch.plan import plan
from earl.dispatch.rows import columns, spread
from earl.dispatch.transports.base import execute
from earl.errors import EarlError
from earl.parallel.layout import Layout
from tests.dispatch.simulated import filled
from tests.sampling import sampled

pytestmark = pytest.mark.slow
HOSTS = (0, 0, 1, 1)
LENGTHS = np.array([70_000, 5, 0, 123, 9_000, 64])
SECONDS = 100.0
"""Patience where nothing is to be late, however busy the machine is."""
SHORT = 6.0
"""Patience of those whose partner never comes."""


def transfer():
    """dp 4 to dp 2, tp 2, on the same four processes."""
    source, target = spread(Layout(4), range(4), [0, 1, 2, 3, 0, 1]), spread(Layout(2, 2), range(4), [1, 1, 0, 0, 1, 0])
    return plan(LENGTHS, columns(["tokens", "mask"]), source, target, np.array(HOSTS))


def held(process):
    return filled(transfer(), transfer().source, process)


def right(process, shard):
    """Whether all is there, to the bit."""
    whole = filled(transfer(), transfer().target, process)
    return all(shard.columns[name].tobytes() == whole.columns[name].tobytes() for name in transfer().columns)


def joined(seat, store, seconds=SECONDS):
    from torch._C._distributed_c10d import FileStore

    from earl.dispatch.transports.peers import join

    rendezvous = FileStore(str(store), len(seat.hosts))
    return join(rendezvous, seat.process, np.array(seat.hosts), seat.address, seconds)


def at_once(peers):
    """The transport of GPUs over the same group, in host memory."""
    from earl.dispatch.transports.peers import DeviceTransport

    seconds = peers._patience.total_seconds()
    return DeviceTransport(peers._group, peers.process, peers.hosts, seconds)


def every_way(seat, store):
    peers = joined(seat, store)
    transports = [peers, at_once(peers)]
    return [
        right(seat.process, way(transfer(), seat.process, held(seat.process), transport, checksums))
        for transport in transports
        for way in (execute, gather_and_scatter)
        for checksums in (False, True)
    ]


def test_every_way_ends_with_the_same_rows(tmp_path):
    assert run(None, HOSTS, every_way, tmp_path / "store") == [[True] * 8] * 4


def failing(seat, store, fault, stepwise):
    """The second transfer of four processes, in which process 2 fails: what the others say."""
    own = joined(seat, store, SHORT)
    peers = own if stepwise else at_once(own)
    execute(transfer(), seat.process, held(seat.process), peers)
    peers._patience = timedelta(seconds=2)
    if seat.process == 2:
        fault()
    try:
        execute(transfer(), seat.process, held(seat.process), peers)
    except EarlError as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def busy():
    time.sleep(10 * SECONDS)


@pytest.mark.parametrize("stepwise", [True, False])
@pytest.mark.parametrize("fault", sampled([killed, stopped, busy], always=[killed, stopped]))
def test_a_process_that_fails_is_an_error_of_all_others(tmp_path, monkeypatch, fault, stepwise):
    monkeypatch.setattr(processes, "_LAST_WORDS_SECONDS", 0.1)  # the one that is stopped or busy has none
    with started(None, HOSTS, failing, tmp_path / "store", fault, stepwise) as pipes:
        said = [pipes[process].recv() for process in (0, 1, 3)]
    for name, message in said:
        assert name == "PeerLost" and "did not do its part within 2 s" in message
        assert "\n" not in message
    if stepwise:
        assert any("process 2 (host 1) ended" in message for _, message in said)


def absent(seat, store):
    """Process 2 never comes."""
    if seat.process == 2:
        killed()
    try:
        joined(seat, store, SHORT)
    except EarlError as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def test_a_process_that_never_comes_is_an_error_of_all_others(tmp_path):
    with started(None, HOSTS, absent, tmp_path / "store") as pipes:
        said = [pipes[process].recv() for process in (0, 1, 3)]
    assert all(own == "PeerLost" and "did not meet all others within 6 s" in message for own, message in said), said


def survivor(seat, first, second):
    """Loses process 2, and repeats the transfer with the one that takes its place."""
    if seat.process == 2:
        with suppress(EarlError):  # the others are late
            joined(seat, first, SHORT)
        killed()  # the others may still be on their way in
    try:
        execute(transfer(), seat.process, held(seat.process), joined(seat, first, SHORT))
    except EarlError:
        return replacement(seat, second)
    return False


def replacement(seat, store):
    return right(seat.process, execute(transfer(), seat.process, held(seat.process), joined(seat, store)))


def test_a_transfer_is_repeated_with_a_replacement(tmp_path):
    stores = tmp_path / "first", tmp_path / "second"
    with started(None, HOSTS, survivor, *stores) as old, started(None, HOSTS, second_only, stores[1]) as new:
        assert new[2].recv() and all(old[process].recv() for process in (0, 1, 3))


def second_only(seat, store):
    return replacement(seat, store) if seat.process == 2 else None


@dataclass
class Damaging:
    """A transport that changes a bit of what comes."""

    others: object

    def exchange(self, outgoing, sizes):
        came = {source: message.copy() for source, message in self.others.exchange(outgoing, sizes).items()}
        if came:
            min(came.items())[1][-1] ^= 4
        return came

    def close(self):
        self.others.close()


def damaged(seat, store):
    peers = joined(seat, store)
    transport = Damaging(peers) if seat.process == 1 else peers
    try:
        return right(seat.process, execute(transfer(), seat.process, held(seat.process), transport, checksums=True))
    except EarlError as error:
        transport.close()
        return str(error)


def test_what_is_damaged_is_named_where_it_arrives(tmp_path):
    first, said, *others = run(None, HOSTS, damaged, tmp_path / "store")
    # Who waits for process 1 then hears that it has left, without a wait.
    assert all(own is True or "process 1 (host 0) ended" in own for own in (first, *others))
    assert said.startswith("what process 0 (host 0) sent to process 1 (host 0) arrived damaged")
