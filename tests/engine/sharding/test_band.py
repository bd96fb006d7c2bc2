"""What the first process of a copy tells the others: bytes, whatever it would like to send."""

import os
from contextlib import suppress

import pytest

from earl.benchmarks.layouts import free_port
from earl.benchmarks.processes import run


class Evil:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder):
        self._folder = folder

    def __reduce__(self):
        return os.mkdir, (self._folder,)


def met(seat, port, folder):
    """The first process sends a pickle, as torch sends objects; the other one takes an order."""
    from torch import distributed

    from earl.dispatch.transports.rendezvous import Rendezvous
    from earl.engine.local import Meeting, TpGroup

    os.environ["GLOO_SOCKET_IFNAME"] = seat.interface
    meeting = Meeting(seat.process, 2, Rendezvous(seat.address, port, "secret"))
    tp_group = TpGroup(meeting, timeout_seconds=10)
    with suppress(RuntimeError):
        if not tp_group.rank:
            distributed.broadcast_object_list([Evil(folder)])
        else:
            tp_group.broadcast(b"")
    return True


@pytest.mark.slow
def test_a_pickle_of_the_first_process_runs_no_code_in_the_others(tmp_path):
    run(None, (0, 0), met, free_port(), str(tmp_path / "made"))
    assert not (tmp_path / "made").exists()
