"""The forecast's interval holds the step at which a limit is met as often as it says, and warnings come in time."""

import numpy as np
import pytest

from earl.benchmarks.selector import SHAPES
from earl.context.forecast import forecast, warns

HORIZON, STEPS, SEEN = 200, 400, 60


def histories(each):
    """Values by step, and a limit above all that was seen until step SEEN."""
    for place, shape in enumerate(SHAPES.values()):
        for seed in range(each):
            random = np.random.default_rng((place, seed))
            curve = random.choice([150, 500, 2000]) * shape(np.arange(STEPS, dtype=np.float64), random)
            values = curve * (1 + random.uniform(0.003, 0.05) * random.standard_normal(STEPS))
            yield values, values[:SEEN].max() * random.uniform(1.02, 1.5)


def met(values, limit):
    over = np.flatnonzero(values >= limit)
    return float(over[0]) if len(over) else np.inf


@pytest.mark.slow
def test_the_interval_is_right_as_often_as_it_says():
    held = []
    for values, limit in histories(each=8):
        found = forecast([*enumerate(values[:SEEN].tolist())], limit, HORIZON)
        crossing = met(values, limit)
        held.append(found.early <= (crossing if crossing < SEEN + HORIZON else np.inf) <= found.late)
    assert 0.7 < np.mean(held) < 0.92


@pytest.mark.slow
def test_most_limits_are_warned_of_five_steps_ahead():
    in_time = []
    for values, limit in histories(each=2):
        crossing = met(values[: SEEN + HORIZON], limit)
        if crossing < np.inf:
            points = [*enumerate(values.tolist())]
            in_time.append(any(warns(forecast(points[: now + 1], limit), now) for now in range(int(crossing) - 4)))
    assert len(in_time) >= 15
    assert np.mean(in_time) >= 0.9
