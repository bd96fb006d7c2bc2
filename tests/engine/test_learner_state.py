"""What a learner keeps and gives back: value head, moments, weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from earl.algorithms.base import Advantages
from earl.algorithms.registry import algorithm
from earl.config import LearnerConfig
from earl.engine.learner import Learner, Update
from earl.engine.local import LocalSampler
from earl.engine.ranks import Ranks
from earl.engine.train_state import STATE
from earl.errors import EarlError
from earl.placement.peers import Peers
from earl.rollout.drivers import play
from earl.rollout.pack import complete, pack

MOVING = Update(learning_rate=1e-3, entropy=0.01, minibatches=3, epochs=2, seed=4)

ONE = replace(MOVING, minibatches=1, epochs=1)


@pytest.fixture
def rows(small, episodes):
    policy = small()
    return pack(play(episodes(policy, 8), LocalSampler(policy)))


def with_returns(rows, returns):
    advantages = np.linspace(-1, 1, len(returns)).astype(np.float32)
    return complete(rows, Advantages(advantages, np.asarray(returns, dtype=np.float32)), None)


def ppo_learner(policy):
    return Learner(policy, LearnerConfig(), 1.0, Ranks(Peers()), values=True)


def tensors_of(folder):
    """Everything that a learner wrote, by file and name."""
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        found |= {(str(path.relative_to(folder)), name): tensor for name, tensor in load_file(path).items()}
    return found


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_restoring_continues_to_the_bit(small, rows, name, tmp_path):
    batch = with_returns(rows, np.ones(int(rows.turns.max()) + 1))
    values = name == "ppo"

    def learner_of(policy):
        return Learner(policy, LearnerConfig(), 1.0, Ranks(Peers()), values)

    first = learner_of(small())
    first.update(batch, algorithm(name), MOVING)
    first.snapshot()(tmp_path / "kept")
    first.update(batch, algorithm(name), MOVING)
    second = learner_of(small(seed=1))
    second.restore(tmp_path / "kept")
    second.update(batch, algorithm(name), MOVING)
    first.snapshot()(tmp_path / "first")
    second.snapshot()(tmp_path / "second")
    own, other = tensors_of(tmp_path / "first"), tensors_of(tmp_path / "second")
    assert other.keys() == own.keys()
    assert {len(set(name.split("/")) & {"exp_avg", "exp_avg_sq", "step"}) for _, name in own} == {0, 1}
    assert all(torch.equal(other[key], own[key]) for key in own)


def test_weights_become_their_running_mean_when_asked(small, rows, tmp_path):
    batch = with_returns(rows, np.ones(int(rows.turns.max()) + 1))
    plain = ppo_learner(small())
    after = []  # w_1, w_2, w_3
    for _ in range(3):
        plain.update(batch, algorithm("ppo"), ONE)
        after.append({name: tensor.clone() for name, tensor in plain.weights().items()})

    def averaged():
        return Learner(small(), LearnerConfig(ema=0.3), 1.0, Ranks(Peers()), values=True)

    first, second = averaged(), averaged()
    for _ in range(2):
        first.update(batch, algorithm("ppo"), ONE)
    assert all(torch.equal(tensor, after[1][name]) for name, tensor in first.weights().items())
    first.snapshot()(tmp_path)
    second.restore(tmp_path)
    second.update(batch, algorithm("ppo"), replace(ONE, takes_average=True))
    # The decay after 2 updates is 3 / 12, after 3 updates 0.3, which is less than 4 / 13.
    for name, tensor in second.weights().items():
        w_1, w_2, w_3 = (weights[name] for weights in after)
        torch.testing.assert_close(tensor, 0.3 * (w_1 / 4 + w_2 * 3 / 4) + 0.7 * w_3)


@pytest.mark.parametrize("adapted", [False, True])
def test_a_snapshot_is_of_its_moment_whenever_it_is_written(small, rows, adapted, tmp_path):
    learner = Learner(small(), LearnerConfig(lora_rank=2 * adapted), 1.0, Ranks(Peers()), values=True)
    batch = with_returns(rows, np.ones(int(rows.turns.max()) + 1))
    learner.logprobs(batch, reference=True)
    learner.update(batch, algorithm("ppo"), MOVING)
    write = learner.snapshot()
    write(tmp_path / "then")
    learner.update(batch, algorithm("ppo"), MOVING)
    write(tmp_path / "later")
    learner.snapshot()(tmp_path / "now")
    then, later, now = (tensors_of(tmp_path / name) for name in ("then", "later", "now"))
    assert then.keys() == later.keys() == now.keys()
    assert all(torch.equal(later[key], then[key]) for key in then)
    moved = {key for key in then if not torch.equal(now[key], then[key])}
    assert {file for file, _ in moved} == {"model.safetensors", "learner/rank-00000.safetensors"}


def test_what_is_saved_is_a_hugging_face_folder(policy, rows, tmp_path):
    # Tied embeddings are written once, and read under both names.
    learner = ppo_learner(policy)
    learner.snapshot()(tmp_path)
    read, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"] | info["mismatched_keys"]
    weights = learner.weights()
    assert read.state_dict().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in read.state_dict().items())
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == policy.tokenizer.chat_template


def test_what_earlier_versions_saved_is_restored(small, rows, tmp_path):
    # They wrote one file of whole tensors, under the same names.
    learner = ppo_learner(small())
    batch = with_returns(rows, np.ones(int(rows.turns.max()) + 1))
    learner.update(batch, algorithm("ppo"), MOVING)
    learner.snapshot()(tmp_path / "new")
    policy = small()
    policy.model.load_state_dict(learner.weights())
    policy.save(tmp_path / "old")
    (tmp_path / "old" / STATE).mkdir()
    save_file(
        load_file(tmp_path / "new" / STATE / "rank-00000.safetensors"), tmp_path / "old" / STATE / "state.safetensors"
    )
    restored = ppo_learner(small(seed=1))
    restored.restore(tmp_path / "old")
    restored.snapshot()(tmp_path / "again")
    own, other = tensors_of(tmp_path / "new"), tensors_of(tmp_path / "again")
    assert all(torch.equal(other[key], own[key]) for key in own)


def test_restoring_a_younger_state_forgets_the_moments(small, rows, tmp_path):
    # The best weights may be from before the first update, when there were no moments yet.
    learner = ppo_learner(small())
    learner.snapshot()(tmp_path / "young")
    batch = with_returns(rows, np.ones(int(rows.turns.max()) + 1))
    learner.update(batch, algorithm("ppo"), MOVING)
    learner.restore(tmp_path / "young")
    learner.snapshot()(tmp_path / "again")
    assert tensors_of(tmp_path / "again").keys() == tensors_of(tmp_path / "young").keys()


def test_a_renewed_reference_is_the_policy_as_it_was_after_that_update(small, rows, tmp_path):
    learner, batch = ppo_learner(small()), with_returns(rows, np.ones(int(rows.turns.max()) + 1))
    learner.snapshot()(tmp_path / "without")
    began = learner.logprobs(rows, reference=True)
    learner.update(batch, algorithm("ppo"), MOVING)
    learner.snapshot()(tmp_path / "with")
    assert (learner.logprobs(rows, reference=True) == began).all()
    learner.update(batch, algorithm("ppo"), replace(MOVING, renews_reference=True))
    renewed = learner.logprobs(rows)
    assert (learner.logprobs(rows, reference=True) == renewed).all()
    learner.update(batch, algorithm("ppo"), MOVING)
    assert (learner.logprobs(rows, reference=True) == renewed).all()
    assert not np.allclose(learner.logprobs(rows), renewed)
    learner.restore(tmp_path / "with")
    assert (learner.logprobs(rows, reference=True) == began).all()
    learner.update(batch, algorithm("ppo"), replace(MOVING, renews_reference=True))
    learner.restore(tmp_path / "without")
    assert (learner.logprobs(rows, reference=True) == began).all()  # the model itself again


def test_a_file_that_is_missing_is_named(small, tmp_path):
    learner = ppo_learner(small())
    learner.snapshot()(tmp_path)
    (tmp_path / STATE / "rank-00000.safetensors").unlink()
    with pytest.raises(EarlError, match=r"lacks 'value_head\.weight'"):
        learner.restore(tmp_path)


@pytest.mark.slow
def test_values_begin_at_zero_and_learn_the_returns(small, rows):
    learner = ppo_learner(small())
    turns = int(rows.turns.max()) + 1
    returns = np.where(np.arange(turns) % 2, 0.5, -0.5)
    batch = with_returns(rows, returns)
    assert not learner.values(rows).any()
    update = Update(learning_rate=1e-2, entropy=0.0, minibatches=1, epochs=1, seed=0)
    losses = [learner.update(batch, algorithm("ppo"), update)["value_loss"] for _ in range(60)]
    # At value 0 the mean square error is 0.25.
    assert losses[0] == pytest.approx(0.25)
    assert losses[-1] < 0.1
    read = np.zeros(turns)
    places, values = learner.turn_values(rows)
    read[places] = values
    assert np.mean((read - returns) ** 2) < 0.1


def test_the_value_loss_is_the_mean_square_over_turns(small, rows):
    learner = ppo_learner(small())
    turns = int(rows.turns.max()) + 1
    returns = np.linspace(-1, 2, turns)
    still = Update(learning_rate=0.0, entropy=0.0, minibatches=1, epochs=1, seed=0)
    slopes = []  # as the step sees them; after it there are none
    bias = learner.scorer.value_head.bias
    learner.state.optimizer.register_step_pre_hook(lambda *_: slopes.append(bias.grad.item()))
    stats = learner.update(with_returns(rows, returns), algorithm("ppo"), still)
    assert stats["value_loss"] == pytest.approx(np.mean(returns**2), rel=1e-5)
    # The head begins at zero: d/db of 0.5 · mean((0 - R)²) is 0.5 · 2 · mean(-R); clipping scales it with all the rest.
    scale = min(1.0, LearnerConfig().clip_grad_norm / stats["grad_norm"])
    assert slopes == [pytest.approx(-returns.mean() * scale, rel=1e-4)]


def test_values_stand_at_the_end_of_each_prompt_alone(small, rows):
    learner = ppo_learner(small())
    with torch.no_grad():
        learner.scorer.value_head.bias.fill_(2.0)
    values = learner.values(rows)
    assert values[rows.value_mask].tolist() == [2.0] * int(rows.value_mask.sum())
    assert not values[~rows.value_mask].any()


def test_logprobs_of_model_and_reference_stand_where_tokens_are_learned(small, rows, tmp_path):
    learner = ppo_learner(small())
    reference = learner.logprobs(rows, reference=True)  # the model as it is now
    own = learner.logprobs(rows)
    assert reference.shape == own.shape == rows.tokens.shape
    assert not reference[~rows.mask].any() and not own[~rows.mask].any()
    assert reference.tolist() == own.tolist()
    assert own[rows.mask].tolist() == pytest.approx(rows.logprobs[rows.mask].tolist(), abs=1e-5)
    ppo_learner(small(seed=1)).snapshot()(tmp_path)
    learner.restore(tmp_path)  # a state that has no reference yet: the next one is of its model
    assert np.abs(own - learner.logprobs(rows))[rows.mask].max() > 0.1
    assert learner.logprobs(rows, reference=True).tolist() == learner.logprobs(rows).tolist()
