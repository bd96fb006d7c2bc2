"""What the first process of a copy tells the others: numbers, whatever it would like to send."""

import os
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.benchmarks.layouts import free_ports
from earl.benchmarks.transfers import run
from earl.engine.split import _read, _written
from earl.rollout.prompt import Prompt

whole = st.integers(0, 2**63 - 1)
prompts = st.builds(Prompt, whole, st.lists(st.integers(0, 2**31)), whole, whole, st.booleans())


@given(st.lists(whole), st.lists(prompts))
def test_an_order_is_read_as_it_was_written(released, asked):
    order = _written(released, asked)
    assert all(type(number) is int for number in order)
    assert _read(order) == (released, asked)


def test_no_order_is_as_short_as_the_end_of_all_orders():
    assert _written([], []) == [0]


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
    from earl.engine.sharding.mesh import Band, Meeting

    os.environ["GLOO_SOCKET_IFNAME"] = seat.interface
    meeting = Meeting(seat.process, 2, Rendezvous(seat.address, port, "secret"))
    band = Band(meeting, timeout_seconds=10)
    with suppress(RuntimeError):
        if band.leads:
            distributed.broadcast_object_list([Evil(folder)])
        else:
            band.told(())
    return True


@pytest.mark.slow
def test_a_pickle_of_the_first_process_runs_no_code_in_the_others(tmp_path):
    run(None, (0, 0), met, free_ports(1)[0], str(tmp_path / "made"))
    assert not (tmp_path / "made").exists()
