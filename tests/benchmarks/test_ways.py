"""Every way moves the same rows; which one is fastest is not asserted."""

import numpy as np
import pytest

from earl.benchmarks import transport_paths
from earl.benchmarks.transport_paths import ROW_TOKENS, run
from tests.shared_ray import borrowed


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_every_way_moves_what_the_ranks_lack(monkeypatch):
    monkeypatch.setattr(transport_paths, "connected", borrowed)
    result = run(workers=2, ranks=1, repeats=1, tokens=(1000,))
    assert (result["workers"], result["ranks"]) == (2, 1)
    (row,) = result["rows"]
    # Two rows of each worker, as `fill` draws their lengths; 14 bytes a token: 4 + 1 + 4 + 4 + 1.
    lengths = [np.random.default_rng(seed).integers(ROW_TOKENS // 2, ROW_TOKENS * 3 // 2, 2) for seed in range(2)]
    assert row["bytes"] == 14 * int(np.sum(lengths))
    assert all(row[way]["median"] > 0 for way in ("objects", "peers"))
