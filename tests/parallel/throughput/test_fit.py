"""The fit: the stored coefficients are those of a fresh one, and it meets the tables as well as is claimed."""

from functools import partial
from math import log

import numpy as np
import pytest

from earl.benchmarks.calibration import (
    DEVIATIONS,
    PRIORS,
    fit,
    measured,
    of,
    predicted,
    served,
    table,
)
from earl.parallel.throughput.measured import updated
from earl.parallel.throughput.rollout import interval
from earl.parallel.throughput.step import Calibration, calibration, fitted


def errors(known: Calibration, rows) -> np.ndarray:
    return np.array([log(predicted(row, of(known, row).values) / row.tokens_per_second) for row in rows])


@pytest.fixture(scope="module")
def fresh() -> Calibration:
    return fit(measured())


@pytest.mark.slow
def test_the_stored_coefficients_are_those_of_a_fresh_fit(fresh: Calibration) -> None:
    stored = calibration()
    assert list(stored.values) == list(PRIORS)
    assert stored.values == pytest.approx(fresh.values, rel=1e-3)
    assert stored.deviations == pytest.approx(fresh.deviations, abs=1e-3)
    assert stored.variances.keys() == DEVIATIONS.keys()
    assert np.sqrt(np.diag(stored.covariance)) == pytest.approx(np.sqrt(np.diag(fresh.covariance)), rel=0.05)


@pytest.mark.slow
def test_the_tables_are_met(fresh: Calibration) -> None:
    rows = measured()
    off = np.abs(np.expm1(errors(fresh, rows)))
    dense = np.array([row.engine.shape.experts <= 1 for row in rows])
    assert (dense.sum(), (~dense).sum()) == (223, 63)
    assert off[dense].mean() < 0.06
    assert off[~dense].mean() < 0.06


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_gpu_left_out_lies_in_its_intervals_and_its_own_rows_narrow_them() -> None:
    left = [row for row in measured() if row.gpu == "H200"]
    known = of(fit([row for row in measured() if row.gpu != "H200"], calibration()), left[0])
    again = updated(known, [(partial(predicted, row), row.tokens_per_second) for row in left[::12]])
    before, after = ([interval(partial(predicted, row), own) for row in left] for own in (known, again))
    inside = [low <= row.tokens_per_second <= high for row, (low, high) in zip(left, before, strict=True)]
    assert np.mean(inside) > 0.6
    assert np.median([low / high for low, high in after]) > np.median([low / high for low, high in before])


def test_every_published_context_fits_or_not_as_it_was_served() -> None:
    labels = served()
    assert len(labels) == 12
    for label in labels:
        room = label.engine.kv_tokens(fitted(label.engine).values)
        longest = max((tokens for tokens in (131_072, 32_768, 4096) if tokens <= room), default=0)
        assert (label.model, label.engine.tp, longest) == (label.model, label.engine.tp, label.tokens)


def test_every_row_is_read() -> None:
    rows = table("serving_throughput.csv")
    blank = sum(row["value"] == "" for row in rows)
    assert len(rows) == 338
    assert len(measured()) + len(served()) + blank == 338
