"""Seconds from bytes, written out."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from earl.benchmarks.dispatch import gather_and_scatter
from earl.dispatch.plan import plan, volume
from earl.dispatch.predicted_cost import by_controller, cost, detour
from earl.dispatch.rows import columns, spread
from earl.parallel.layout import Layout
from tests.dispatch.simulated import carried_out, transfers

LINKS = 1000.0, 8000.0
"""Bytes per second across and inside."""


def to_the_other_host():
    """Two rows of 100 and 50 tokens, 4 bytes each, from processes 0 and 1 on host 0 to a tp pair on host 1."""
    source, target = spread(Layout(dp=2), [0, 1], [0, 1]), spread(Layout(tp=2), [2, 3], [0, 0])
    return plan(np.array([100, 50]), columns(["logprobs"]), source, target, np.array([0, 0, 1, 1]))


def test_direct_is_the_busiest_link_and_then_the_fan_out() -> None:
    # 600 bytes cross once: 0.6 s; 600 are handed on inside host 1: 0.075 s.
    assert cost(volume(to_the_other_host()), (0, 0), *LINKS) == pytest.approx((0, 0.675, 0.6))


def test_a_controller_gathers_once_and_sends_every_copy() -> None:
    # Process 0 has row 0, 400 bytes, and gets row 1, 200 bytes, from its neighbour; then 600 go to each of 2 and 3.
    made = to_the_other_host()
    assert detour(made) == (1200, 200)
    assert cost(volume(made), detour(made), *LINKS) == pytest.approx((1.2 + 0.025, 0.675, 0.6))


def test_nothing_moved_takes_nothing() -> None:
    where = spread(Layout(dp=2), [0, 1], [0, 1])
    made = plan(np.array([7, 5]), columns(["logprobs", "tokens"]), where, where, np.array([0, 1]))
    # Row 1 goes to the controller and back.
    assert cost(volume(made), detour(made), *LINKS) == pytest.approx(((5 * 8 + 5 * 8) / 1000, 0, 0))


@given(transfers())
def test_with_a_controller_apart_it_is_the_papers_formula(transfer) -> None:
    # A process that neither has nor needs anything, alone on its host, as process 0. Gathered: S. Scattered: S x r.
    source, target = (replace(own, processes=own.processes + 1) for own in (transfer.source, transfer.target))
    hosts = np.concatenate([[transfer.hosts.max() + 1], transfer.hosts])
    apart = plan(transfer.lengths, transfer.columns, source, target, hosts)
    size, scattering = volume(apart), by_controller(apart)[1]  # a context-parallel rank is sent whole rows
    assert detour(apart) == (size.total + volume(scattering).copies, 0)
    _, direct, bound = cost(size, detour(apart), *LINKS)
    assert bound <= direct


@given(transfers())
def test_it_is_what_the_baseline_sends(transfer) -> None:
    _, log = carried_out(transfer, way=gather_and_scatter)
    hosts = transfer.hosts
    across = sum(size for source, to, size in log if hosts[source] != hosts[to])
    assert detour(transfer) == (across, sum(size for _, _, size in log) - across)
