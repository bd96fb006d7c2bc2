"""Seconds from bytes, written out."""

import numpy as np
import pytest
from hypothesis import given, settings

from earl.dispatch.columns import columns
from earl.dispatch.cost import GIGABIT, Detour, Links, cost, detour, volume_model
from earl.dispatch.plan import plan
from earl.dispatch.segments import Leg
from earl.dispatch.spread import spread
from earl.dispatch.volume import volume
from earl.parallel.layout import Layout
from tests.dispatch.simulated import transfers

LINKS = Links(across=1000.0, inside=8000.0)


def to_the_other_host():
    """Two rows of 100 and 50 tokens, 4 bytes each, from processes 0 and 1 on host 0 to a tp pair on host 1."""
    leg = Leg(columns(["logprobs"]), spread(Layout(dp=2), [0, 1], [0, 1]))
    return plan(np.array([100, 50]), [leg], spread(Layout(tp=2), [2, 3], [0, 0]), np.array([0, 0, 1, 1]))


def test_direct_is_the_busiest_link_and_then_the_fan_out() -> None:
    # 600 bytes cross once: 0.6 s; 600 are handed on inside host 1: 0.075 s.
    took = cost(volume(to_the_other_host()), Detour(0, 0), LINKS)
    assert took.direct == pytest.approx(0.675)
    assert took.bound == pytest.approx(0.6)


@pytest.mark.parametrize(("host", "across", "inside"), [(0, 1200, 0), (1, 600, 1200), (2, 1800, 0)])
def test_a_controller_gathers_once_and_sends_every_copy(host: int, across: int, inside: int) -> None:
    # On host 0 all is there, two copies go out; on host 1 one comes in; on a host of its own one comes and two go.
    made = to_the_other_host()
    assert detour(made, host) == Detour(across, inside)
    took = cost(volume(made), detour(made, host), LINKS)
    assert took.centralised == pytest.approx(across / 1000 + inside / 8000)
    assert took.ratio == pytest.approx(took.centralised / 0.675)


def test_nothing_moved_takes_nothing() -> None:
    leg = Leg(columns(["logprobs", "tokens"]), spread(Layout(dp=2), [0, 1], [0, 1]))
    made = plan(np.array([7, 5]), [leg], spread(Layout(dp=2), [0, 1], [0, 1]), np.array([0, 1]))
    took = cost(volume(made), detour(made), LINKS)
    assert (took.direct, took.bound, took.ratio) == (0, 0, None)
    assert took.centralised == pytest.approx((5 * 8 + 5 * 8) / 1000 + 7 * 8 / 8000), (
        "a controller moves it all the same"
    )


def test_the_papers_formulas() -> None:
    # 1 TB with one replica at 25 Gbit/s: 2e12 / 3.125e9 = 640 s. 128 hosts: 7.8125e9 / 3.125e9 = 2.5 s.
    assert volume_model(1e12, 1, 128, 25 * GIGABIT) == (640.0, 2.5)
    assert volume_model(1e12, 8, 128, 25 * GIGABIT) == (2880.0, 20.0)


@settings(deadline=None, max_examples=100)
@given(transfers())
def test_on_a_host_of_its_own_a_controller_is_the_papers_formula(transfer) -> None:
    # Gathered: S, all that there is. Scattered: S x r, all that is needed.
    moved, elsewhere = volume(transfer), int(transfer.hosts.max()) + 1
    assert detour(transfer, elsewhere) == Detour(moved.total + moved.copies, 0)
    took = cost(moved, detour(transfer, elsewhere), LINKS)
    assert took.bound <= took.direct
    assert moved.across <= moved.copies
