"""A run that began from an existing model does not need it any more once there is a checkpoint."""

import shutil

import pytest

from earl.engine.model import make


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
