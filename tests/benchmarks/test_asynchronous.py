"""The benchmark of asynchronous rollout measures what it says; how fast this machine is, no test asks."""

import pytest

from earl.benchmarks import arms

SMALL = (
    *("model.hidden=16", "model.layers=1", "model.heads=1", "warm_start.steps=1", "warm_start.episodes=8"),
    *("warm_start.minibatches=1", "rollout.episodes=16", "env.delay_seconds=0.005"),
)


def test_differences_are_paired_by_seed():
    # 1, 2 and 3 points: mean 2, standard deviation 1, t of 2 degrees of freedom 4.303: 2 ± 4.303 / √3.
    expected = {"share": 0.02, "low": 0.02 - 0.04303 / 3**0.5, "high": 0.02 + 0.04303 / 3**0.5}
    assert arms.difference([0.01, 0.02, 0.03]) == pytest.approx(expected)
    assert arms.difference([0.01]) == {"share": 0.01, "low": -1.0, "high": 1.0}


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_what_the_asynchronous_benchmark_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(arms, "GAMES", 10)
    result = arms.asynchronous(tmp_path, seeds=1, steps=7, assignments=SMALL)
    assert (result["seeds"], result["episodes"], result["games"]) == (1, 16, 20)
    assert result["delay_seconds"] == 0.005
    for name, bound in (("synchronous", 0), ("ahead_1", 1), ("ahead_2", 2)):
        assert result[name]["staleness_max"] <= bound
        assert result[name]["seconds"]["min"] <= result[name]["seconds"]["median"]
    assert set(result["speedup"]) == set(result["not_lost_minus_synchronous"]) == {"ahead_1", "ahead_2"}
