"""vLLM as the sampler of a cluster's rollout workers: the learner's ranks probe it after every load."""

import pytest

from earl import audit
from earl.benchmarks.training import trained

pytestmark = pytest.mark.usefixtures("shared_ray")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["colocated", "disaggregated"])
def test_a_run_on_ray_samples_with_vllm(tiny, tmp_path, kind):
    pytest.importorskip("vllm", reason="vLLM is an extra")
    config = tiny(
        sampler={"engine": "vllm", "kv_cache_gib": 0.1},
        model={"hidden": 32, "layers": 1, "heads": 2, "head_dim": 32, "intermediate": 32},
        placement={"kind": kind, "dp": 2},
        run={"checkpoint_every": 1},
    )
    folder = trained(tmp_path, "vllm", config)
    # Every log-prob is that of the checkpoint's weights, versions and masks are right: nothing stale was sampled with.
    assert list(audit.audit(folder).findings) == []
