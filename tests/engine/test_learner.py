"""The learner against the mean loss computed row by row, and its independence of how the work is cut."""

import threading
from dataclasses import fields, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch

from earl.algorithms.base import Advantages
from earl.algorithms.imitation import Imitation
from earl.algorithms.registry import algorithm
from earl.batch import Batch, distinct, offsets_of
from earl.config import AlgorithmConfig, LearnerConfig
from earl.engine import learner as learning
from earl.engine.learner import SKIPPED, Learner, Update, chunks
from earl.engine.local import LocalSampler
from earl.engine.model import load
from earl.engine.ranks import Ranks
from earl.envs.base import LARGEST_REWARD
from earl.errors import EarlError
from earl.placement.peers import Peers
from earl.rollout.drivers import play
from earl.rollout.pack import complete, pack

STILL = Update(learning_rate=0.0, entropy=0.0, minibatches=1, epochs=1, seed=0)
MOVING = Update(learning_rate=1e-3, entropy=0.01, minibatches=3, epochs=2, seed=4, config=AlgorithmConfig(kl=0.02))
NAMES = ["grpo", "rloo", "reinforce++", "ppo"]


@pytest.fixture
def batch(small, episodes):
    """Ten episodes of one model, with made-up advantages and a reference; the sampler is slightly off policy."""
    policy = small()
    rows = pack(play(episodes(policy, 10), LocalSampler(policy)))
    rng, turns = np.random.default_rng(1), int(rows.turns.max()) + 1
    advantages, returns = rng.normal(size=(2, turns)).astype(np.float32)
    noise = rng.normal(scale=0.2, size=(2, len(rows.tokens))).astype(np.float32)
    rows.logprobs[rows.mask] += noise[0][rows.mask]
    whole = complete(rows, Advantages(advantages, returns), np.where(rows.mask, rows.logprobs + noise[1], 0))
    # Two rows come again, and their twins were sampled with other log-probs and are worth something else.
    again = whole.select(np.array([3, 0, 3]))
    again.logprobs[again.mask] -= 0.1
    again.advantages[again.mask] *= -2
    turns = np.where(again.turns >= 0, again.turns + int(whole.turns.max()) + 1, -1).astype(np.int32)
    return joined_batch(whole, replace(again, turns=turns))


def joined_batch(*parts):
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(Batch)
        if field.name != "offsets"
    }
    return Batch(offsets=offsets_of(np.concatenate([part.lengths for part in parts])), **columns)


def test_rows_that_are_alike_are_scored_once(small, batch, monkeypatch):
    scored, plain = [], learning.score
    monkeypatch.setattr(
        learning, "score", lambda model, rows, *how: scored.append(rows.num_rows) or plain(model, rows, *how)
    )
    learner_of(small()).update(batch, algorithm("grpo"), STILL)
    assert (sum(scored), batch.num_rows) == (len(distinct(batch)[0]), 13)
    assert sum(scored) <= 10  # of 13 rows 3 come again


def learner_of(policy, values=False, **settings):
    return Learner(
        policy,
        LearnerConfig(**{"clip_grad_norm": 1e9, **settings}),
        1.0,
        Ranks(Peers()),
        values,
    )


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def learned_gradients(learner, *arguments):
    """Those that the step of an update saw, and the update's statistics; after it there are none."""
    seen = []
    learner.state.optimizer.register_step_pre_hook(lambda *_: seen.append(gradients(learner.scorer).clone()))
    stats = learner.update(*arguments)
    assert all(parameter.grad is None for parameter in learner.scorer.parameters())
    return seen[-1], stats


def weights(policy):
    return torch.cat([tensor.flatten() for tensor in policy.model.state_dict().values()])


def naive_mean_loss(policy, batch, update, clipped):
    """One row at a time, one token at a time: the mean over tokens of surrogate, entropy and KL."""
    total = torch.zeros(())
    for start, end in pairwise(batch.offsets):
        tokens = torch.from_numpy(batch.tokens[start:end]).long()
        whole = torch.log_softmax(policy.model(input_ids=tokens[None]).logits[0], dim=-1)
        for place in np.flatnonzero(batch.mask[start:end]):
            row, token = whole[place - 1], tokens[place]
            at = start + place
            ratio = (row[token] - batch.logprobs[at]).exp()
            surrogate = ratio * batch.advantages[at]
            if clipped:
                bounded = ratio.clamp(0.8, 1.2) * batch.advantages[at]
                surrogate = torch.minimum(surrogate, bounded)
            away = batch.reference[at] - row[token]
            total = total - surrogate + update.config.kl * (away.exp() - 1 - away)
            total = total + update.entropy * (row.exp() * row).sum()
    return total / int(batch.mask.sum())


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_the_gradient_is_that_of_the_naive_mean_loss(small, batch, name):
    policy = small()
    update = Update(learning_rate=0.0, entropy=0.05, minibatches=1, epochs=1, seed=0, config=AlgorithmConfig(kl=0.1))
    learner = learner_of(policy, micro_batch_tokens=300)
    packed, _ = learned_gradients(learner, batch, algorithm(name), update)
    naive_mean_loss(policy, batch, update, clipped=name == "grpo").backward()
    assert packed.norm() > 0.01
    assert torch.allclose(packed, gradients(policy.model), atol=1e-6, rtol=1e-4)


def test_a_teachers_labels_add_their_cross_entropy_to_the_loss(small, batch):
    policy, weight = small(), 0.7
    places = np.flatnonzero(batch.mask)[::3]
    labels = np.where(np.arange(len(places)) % 2, batch.tokens[places], (batch.tokens[places] + 5) % 90)
    batch.targets[places] = -1 - labels
    learner = learner_of(policy, micro_batch_tokens=300)
    plain = learner_of(small()).update(batch, algorithm("grpo"), STILL)
    packed, stats = learned_gradients(learner, batch, algorithm("grpo"), replace(STILL, distillation=weight))
    taught = torch.zeros(())
    for start, end in pairwise(batch.offsets):
        tokens = torch.from_numpy(batch.tokens[start:end]).long()
        whole = torch.log_softmax(policy.model(input_ids=tokens[None]).logits[0], dim=-1)
        for place, label in zip(places, labels, strict=True):
            if start <= place < end:
                taught = taught - whole[place - 1 - start, label]
    taught = taught / int(batch.mask.sum())
    assert stats["loss"] == pytest.approx(plain["loss"], rel=1e-5)  # of reinforcement learning alone
    assert stats["distillation_loss"] == pytest.approx(taught.item(), rel=1e-5)
    (naive_mean_loss(policy, batch, STILL, clipped=True) + weight * taught).backward()
    assert torch.allclose(packed, gradients(policy.model), atol=1e-6, rtol=1e-4)


def test_imitation_is_the_mean_cross_entropy_of_the_labels(small, batch):
    policy = small()
    learner = learner_of(policy)
    stats = learner.update(batch, Imitation(), STILL)
    losses = []
    for start, end in pairwise(batch.offsets):
        tokens, mask = torch.from_numpy(batch.tokens[start:end]).long(), batch.mask[start:end]
        logits = policy.model(input_ids=tokens[None]).logits[0]
        learned = np.flatnonzero(mask)
        losses += torch.nn.functional.cross_entropy(logits[learned - 1], tokens[learned], reduction="none").tolist()
    assert stats["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_do_not_show(small, batch, name):
    results = []
    for size in (16, 200, 1_000_000):  # one row at a time, some, all
        learner = learner_of(small(), values=name == "ppo", micro_batch_tokens=size)
        results.append(learned_gradients(learner, batch, algorithm(name), STILL))
    for other, stats in results[1:]:
        assert torch.allclose(other, results[0][0], atol=1e-6)
        assert stats == pytest.approx(results[0][1], abs=1e-6, rel=1e-5)


def test_on_policy_statistics_are_those_of_a_ratio_of_one(small, episodes):
    policy = small()
    rows = pack(play(episodes(policy, 6), LocalSampler(policy)))
    turns = int(rows.turns.max()) + 1
    on_policy = complete(rows, Advantages(np.ones(turns, np.float32), np.zeros(turns, np.float32)), rows.logprobs)
    update = Update(learning_rate=0.0, entropy=0.0, minibatches=1, epochs=1, seed=0, config=AlgorithmConfig(kl=0.5))
    stats = learner_of(policy).update(on_policy, algorithm("grpo"), update)
    assert stats["ratio"] == pytest.approx(1, abs=1e-5)
    assert stats["loss"] == pytest.approx(-1, abs=1e-5)  # -ratio · advantage, both 1
    assert stats["clip_fraction"] == 0
    assert stats["kl_to_sampler"] == pytest.approx(0, abs=1e-6)
    assert stats["kl_to_reference"] == pytest.approx(0, abs=1e-6)


def test_the_step_is_adamw_on_the_clipped_gradient(small, batch):
    ours, theirs = small(), small()
    settings = LearnerConfig(clip_grad_norm=0.05, weight_decay=0.1, beta1=0.8, beta2=0.95)
    learner = Learner(ours, settings, 1.0, Ranks(Peers()), False)
    update = Update(learning_rate=1e-2, entropy=0.0, minibatches=1, epochs=2, seed=0)
    stats = learner.update(batch, algorithm("grpo"), update)
    parameters = list(theirs.model.parameters())
    adamw = torch.optim.AdamW(parameters, lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1)
    norms, sizes = [], []
    for _ in range(2):
        adamw.zero_grad()
        naive_mean_loss(theirs, batch, STILL, clipped=True).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, 0.05)))
        sizes.append(gradients(theirs.model).abs())
        adamw.step()
    assert stats["grad_norm"] == pytest.approx(np.mean(norms), rel=1e-3)
    assert min(norms) > 0.05  # it was clipped, and the norm before clipping is what is shown
    # AdamW divides by the size of the gradient: where that is rounding alone, so is the step. The median size is 2e-4.
    least = torch.minimum(*sizes)
    sure = (least == 0) | (least > 1e-7)
    assert sure.float().mean() > 0.99
    assert torch.allclose(weights(ours)[sure], weights(theirs)[sure], atol=2e-5)


def test_every_row_is_learned_once_per_epoch(small, batch):
    class Counting(Imitation):
        seen: ClassVar[int] = 0

        def loss(self, inputs):
            Counting.seen += len(inputs.logprobs)
            return super().loss(inputs)

    update = Update(learning_rate=0.0, entropy=0.0, minibatches=4, epochs=3, seed=0)
    learner_of(small()).update(batch, Counting(), update)
    assert Counting.seen == 3 * batch.mask.sum()


def test_more_minibatches_than_rows_are_as_many_as_rows(small, batch):
    update = Update(learning_rate=1e-3, entropy=0.0, minibatches=64, epochs=1, seed=0)
    stats = learner_of(small()).update(batch, algorithm("grpo"), update)
    assert np.isfinite(list(stats.values())).all()


def test_a_batch_without_rows_changes_nothing(small, batch):
    # All of a step's episodes may have ended by a fault of the environment.
    policy = small()
    before = weights(policy).clone()
    learner_of(policy).update(batch.select(np.zeros(0, dtype=np.int64)), algorithm("grpo"), MOVING)
    assert torch.equal(weights(policy), before)


def test_the_seed_orders_the_rows(small, batch):
    def trained(seed):
        policy = small()
        update = Update(learning_rate=1e-2, entropy=0.0, minibatches=4, epochs=1, seed=seed)
        learner_of(policy).update(batch, algorithm("grpo"), update)
        return weights(policy)

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


def test_dropout_of_a_loaded_model_is_off(small, batch):
    # Otherwise log-probs would not be those that were sampled from, nor the same after a resume.
    policy = small()
    for layer in policy.model.get_decoder().layers:
        layer.self_attn.attention_dropout = 0.5
    results = []
    for _ in range(2):
        learner = learner_of(policy)
        results.append(learned_gradients(learner, batch, algorithm("grpo"), STILL)[0])
    assert torch.equal(*results)


class Recording:
    """One of two processes whose sums go nowhere: what it would have sent is kept."""

    size = 2

    def __init__(self, rank):
        self.rank = rank

    def add(self, values):
        self.sent = values.clone()
        return values


def sent(small, batch):
    """What each of two processes sends for one step on the same batch."""
    messages = []
    for rank in range(2):
        peers = Recording(rank)
        learner = Learner(small(), LearnerConfig(), 1.0, Ranks(peers), True)
        learner.update(batch, algorithm("ppo"), STILL)
        messages.append(peers.sent)
    return messages


def learned_alone(small, batch):
    """The same of one process, which sends nothing: sums of the statistics by name, then gradients."""
    learner = Learner(small(), LearnerConfig(clip_grad_norm=1e9), 1.0, Ranks(Peers()), True)
    tokens = max(1, int(batch.mask.sum()))
    given, stats = learned_gradients(learner, batch, algorithm("ppo"), STILL)
    sums = [stats[name] * tokens for name in sorted(set(stats) - {"grad_norm"})]
    return torch.cat([torch.tensor(sums), given])


def test_each_row_is_computed_by_one_process(batch):
    for shares in (1, 2, 5):
        found = [chunks(batch, 200, share, shares) for share in range(shares)]
        numbers = [chunk.numbers for own in found for chunk in own]
        assert sorted(np.concatenate(numbers).tolist()) == [*range(batch.num_rows)]
        assert all(np.all(np.diff(chunk.kinds.lengths) <= 0) for own in found for chunk in own), "longest first"
        loads = [sum(len(chunk.kinds.tokens) for chunk in own) for own in found]
        assert max(loads) - min(loads) <= batch.lengths.max()


def test_processes_add_up_to_one(small, batch):
    alone = learned_alone(small, batch)
    first, second = sent(small, batch)
    assert torch.allclose(first + second, alone, atol=1e-4, rtol=1e-5)
    assert first.norm() > 0.1
    assert second.norm() > 0.1


def test_a_process_without_rows_adds_zeros_of_the_same_shape(small, batch):
    # One row over two processes: 1 + 0.
    one = batch.select(np.zeros(1, np.int64))
    first, second = sent(small, one)
    assert first.shape == second.shape
    assert not second.any()
    assert torch.allclose(first, learned_alone(small, one), atol=1e-6, rtol=1e-6)


def state_of(learner, folder):
    """Weights, value head and moments to the bit."""
    learner.snapshot()(folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "imitation"])
def test_an_update_that_is_not_finite_leaves_the_learner_to_the_bit_as_it_was(small, batch, tmp_path, name):
    learns = Imitation() if name == "imitation" else algorithm(name)
    states = []
    for between in ((), (np.nan, np.inf, 1e30, 3e38)):
        learner = learner_of(small(), values=name == "ppo")
        learner.update(batch, learns, MOVING)
        for worth in between:
            poisoned = np.full_like(batch.returns, worth)
            bad = replace(batch, advantages=poisoned, returns=poisoned, reference=poisoned)  # of imitation, the KL's
            stats = learner.update(bad, learns, MOVING)
            assert stats == {SKIPPED: MOVING.minibatches * MOVING.epochs}, worth
        learner.update(batch, learns, MOVING)
        assert learner.state.steps == 2 * MOVING.minibatches * MOVING.epochs
        states.append(state_of(learner, tmp_path / str(len(between))))
    assert states[0] == states[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_minibatch_that_is_not_finite_is_skipped_alone(small, batch, name):
    advantages, returns = batch.advantages.copy(), batch.returns.copy()
    last = slice(batch.offsets[-2], batch.offsets[-1])
    advantages[last] = returns[last] = np.nan
    policy = small()
    learner = learner_of(policy, values=name == "ppo")
    stats = learner.update(replace(batch, advantages=advantages, returns=returns), algorithm(name), MOVING)
    assert (stats[SKIPPED], learner.state.steps) == (2, 4)  # of 3 minibatches x 2 epochs, those with the last row
    assert np.isfinite([*stats.values()]).all()
    assert weights(policy).isfinite().all()


def test_rewards_as_large_as_they_may_be_do_not_poison(small, batch):
    for name in NAMES:
        policy = small()
        learner = learner_of(policy, values=name == "ppo")
        large = replace(batch, advantages=batch.advantages * LARGEST_REWARD, returns=batch.returns * LARGEST_REWARD)
        stats = learner.update(large, algorithm(name), MOVING)
        assert SKIPPED not in stats
        assert weights(policy).isfinite().all()


class Pair:
    """One of two processes of a run, as threads that add up what both of them have."""

    size = 2

    def __init__(self, rank, barrier, shared):
        self.rank, self._barrier, self._shared = rank, barrier, shared

    def add(self, values):
        self._shared[self.rank] = values.clone()
        self._barrier.wait()
        total = self._shared[0] + self._shared[1]
        self._barrier.wait()
        return total


def test_processes_skip_alike_when_one_of_them_meets_what_is_not_finite(small, batch):
    advantages = batch.advantages.copy()
    advantages[: batch.offsets[1]] = np.nan  # of the first row: one of the two processes has it
    bad = replace(batch, advantages=advantages)
    policies, barrier, shared, found = [small(), small()], threading.Barrier(2), [None, None], [None, None]

    def work(rank):
        peers = Pair(rank, barrier, shared)
        learner = Learner(policies[rank], LearnerConfig(), 1.0, Ranks(peers), False)
        found[rank] = learner.update(bad, algorithm("grpo"), MOVING)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert found[0][SKIPPED] == 2
    assert torch.equal(*map(weights, policies))


@pytest.mark.parametrize("where", ["weights", "moments"])
def test_numbers_that_are_not_finite_are_not_saved(small, batch, tmp_path, where):
    learner = learner_of(small())
    learner.update(batch, algorithm("grpo"), MOVING)
    with torch.no_grad():
        if where == "weights":
            next(learner.scorer.parameters())[0, 0] = np.nan
        else:
            next(iter(learner.state.optimizer.state.values()))["exp_avg"][0] = np.inf
    with pytest.raises(EarlError, match=r"holds numbers that are NaN or infinite; .* is not saved"):
        learner.snapshot()(tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_weights_that_are_not_finite_are_not_loaded(small, tmp_path):
    policy = small()
    with torch.no_grad():
        policy.model.lm_head.weight[3, 3] = np.nan
    policy.save(tmp_path)
    for reads in (lambda: load(tmp_path), lambda: learner_of(small()).restore(tmp_path)):
        with pytest.raises(EarlError, match=r"lm_head.weight in .* holds numbers that are NaN or infinite"):
            reads()
