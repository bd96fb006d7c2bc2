"""A run that began from an existing model does not need it any more once there is a checkpoint."""

import shutil

import pytest

from earl.engine.model import make
from earl.runs.store import read_numbers


@pytest.mark.slow
def test_a_run_goes_on_where_its_first_model_is_gone(tiny, new_run, whole, remains, carry_on, stopping, tmp_path):
    own = tmp_path / "own"
    make(tiny().model, seed=1).save(own)
    config = tiny(model={"path": str(own)})
    expected = whole(config)
    folder = new_run(config)
    carry_on(folder, config, stopping(4))
    shutil.rmtree(own)
    assert carry_on(folder, config).finished
    continued = remains(folder)
    # Which checkpoints are kept beside the last one differs: the stop wrote one more.
    assert {**continued, "checkpoints": None} == {**expected, "checkpoints": None}


@pytest.mark.slow
def test_a_policy_comes_closer_to_another_reference(tiny, new_run, whole, remains, carry_on, stopping, tmp_path):
    """On-policy distillation by reverse KL, of a model of another size; it goes on to the bit."""
    other = {"hidden": 48, "layers": 3, "heads": 3, "head_dim": 16, "intermediate": 64}
    make(tiny(model=other).model, seed=1).save(tmp_path / "other")
    how = {"kl": 3.0, "kl_estimator": "k2", "reference": str(tmp_path / "other")}
    config = tiny(algorithm=how, learner={"learning_rate": 5e-3}, warm_start={"steps": 0}, run={"steps": 12})
    folder = new_run(config)
    carry_on(folder, config, stopping(4))
    assert carry_on(folder, config).finished
    distances = [value for _, value in read_numbers(folder.database).metrics["kl_to_reference"]]
    assert distances[-1] < 0.5 * distances[0]
    assert {**remains(folder), "checkpoints": None} == {**whole(config), "checkpoints": None}
