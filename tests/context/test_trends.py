"""The parts of the forecast, against versions of them that take one point, one model and one path at a time."""

import math

import numpy as np
import pytest

from earl.context import forecast as own
from earl.context.forecast import MODELS, PATHS, WINDOW, Paths, Series, filters, outlook, posterior, series, simulate

COUNT = len(MODELS.level)
GROWING = np.array([10.0, 11.0, 12.5, 15.0, 15.5, 17.0, 18.0, 20.5, 21.0, 22.0, 24.5])


def filtered(values, model):
    """The textbook's Kalman filter of one model: error and its variance at each point, state, covariance."""
    observation, level, slope, damping, has_slope, _ = (column[model] for column in MODELS)
    state, p = np.zeros(2), np.diag([1e8, 1e4 * has_slope])
    step, drive = np.array([[1, damping], [0, damping]]), np.array([1.0, 1.0])
    errors, variances = np.zeros(len(values)), np.ones(len(values))
    for t, value in enumerate(values):
        if t:
            state = step @ state
            p = step @ p @ step.T + slope * np.outer(drive, drive) + np.diag([level, 0])
        errors[t], variances[t] = value - state[0], p[0, 0] + observation
        gain = p[:, 0] / variances[t]
        state = state + gain * errors[t]
        p = p - np.outer(gain, p[0])
    return errors, variances, state, p


@pytest.mark.parametrize("model", [0, 4, 7, 23, 44, COUNT - 1])
def test_filters_are_the_textbook_s(model):
    known, size = filters(), len(GROWING)
    errors, variances, state, p = filtered(GROWING, model)
    assert known.innovations[:size, model, :size] @ GROWING == pytest.approx(errors, rel=1e-5, abs=1e-5)
    assert known.variances[:size, model] == pytest.approx(variances, rel=1e-6)
    assert known.states[size - 1, :, model, :size] @ GROWING == pytest.approx(state, rel=1e-5, abs=1e-5)
    assert known.covariances[size - 1, :, model] == pytest.approx([p[0, 0], p[0, 1], p[1, 1]], rel=1e-4, abs=1e-5)


def density(values, counts, model, logarithmic):
    """Log density of one stretch after each point, and the noise's variance and degrees of freedom at its end."""
    errors, variances, state, p = filtered(values, model)
    prior = own.SCALE_POINTS * own.SCALE**2
    freedom, squares, points, log, said = own.SCALE_POINTS, prior, 0.0, 0.0, []
    cost = counts[0] * math.log(own.LEVEL * math.sqrt(2 * math.pi))
    cost += counts[1] * math.log(own.SLOPE * math.sqrt(2 * math.pi))
    for t, value in enumerate(values):
        count = 0.0 if t < 2 else counts[t]
        freedom, points, squares = freedom + count, points + count, squares + count * errors[t] ** 2 / variances[t]
        log -= count * math.log(math.pi * variances[t]) / 2 + (count * value if logarithmic else 0)
        gamma = math.lgamma(freedom / 2) - freedom / 2 * math.log(squares / prior) - points / 2 * math.log(prior)
        said.append(MODELS.log_prior[model] + gamma + log - cost)
    return said, squares / freedom, freedom, state, p


def log_weights(values):
    """Of every hypothesis, each with its stretch's variance, freedom, state and covariance."""
    unit, last = np.abs(values).mean(), len(values)
    counts = own.FORGETTING ** np.arange(last - 1, -1, -1)
    scales = [values / unit]
    if (values > 0).all():
        scales.append(np.log(values / unit))
    starts = [last - length for length in own.SEGMENTS if last - length >= own.SHORTEST]
    found = {}
    for start in (0, *starts):
        for scale, column in enumerate(scales):
            for model in range(COUNT):
                found[start, scale, model] = density(column[start:], counts[start:], model, scale)
    logs = {}
    for (start, scale, model), (said, *_) in found.items():
        before = [said[start - 1] for (begin, *_), (said, *_) in found.items() if begin == 0] if start else []
        logs[start, scale, model] = said[-1] + (np.logaddexp.reduce(before) + math.log(own.BROKEN) if start else 0)
    return logs, found


@pytest.mark.parametrize("shift", [0.0, -30.0])  # values, and values that have no logarithm
@pytest.mark.parametrize("more", [0, 1])
def test_hypotheses_weigh_what_they_predicted(shift, more):
    """The last 8 points may follow a trend of their own if 4 are before them: of 11 points 3 are, of 12 they are."""
    values = np.r_[[9.0] * more, GROWING] + shift
    known, (logs, found) = posterior(values), log_weights(values)
    places = np.flatnonzero(~known.logarithmic | (shift == 0))
    assert len(places) == len(logs) == (1 + more) * (2 if shift == 0 else 1) * COUNT
    total = np.logaddexp.reduce([*logs.values()])
    assert known.weights[places] == pytest.approx(np.exp([*logs.values()] - total), rel=1e-3, abs=1e-9)
    assert known.weights.sum() == pytest.approx(1)
    assert known.unit == pytest.approx(np.abs(values).mean())
    assert known.logarithmic.tolist() == [scale == 1 for _ in range(1 + more) for scale in (0, 1) for _ in range(COUNT)]
    assert known.model.tolist() == [*range(COUNT)] * (2 + 2 * more)
    assert known.variances[places] == pytest.approx([one[1] for one in found.values()], rel=1e-3)
    assert known.freedom[places] == pytest.approx([one[2] for one in found.values()])
    states = np.array([one[3] for one in found.values()]).T
    np.testing.assert_allclose(known.states[:, places], states, rtol=1e-4, atol=1e-6)
    covariances = np.array([[p[0, 0], p[0, 1], p[1, 1]] for *_, p in found.values()]).T
    np.testing.assert_allclose(known.covariances[:, places], covariances, rtol=1e-3, atol=1e-6)


def followed(past, horizon):
    """The futures of `simulate`, one path after the other, from the same random numbers."""
    known = posterior(past.values)
    noise, luck, uniform = own._luck(-(-horizon // own.BLOCK))
    result, shares = np.zeros((horizon, PATHS)), np.cumsum(known.weights)
    for path in range(PATHS):
        drawn = int(np.searchsorted(shares / shares[-1], (path + 0.5) / PATHS))
        observation, level_noise, slope_noise, damping, *_ = (column[known.model[drawn]] for column in MODELS)
        cube = 2 / (9 * known.freedom[drawn])
        chi = max(1 - cube + luck[0, path] * math.sqrt(cube), 0.15) ** 3
        deviation = math.sqrt(known.variances[drawn] / chi)
        p_level, p_both, p_slope = known.covariances[:, drawn]
        root = math.sqrt(max(p_level, 1e-12))
        alone = math.sqrt(max(p_slope - (p_both / root) ** 2, 0))
        level = known.states[0, drawn] + deviation * root * luck[1, path]
        slope = known.states[1, drawn] + deviation * (p_both / root * luck[1, path] + alone * luck[2, path])
        clear = abs(known.states[1, drawn]) > 4 * math.sqrt(known.variances[drawn] * max(p_slope, 0))
        rate = (0.05 if clear else 0.4) / (past.points + 10)
        turn = math.log(uniform[path]) / math.log1p(-rate)
        for place in range(horizon):
            slope = damping * slope + deviation * math.sqrt(slope_noise) * noise[place, 0, path]
            if int(turn) == place:
                slope = 0.1 * luck[3, path]
            level += slope + deviation * math.sqrt(level_noise) * noise[place, 1, path]
            result[place, path] = level + deviation * math.sqrt(observation) * noise[place, 2, path]
    return result


@pytest.mark.parametrize("values", [GROWING, np.full(11, 20.0), GROWING - 30])
def test_futures_follow_their_trends(values):
    past = Series(values, last=10, spacing=1, points=11)
    made = simulate(past, 40)
    assert made.values == pytest.approx(followed(past, 40), rel=1e-6, abs=1e-6)
    known = posterior(values)
    assert made.unit == known.unit
    shares = np.cumsum(known.weights)
    assert made.logarithmic[100] == known.logarithmic[np.searchsorted(shares / shares[-1], 100.5 / PATHS)]


def test_paths_reach_a_limit_and_are_read_in_the_value_s_unit():
    values = np.array([[1.0, 0.0, 3.0], [2.0, 1.0, 0.0], [1.5, 400.0, 0.0]])
    paths = Paths(values, np.array([False, True, False]), unit=10.0)
    # 20 is 2 units, and ln 2 = 0.69 on the second path; the third is above at once.
    assert paths.first_at_least(20.0).tolist() == [2, 2, 1]
    assert paths.first_at_least(31.0).tolist() == [4, 3, 4]  # ln 3.1 = 1.13; the first and the third never do
    assert paths.first_at_least(0.0).tolist() == [1, 1, 1]
    assert paths.at(1) == pytest.approx([20.0, 10 * math.e, 0.0])
    assert paths.at(-1) == pytest.approx([15.0, 10 * math.exp(300), 0.0])  # not infinite


def test_shares_of_the_paths_lie_within_a_place():
    # All reach it at the third place: 2.5 and the shares 0.1, 0.45 and 0.8 of it.
    assert own._quantiles(np.full(PATHS, 3), 5) == pytest.approx([2.6, 2.95, 3.3])
    # Half at the first place, a quarter never: 0.5 + 0.1 / 0.5, 0.5 + 0.45 / 0.5; 0.8 of them do not.
    first = np.repeat([1, 2, 6], [PATHS // 2, PATHS // 4, PATHS // 4])
    assert own._quantiles(first, 5) == pytest.approx([0.7, 1.4, math.inf])


def series_of(history):
    made = series(history)
    return made.values.tolist(), made.last, made.spacing, made.points


def test_a_history_becomes_evenly_spaced():
    steady = [(step, float(step)) for step in range(3, 10)]
    assert series_of(steady) == ([3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 9, 1, 7)
    apart = [(10 * step, float(step)) for step in range(6)]
    assert series_of([*apart, (82, 8.0)]) == ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0], 82, 14, 7)  # 82 / 6 = 13.7
    # A short one was as its first point before; what is not finite is left out, but counts among the points.
    assert series_of([(0, 7.0), (1, math.nan), (2, 8.0)]) == ([7.0] * 5 + [8.0], 2, 2, 3)
    assert series_of([(4, 5.0)]) == ([5.0] * 6, 4, 1, 1)
    assert series_of([(4, 5.0), (4, 6.0)])[0][-1] == 6.0  # the later one counts
    assert series([(1, math.inf)]) is None
    long = series([(step, float(step)) for step in range(WINDOW + 9)])
    assert (long.values[0], len(long.values), long.points) == (9.0, WINDOW, WINDOW + 9)


def test_what_is_expected_are_quantiles_of_the_same_futures():
    history = [(2 * step, float(value)) for step, value in enumerate(GROWING + 1)]
    paths = simulate(series(history), 16)  # 32 steps, in places of two
    seen = outlook(history, [0, 1, 2, 31], (0.0, 0.25, 0.9))
    assert seen.shape == (4, 3)
    assert seen[0].tolist() == [25.5] * 3
    assert seen[1].tolist() == seen[2].tolist() == np.sort(paths.at(0))[[0, 64, 230]].tolist()
    assert seen[3] == pytest.approx(np.sort(paths.at(15))[[0, 64, 230]])
