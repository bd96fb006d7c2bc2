"""One seed gives the same losses and rewards wherever the step runs: the algorithm does not know where that is."""

import pytest

from earl.benchmarks import placements
from tests.sampling import sampled

pytestmark = pytest.mark.usefixtures("shared_ray")
LAYOUTS = [(2, 2, 1), (2, 1, 2)]
"""tp or cp beside dp. test_relayout.py has a rank alone, test_learner_relayout.py each axis alone."""
CURRICULUM = [
    *("algorithm.name=dapo", "rollout.resample=2", "env.prefer=informative", "env.restarts=0.5"),
    "env.opponents={random=[2, 0], heuristic=[1, 2], perfect=1, self=1}",
    *("warm_start.distill=0.5", "warm_start.distill_steps=3"),
]
SHORT = ["warm_start.steps=2", "warm_start.episodes=24", "warm_start.minibatches=3", "run.steps=4", *CURRICULUM]
"""`earl bench placements` takes 10 and 20 steps."""


@pytest.mark.slow
@pytest.mark.parametrize(("dp", "tp", "cp"), sampled(LAYOUTS, every=2))
def test_every_placement_learns_the_same(dp, tp, cp, tmp_path, monkeypatch):
    monkeypatch.setattr(placements, "LAYOUTS", [(dp, tp, cp)])
    result = placements.run(tmp_path, SHORT)
    assert result["steps"] == 6
    assert [row["placement"] for row in result["rows"]] == ["colocated", "disaggregated"]
    for row in result["rows"]:
        assert max(row["loss"], row["reward"]) <= 1e-4, row
