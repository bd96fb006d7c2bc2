"""One seed gives the same losses and rewards wherever the step runs: the algorithm does not know where that is."""

import pytest

from earl.benchmarks.placements import run

pytestmark = pytest.mark.usefixtures("shared_ray")


@pytest.mark.slow
def test_every_placement_and_layout_learns_the_same(tmp_path):
    result = run(tmp_path, ["warm_start.steps=2", "run.steps=4"])  # `earl bench placements` takes 10 and 20
    assert result["steps"] == 6
    assert len(result["rows"]) == 10  # 2 placements x 5 layouts
    for row in result["rows"]:
        assert max(row["loss"], row["reward"]) <= 1e-4, row
