"""Transfers on paper: real plans, and times that follow from them."""

from dataclasses import replace

import numpy as np
import pytest

from earl.dispatch.plan import volume
from earl.dispatch.predicted_cost import GIGABIT, RATES, DispatchJob, entry, row_lengths
from earl.dispatch.rows import columns
from earl.parallel.hardware import of_gpus
from earl.parallel.layout import Layout
from earl.parallel.memory import known

COLUMNS = columns(["tokens", "logprobs"])
QWEN = known("Qwen2.5-72B").shape


APART = DispatchJob(of_gpus("6x8xH100"), QWEN, 12_288, 512, Layout(4, 8), Layout(8, 2), shared=False)


def test_lengths_are_always_the_same_and_within_the_context() -> None:
    lengths = row_lengths(8192, 4096)
    assert lengths.tolist() == row_lengths(8192, 4096).tolist()
    assert lengths.max() == 8192
    assert np.median(lengths) == pytest.approx(4096, rel=0.05)


def test_apart_every_row_crosses_once_into_each_host_that_needs_it() -> None:
    transfer = APART.transfer(COLUMNS)
    tokens = int(transfer.lengths.sum())
    assert volume(transfer).across == 8 * tokens  # not twice as much: a tp pair shares its host
    assert volume(transfer).copies == 2 * 8 * tokens


def test_in_turns_rows_that_lie_right_stay() -> None:
    planned = DispatchJob(of_gpus("16x8xH100"), QWEN, 4096, 4096, Layout(16, 8), Layout(64, 2), shared=True)
    moved = volume(planned.transfer(COLUMNS))
    assert moved.across < 0.2 * moved.total


def test_times_follow_from_bytes_and_rates() -> None:
    line = entry(APART, COLUMNS)
    assert [own.gbps for own in line.times] == [*RATES]
    for own in line.times:
        assert own.bound_s == pytest.approx(line.bound_bytes / (own.gbps * GIGABIT))
        assert own.bound_s <= own.direct_s < own.centralised_s
    assert line.times[0].centralised_s == pytest.approx(8 * line.times[1].centralised_s, rel=3e-2)


def test_bytes_double_with_the_context() -> None:
    sizes = [entry(replace(APART, context=1024 << by), COLUMNS).bytes for by in range(6)]
    assert np.divide(sizes[1:], sizes[:-1]) == pytest.approx(2, rel=0.01)
