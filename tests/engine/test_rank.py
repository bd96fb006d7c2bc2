"""A sharded learner of one process: what needs no second one to be seen."""

import os
import sys

import numpy as np
import pytest
import torch

from earl.benchmarks.layouts import drawn, free_port, trained
from earl.config import LearnerConfig
from earl.engine.learner import Learner, make_learner
from earl.engine.model import make
from earl.engine.ranks import Ranks
from earl.engine.sharding.mesh import joined_mesh
from earl.errors import EarlError
from earl.parallel.layout import Layout
from earl.placement.peers import Peers
from earl.placement.ray.actor_setup import sharded_learner
from earl.rollout.synthetic import advantages_of


@pytest.fixture(scope="module")
def mesh():
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    with joined_mesh(0, Layout(), "127.0.0.1", free_port()) as joined:
        yield joined


def test_a_model_is_read_from_a_folder_without_being_loaded(mesh, tiny, tmp_path):
    config = tiny()
    policy = make(config.model, seed=3)
    policy.save(tmp_path)
    learner = sharded_learner(config, mesh, tmp_path)
    weights = learner.weights()
    assert weights.keys() == policy.model.state_dict().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in policy.model.state_dict().items())
    whole = Learner(policy, config.learner, 1.0, Ranks(Peers()), False)
    assert np.allclose(learner.logprobs(drawn(0)), whole.logprobs(drawn(0)), atol=1e-5)


def test_computing_in_16_bits_with_weights_of_32(mesh, tiny):
    wide = sharded_learner(tiny(algorithm={"name": "ppo"}), mesh)
    narrow = sharded_learner(tiny(algorithm={"name": "ppo"}, learner={"dtype": "bfloat16", "recompute": True}), mesh)
    ours, theirs = trained(narrow, range(3)), trained(wide, range(3))
    assert np.isfinite(ours).all()
    assert 1e-6 < np.abs(ours - theirs).max() < 0.1  # 8 bits of mantissa: other numbers, of the same size
    assert {tensor.dtype for tensor in narrow.weights().values()} == {torch.float32}


def test_everything_that_was_moved_away_comes_back(mesh, tiny):
    # On a CPU host memory is where it is already: the calls must not disturb anything.
    learner, other = (sharded_learner(tiny(algorithm={"name": "ppo"}), mesh) for _ in range(2))
    trained(learner, range(2))
    learner.state.move(hosted=True)
    learner.state.move(hosted=False)
    trained(other, range(2))
    assert np.array_equal(trained(learner, range(2, 4)), trained(other, range(2, 4)))


def test_whole_copies_do_not_compute_in_16_bits(small):
    with pytest.raises(EarlError, match="is for a sharded learner"):
        Ranks(Peers()).place(small(), LearnerConfig(dtype="bfloat16"), values=False)


OTHER = {"hidden": 48, "layers": 3, "heads": 3, "head_dim": 16, "intermediate": 64}


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_another_reference_scores_by_its_own_weights_and_is_in_no_checkpoint(mesh, tiny, tmp_path, lora_rank):
    other = make(tiny(model=OTHER).model, seed=3)
    other.save(tmp_path / "other")
    named = {"kl": 0.1, "reference": str(tmp_path / "other")}
    config = tiny(algorithm=named, learner={"lora_rank": lora_rank})
    rows = drawn(0)
    expected = Learner(other, LearnerConfig(), 1.0, Ranks(Peers()), False).logprobs(rows)
    for number, learner in enumerate(
        [sharded_learner(config, mesh), make_learner(config, make(config.model, 0), Ranks(Peers()))]
    ):
        known = learner.complete(rows, advantages_of(rows, False, 0), reference=True).reference
        assert np.allclose(known, expected, atol=1e-5)
        assert not np.allclose(learner.logprobs(rows), expected, atol=1e-2)
        learner.snapshot()(tmp_path / str(number))
        assert (tmp_path / str(number) / "reference").exists() == bool(lora_rank)  # the base of the adapters
