"""Whole training runs whose episodes vLLM samples."""

import pytest

from earl import audit
from earl.runs import trajectories

VLLM = {
    "sampler": {"engine": "vllm", "kv_cache_gib": 0.1},
    "model": {"hidden": 32, "layers": 1, "heads": 2, "head_dim": 32, "intermediate": 32},
    "run": {"checkpoint_every": 1},
}


@pytest.mark.slow
def test_a_run_on_vllm_learns_from_what_its_own_weights_sampled(tiny, new_run, carry_on):
    pytest.importorskip("vllm", reason="vLLM is an extra")
    config = tiny(**VLLM)
    folder = new_run(config)
    progress = carry_on(folder, config)
    assert (progress.step, progress.finished) == (6, True)
    for number in (4, 5, 6):
        _, groups = trajectories.read(folder.trajectories / f"step-{number:06}.parquet")
        versions = {int(v) for group in groups for t in group.trajectories for v in t.versions[t.sampled]}
        assert versions == {number - 1}
    # Every stored log-prob is that of the checkpoint's weights, among all else that an audit looks at.
    assert list(audit.audit(folder).findings) == []
