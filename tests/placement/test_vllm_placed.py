"""vLLM as the sampler of a cluster's rollout workers: the learner's ranks probe it after every load."""

import pytest

from earl import audit
from earl.benchmarks.training import trained
from earl.errors import EarlError
from earl.placement.ray.coordinator import Coordinator
from earl.placement.ray.weight_sync import WeightSender
from earl.runs.store import Store
from tests.placement.test_relayout import Switching, switched

pytest.importorskip("vllm", reason="vLLM is an extra")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_ray")]


@pytest.fixture
def recipe(tiny):
    return lambda **placement: tiny(
        sampler={"engine": "vllm", "kv_cache_gib": 0.1},
        model={"hidden": 64, "layers": 1, "heads": 2, "head_dim": 32, "intermediate": 32},
        placement={"dp": 2, **placement},
        run={"checkpoint_every": 1},
    )


def assert_received(folder, engines):
    """Every sync brought every engine the weights it needs, in float32 as it computes here, and little else."""
    with Store(folder.database, read_only=True) as store:
        series = store.metrics()
    received, needed = (series[f"weights/{name}_bytes"] for name in ("received", "needed"))
    assert len(received) == len(needed) > 3
    for (_, came), (_, own) in zip(received, needed, strict=True):
        assert 0.8 * own < came <= 1.02 * own  # vLLM pads 106 words to 128, twice in a small model
        assert own % engines == 0


def assert_sound(folder):
    """Log-probs are those of the checkpoint's weights, versions and masks are right: nothing stale was sampled with."""
    assert list(audit.audit(folder).findings) == []


@pytest.mark.exhaustive
def test_a_run_whose_devices_take_turns_samples_with_vllm(recipe, tmp_path):
    folder = trained(tmp_path, "vllm", recipe(kind="colocated"))
    assert_sound(folder)
    assert_received(folder, engines=2)


def test_ranks_send_weights_straight_to_engines(recipe, tmp_path, monkeypatch):
    # As where each process has a GPU of its own, here over gloo.
    sent, send = [], WeightSender.send
    monkeypatch.setattr(Coordinator, "_sender", lambda self: WeightSender(self._ranks, self._engine_tp, 60.0))
    monkeypatch.setattr(WeightSender, "send", lambda self, *told: sent.append(send(self, *told)) or sent[-1])
    folder = trained(tmp_path, "sent", recipe(kind="disaggregated", samplers=2))
    assert len(sent) > 3
    assert_sound(folder)
    assert_received(folder, engines=2)
    with Store(folder.database, read_only=True) as store:
        assert not [event for event in store.events() if event.kind in ("dispatch", "recovered")]


class Engines(Switching):
    """Asks for more devices than there are before each switch."""

    def switch(self, stages, step):
        with pytest.raises(EarlError, match="the run began with 2 x 1; choose a split of as many devices"):
            stages.relayout(3, 1, step - 1)
        super().switch(stages, step)  # which compares a probe's log-probs with the learner's


@pytest.mark.exhaustive
@pytest.mark.parametrize("splits", [{5: (1, 2)}, {5: (1, 2), 6: (2, 1)}])
def test_engines_are_others_after_a_switch(recipe, tmp_path, splits):
    config = recipe(kind="disaggregated", samplers=2)
    folder, switches = switched(tmp_path, "vllm", config, splits, kind=Engines)
    assert switches == len(splits)
    assert_sound(folder)
    with Store(folder.database, read_only=True) as store:
        assert not [event for event in store.events() if event.kind == "recovered"]
