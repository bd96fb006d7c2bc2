"""Measurements move predictions: their own most, those next to them less, those of other choices a little."""

from math import exp, log

import numpy as np
import pytest

from earl.parallel.layout import Bucket, Choice, Layout
from earl.parallel.memory import Load
from earl.parallel.profile import CHOICE, NEAR, NOISE, STAGE, correction, measured, place_of

ONE, OTHER = Choice("update", Layout(4)), Choice("update", Layout(2, 2))


def load(tokens, sequences=64):
    return Load(sequences, float(tokens), 2 * tokens, 100_000)


def at(cells, choice, tokens):
    return float(correction(cells).at([choice], np.array([place_of(tokens, 64)]))[0, 0])


def test_nothing_measured_moves_nothing():
    assert at([], ONE, 1000) == 0.0


def test_one_measurement_is_shared_by_the_variances_of_its_causes():
    cells = measured([], ONE, load(1000), 1.2, predicted=1.0)
    ratio = log(1.2)
    whole = STAGE**2 + CHOICE**2 + NEAR**2
    assert at(cells, ONE, 1000) == pytest.approx(ratio * whole / (whole + NOISE**2))
    assert at(cells, OTHER, 1000) == pytest.approx(ratio * STAGE**2 / (whole + NOISE**2))
    far = STAGE**2 + CHOICE**2 + NEAR**2 * exp(-2 / 2)  # two doublings away
    assert at(cells, ONE, 4000) == pytest.approx(ratio * far / (whole + NOISE**2))


def test_many_measurements_are_believed():
    cells = []
    for _ in range(30):
        cells = measured(cells, ONE, load(1000), 1.2, predicted=1.0)
    assert exp(at(cells, ONE, 1000)) == pytest.approx(1.2, rel=0.01)
    (cell,) = cells
    assert (cell.choice, cell.bucket) == (ONE, Bucket(10, 6))
    assert (cell.count, cell.seconds) == (30, pytest.approx(1.2))
    assert cell.spread == pytest.approx(0.0, abs=1e-9)


def test_a_step_that_was_held_up_counts_for_little():
    cells = []
    for seconds in [1.0] * 10 + [50.0]:
        cells = measured(cells, ONE, load(1000), seconds, predicted=1.0)
    assert exp(at(cells, ONE, 1000)) < 1.1  # cut off at e ** 0.7, an eleventh of which is 0.06


def test_the_spread_is_that_of_what_was_measured():
    cells, ratios = [], [0.0, 0.2, 0.1, 0.3]
    for ratio in ratios:
        cells = measured(cells, ONE, load(1000), exp(ratio), predicted=1.0)
    (cell,) = cells
    assert cell.ratio == pytest.approx(np.mean(ratios))
    assert cell.spread == pytest.approx(np.std(ratios))


def test_the_more_predictions_are_off_the_more_measurements_count():
    def followed(error):
        """The share of a choice's error that is corrected, where predictions of two are off by it, up and down."""
        cells = measured([], ONE, load(1000), exp(error), predicted=1.0)
        cells = measured(cells, OTHER, load(1000), exp(-error), predicted=1.0)
        return at(cells, ONE, 1000) / error

    # variances 0.06^2 + 0.06^2 of the choice, 0.05^2 of a measurement: 0.74; at errors of 0.3 12.5 times the former
    assert followed(0.05) == pytest.approx((CHOICE**2 + NEAR**2) / (CHOICE**2 + NEAR**2 + NOISE**2))
    assert followed(0.3) > 0.95


def test_doubt_shrinks_where_a_choice_was_measured():
    def doubt(cells, choice, tokens):
        return correction(cells).doubt(choice, np.array(place_of(tokens, 64)))

    prior = CHOICE**2 + NEAR**2
    assert doubt([], ONE, 1000) == pytest.approx(prior**0.5)
    cells = measured([], ONE, load(1000), 1.0, predicted=1.0)
    assert doubt(cells, OTHER, 1000) == pytest.approx(prior**0.5)
    assert doubt(cells, ONE, 1000) == pytest.approx((prior - prior**2 / (prior + NOISE**2)) ** 0.5)
    assert doubt(cells, ONE, 1000) < doubt(cells, ONE, 4000) < doubt(cells, OTHER, 1000)
