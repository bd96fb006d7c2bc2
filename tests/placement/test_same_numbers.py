"""One seed gives the same losses and rewards wherever the step runs: the algorithm does not know where that is."""

import pytest

from earl.benchmarks import placements

pytestmark = pytest.mark.usefixtures("shared_ray")


@pytest.mark.slow
def test_every_placement_and_layout_learns_the_same(tmp_path, monkeypatch):
    rows = []
    # A rank does not know with whom it takes turns: each axis of a layout is tried once more where it does.
    for kind, layouts in {"disaggregated": placements.LAYOUTS, "colocated": [(1, 1, 1), (2, 2, 1), (2, 1, 2)]}.items():
        monkeypatch.setattr(placements, "KINDS", [kind])
        monkeypatch.setattr(placements, "LAYOUTS", layouts)
        # `earl bench placements` takes 10 and 20
        result = placements.run(tmp_path, ["warm_start.steps=2", "run.steps=4"])
        assert result["steps"] == 6
        rows += result["rows"]
    assert len(rows) == 5 + 3
    for row in rows:
        assert max(row["loss"], row["reward"]) <= 1e-4, row
