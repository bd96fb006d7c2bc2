"""Measurements move predictions: their own most, those next to them less, those of other choices a little."""

from math import exp, log

import numpy as np
import pytest

from earl.parallel.layout import Bucket, Choice, Layout
from earl.parallel.memory import Load
from earl.parallel.profile import CHOICE, ERROR, NEAR, NOISE, STAGE, add_measurement, correction, place_of

ONE, OTHER = Choice("update", Layout(4)), Choice("update", Layout(2, 2))


def load(tokens, sequences=64):
    return Load(sequences, float(tokens), 2 * tokens, 100_000)


def at(cells, choice, tokens):
    return float(correction(cells).at([choice], np.array([place_of(tokens, 64)]))[0, 0])


def test_nothing_measured_moves_nothing():
    assert at([], ONE, 1000) == 0.0


def test_one_measurement_is_shared_by_the_variances_of_its_causes():
    cells = add_measurement([], ONE, load(1000), 1.2, predicted=1.0)
    ratio, wider = log(1.2), correction(cells).wider
    assert 2 < wider < 3  # errors of 8.5 % times its root, 13 %: a single measurement says little of them
    own, near = wider * CHOICE**2, wider * NEAR**2
    whole = STAGE**2 + own + near
    assert at(cells, ONE, 1000) == pytest.approx(ratio * whole / (whole + NOISE**2), rel=1e-3)
    assert at(cells, OTHER, 1000) == pytest.approx(ratio * STAGE**2 / (whole + NOISE**2), rel=1e-3)
    # two doublings away; the slope's place is 0.03 doublings from its middle here
    far = STAGE**2 + own + near * exp(-2 / (2 * wider**0.5))
    assert at(cells, ONE, 4000) == pytest.approx(ratio * far / (whole + NOISE**2), rel=5e-3)


def test_many_measurements_are_believed():
    cells = []
    for _ in range(30):
        cells = add_measurement(cells, ONE, load(1000), 1.2, predicted=1.0)
    assert exp(at(cells, ONE, 1000)) == pytest.approx(1.2, rel=0.01)
    (cell,) = cells
    assert (cell.choice, cell.bucket) == (ONE, Bucket(10, 6))
    assert (cell.count, cell.seconds) == (30, pytest.approx(1.2))
    assert cell.spread == pytest.approx(0.0, abs=1e-9)


def test_a_step_that_was_held_up_counts_for_little():
    cells = []
    for seconds in [1.0] * 10 + [50.0]:
        cells = add_measurement(cells, ONE, load(1000), seconds, predicted=1.0)
    assert exp(at(cells, ONE, 1000)) < 1.1  # cut off at e ** 0.7, an eleventh of which is 0.06


def test_the_spread_is_that_of_what_was_measured():
    cells, ratios = [], [0.0, 0.2, 0.1, 0.3]
    for ratio in ratios:
        cells = add_measurement(cells, ONE, load(1000), exp(ratio), predicted=1.0)
    (cell,) = cells
    assert cell.ratio == pytest.approx(np.mean(ratios))
    assert cell.spread == pytest.approx(np.std(ratios))


def test_the_more_predictions_are_off_the_more_measurements_count():
    def followed(error):
        """The share of a choice's error that is corrected, where predictions of two are off by it, up and down."""
        cells = add_measurement([], ONE, load(1000), exp(error), predicted=1.0)
        cells = add_measurement(cells, OTHER, load(1000), exp(-error), predicted=1.0)
        return at(cells, ONE, 1000) / error

    # variance 0.05^2 of a measurement; errors of 10 % are 0.8 of both, of 26 % 0.96
    assert 0.75 < followed(0.05) < 0.82
    assert followed(0.3) > 0.95


def predictions(*logs):
    return dict(zip((Choice("update", Layout(8 // tp, tp)) for tp in (1, 2, 4, 8)), logs, strict=True))


def test_predictions_that_hardly_differ_are_hardly_wrong():
    """True logarithms of variance t, predicted with errors of variance e, differ with t + e."""
    known = [correction([], predictions(apart, -apart, apart, -apart)).wider for apart in (0.02, 0.3, 1.0)]
    assert known == sorted(known)
    assert known[0] < correction([]).wider / 5


def test_predictions_are_drawn_to_their_mean_as_far_as_they_may_be_wrong():
    offered = predictions(1.0, 3.0, 1.6, 2.4)
    found = correction([], offered)
    drawn = [mean / (2.0 - value) for value, mean in zip(offered.values(), found.means.values(), strict=True)]
    assert drawn == pytest.approx([drawn[0]] * 4)
    assert 0 < drawn[0] < 0.2  # they differ by far more than they may be wrong
    four = list(offered)
    cells = []
    for choice, ratio in zip(
        four, (1.0, -1.0, 0.4, -0.4), strict=True
    ):  # all took the same: predicted differences are errors
        cells = add_measurement(cells, choice, load(1000), exp(ratio), predicted=1.0)
    wrong = correction(cells[:3], offered)
    assert -wrong.means[four[3]] > 0.4 * 0.5  # the fourth is drawn by more than half, unmeasured


def test_a_measurement_tells_less_where_a_choice_was_measured():
    def telling(cells, choice, *tokens):
        return correction(cells).telling(choice, np.array([place_of(own, 64) for own in tokens]))

    prior = correction([]).wider * ERROR**2
    here, near, far = telling([], ONE, 1000, 1100, 8000)
    assert here == pytest.approx(prior / (prior + NOISE**2) ** 0.5, rel=0.03)
    assert here > near > far > 0
    cells = add_measurement([], ONE, load(1000), 1.0, predicted=1.0)
    assert telling(cells, ONE, 1000) == ()
    assert telling(cells, OTHER, 1000)
    wrong = add_measurement(
        add_measurement([], ONE, load(1000), 2.0, predicted=1.0), OTHER, load(1000), 0.5, predicted=1.0
    )
    assert telling(wrong, ONE, 1000) == ()
    assert telling(wrong, ONE, 32_000)  # where loads have gone since, it is unknown again
