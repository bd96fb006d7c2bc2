"""The benchmark of asynchronous rollout measures what it says; how fast this machine is, no test asks."""

import pytest

from earl.benchmarks import asynchronous

SMALL = (
    *("model.hidden=16", "model.layers=1", "model.heads=1", "warm_start.steps=1", "warm_start.episodes=8"),
    *("warm_start.minibatches=1", "rollout.episodes=16", "env.delay_seconds=0.005"),
)


def test_differences_of_shares_have_newcombes_interval():
    # 56/70 and 48/80: the example of Newcombe (1998), method 10: 0.2000, from 0.0524 to 0.3339.
    counts = asynchronous._share(56, 70), asynchronous._share(48, 80)
    assert asynchronous.difference(*counts) == pytest.approx({"share": 0.2, "low": 0.0524, "high": 0.3339}, abs=1e-4)


@pytest.mark.slow
def test_what_the_asynchronous_benchmark_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(asynchronous, "GAMES", 10)
    result = asynchronous.run(tmp_path, seeds=1, steps=7, assignments=SMALL)
    assert (result["seeds"], result["episodes"], result["games"]) == (1, 16, 20)
    assert result["delay_seconds"] == 0.005
    for name, bound in (("synchronous", 0), ("ahead_1", 1), ("ahead_2", 2)):
        assert result[name]["staleness_max"] <= bound
        assert result[name]["seconds"]["min"] <= result[name]["seconds"]["median"]
    assert set(result["speedup"]) == set(result["not_lost_minus_synchronous"]) == {"ahead_1", "ahead_2"}
