"""The fit: the stored coefficients are those of a fresh one, and it meets the tables as well as is claimed."""

import numpy as np
import pytest

from earl.benchmarks.calibration import PRIORS, errors, fit, measured, minimise, served, table
from earl.parallel.throughput.step import fitted


@pytest.fixture(scope="module")
def fresh():
    return fit(measured())


def test_the_stored_coefficients_are_those_of_a_fresh_fit(fresh) -> None:
    stored = fitted()
    assert list(stored.values) == list(PRIORS)
    assert stored.values == pytest.approx(fresh.values, rel=1e-3)
    assert np.sqrt(np.diag(stored.covariance)) == pytest.approx(np.sqrt(np.diag(fresh.covariance)), rel=0.05)
    assert fresh.spread < stored.spread  # the stored one is of rows that the fit did not see


def test_the_tables_are_met(fresh) -> None:
    rows = measured()
    off = np.abs(np.expm1(errors(rows, fresh.values)))
    dense = np.array([row.engine.shape.experts <= 1 for row in rows])
    assert (dense.sum(), (~dense).sum()) == (122, 63)
    assert off[dense].mean() < 0.06
    assert off[~dense].mean() < 0.06


def test_what_no_table_tells_stays_as_it_was_believed(fresh) -> None:
    spreads = dict(zip(PRIORS, np.sqrt(np.diag(fresh.covariance)), strict=True))
    assert fresh.values["vllm_overhead"] == pytest.approx(PRIORS["vllm_overhead"][0])
    assert spreads["vllm_overhead"] == pytest.approx(PRIORS["vllm_overhead"][1])


def test_one_tp_left_out_is_predicted_within_a_tenth(fresh) -> None:
    rows = [row for row in measured() if row.engine.shape.experts <= 1]
    left = [row for row in rows if row.engine.tp == 8]
    others = fit([row for row in measured() if row.engine.tp != 8], fresh.values)
    assert np.abs(np.expm1(errors(left, others.values))).mean() < 0.10


def test_every_published_context_fits_or_not_as_it_was_served(fresh) -> None:
    labels = served()
    assert len(labels) == 12
    for label in labels:
        room = label.engine.kv_tokens(fresh.values)
        longest = max((tokens for tokens in (131_072, 32_768, 4096) if tokens <= room), default=0)
        assert (label.model, label.engine.tp, longest) == (label.model, label.engine.tp, label.tokens)


def test_every_row_is_read() -> None:
    rows = table("serving_throughput.csv")
    blank = sum(row["value"] == "" for row in rows)
    assert len(rows) == 237
    assert len(measured()) + len(served()) + blank == 237


def test_least_squares_finds_an_exponential() -> None:
    times = np.linspace(0, 1, 20)
    seen = 3.0 * np.exp(-2.0 * times)
    point, covariance = minimise(lambda p: p[0] * np.exp(-p[1] * times) - seen, np.array([1.0, 0.5]))
    assert point == pytest.approx([3.0, 2.0], rel=1e-4)
    assert covariance.shape == (2, 2)
