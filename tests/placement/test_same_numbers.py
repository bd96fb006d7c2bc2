"""One seed gives the same losses and rewards wherever the step runs: the algorithm does not know where that is."""

import pytest

from earl.benchmarks.placements import RECIPE, run
from earl.recipe import build


@pytest.mark.slow
def test_every_placement_and_layout_learns_the_same(tmp_path):
    result = run(tmp_path)
    assert build(RECIPE).run.steps == 20
    assert len(result["rows"]) == 10  # 2 placements x 5 layouts
    for row in result["rows"]:
        assert max(row["loss"], row["reward"]) <= 1e-4, row
