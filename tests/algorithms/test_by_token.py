"""GAE over tokens and over turns and tokens, values that are clipped, and a divergence taken off rewards."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from earl.algorithms.base import Advantages, per_turn, returns_of, value_counts
from earl.algorithms.grpo import GRPO
from earl.algorithms.registry import algorithm
from earl.batch import Rows
from earl.rollout.pack import Learnable, assign_credit, complete, pack, trajectories_of
from earl.trajectory import Group, StopReason, Turn
from tests.sampling import sampled

SEEDS = sampled(range(200), every=20)


def drawn(rng, group):
    """Groups of 2 episodes of 1 to 4 turns of 1 to 5 sampled tokens after a prompt of 1 to 3; some end by a time limit,
    and their last prompt is part of them."""
    groups = []
    for _ in range(3):
        episodes = []
        for _ in range(2):
            rewards = rng.normal(size=rng.integers(1, 5)).tolist()
            ended, turns, place, sampled = bool(rng.integers(2)), [], 0, []
            for reward in rewards:
                prompt, reply = int(rng.integers(1, 4)), int(rng.integers(1, 6))
                turns.append(Turn(0, place, place + prompt, place + prompt + reply, "a", reward, 0.0))
                sampled += [-1] * prompt + [0] * reply
                place += prompt + reply
            sampled += [-1, -1] * (not ended)
            [plain] = group(rewards).trajectories
            size = len(sampled)
            episodes.append(
                replace(
                    plain,
                    turns=tuple(turns),
                    tokens=np.arange(size, dtype=np.int32),
                    authors=np.zeros(size, np.uint8),
                    logprobs=np.zeros(size, np.float32),
                    versions=np.array(sampled, np.int32),
                    stop=StopReason.FINISHED if ended else StopReason.ENV_TRUNCATED,
                )
            )
        groups.append(Group(tuple(episodes)))
    return groups


def lengths(episode):
    return [turn.end - turn.action_start for turn in episode.turns]


def naive_gae(rewards, values, after, gamma, lam):
    """Σ_l (γλ)^l δ_{k+l}, one sum for each action."""
    following = [*values[1:], after]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, following, values, strict=True)]
    return [sum((gamma * lam) ** (j - k) * deltas[j] for j in range(k, len(deltas))) for k in range(len(deltas))]


def naive_episode(episode, values, how):
    """The advantages of an episode's tokens; values: before each of them, and one more where it was cut off."""
    after = values[-1] if episode.bootstrapped else 0.0
    tokens, at = [], 0
    for turn, count in zip(episode.turns, lengths(episode), strict=True):
        tokens.append(([0.0] * (count - 1) + [turn.reward], list(values[at : at + count])))
        at += count
    if how.gae == "token":
        flat = [[number for part in tokens for number in part[side]] for side in (0, 1)]
        return naive_gae(*flat, after, how.gamma, how.gae_lambda)
    first = [values[0] for _, values in tokens]
    found = naive_gae([turn.reward for turn in episode.turns], first, after, how.gamma, how.gae_lambda)
    result = []
    for (rewards, own), advantage, value in zip(tokens, found, first, strict=True):
        result += naive_gae([*rewards[:-1], advantage + value], own, 0.0, how.token_gamma, how.token_lambda)
    return result


@pytest.mark.parametrize("kind", ["token", "two_level"])
@pytest.mark.parametrize("number", SEEDS)
def test_every_token_has_its_advantage_and_the_batch_places_it(group, number, kind):
    rng = np.random.default_rng(number)
    how = algorithm("ppo", gae=kind, gamma=0.95, gae_lambda=0.8, token_gamma=0.99, token_lambda=0.7)
    groups = drawn(rng, group)
    each, rows = trajectories_of(groups), pack(trajectories_of(groups))
    counts = [sum(lengths(one)) + one.bootstrapped for one in each]
    values = [rng.normal(size=count).astype(np.float32) for count in counts]
    # What the learner says: the turn of each value, in an order of rows that is not that of turns.
    numbers = np.repeat(np.arange(rows.num_turns), value_counts(each, by_token=True))
    order = np.argsort(rng.normal(size=rows.num_turns)[numbers], kind="stable")
    estimates = numbers[order].astype(np.int32), np.concatenate(values)[order]
    found = assign_credit(how, groups, Learnable(), estimates)
    naive = [naive_episode(one, own, how) for one, own in zip(each, values, strict=True)]
    flat = np.concatenate(naive)
    scaled = iter(((flat - flat.mean()) / (flat.std() + 1e-8)).tolist())
    batch = complete(rows, found, None)
    for row, (episode, own, raw) in enumerate(zip(each, values, naive, strict=True)):
        offset, at, left = int(batch.offsets[row]), 0, iter(own.tolist())
        for turn in episode.turns:
            for place in range(turn.action_start, turn.end):
                assert batch.advantages[offset + place] == pytest.approx(next(scaled), abs=1e-5)
                assert batch.value_mask[offset + place - 1]
                value = next(left)
                assert batch.values[offset + place - 1] == pytest.approx(value, abs=1e-6)
                assert batch.returns[offset + place - 1] == pytest.approx(raw[at] + value, abs=1e-5)
                at += 1
        assert batch.value_mask[offset : int(batch.offsets[row + 1])].sum() == len(own)
    assert np.count_nonzero(batch.advantages) == batch.mask.sum() == len(flat)


def test_one_level_over_turns_of_one_token_is_all_three(group):
    groups, values = [group([1.0, -0.5, 2.0], [0.3])], np.array([0.2, -0.1, 0.4, 0.7], np.float32)
    found = [
        algorithm("ppo", gae=kind, gamma=0.9).advantages(groups, values) for kind in ("turn", "token", "two_level")
    ]
    for other in found[1:]:
        assert other.turns.tolist() == pytest.approx(found[0].turns.tolist(), abs=1e-6)
        assert other.returns.tolist() == pytest.approx(found[0].returns.tolist(), abs=1e-6)


class Later(GRPO):
    """An algorithm without a value head: of a turn's n tokens the i-th gets i/n of the episode's advantage."""

    @property
    def by_token(self):
        return True

    def advantages(self, groups, values):
        counts = value_counts(trajectories_of(groups), by_token=True)
        shares = np.concatenate([np.arange(1, count + 1) / count for count in counts])
        own = np.repeat(per_turn(groups, self.scaled([*map(returns_of, groups)])), counts)
        return Advantages((own * shares).astype(np.float32), np.zeros_like(values))


def test_an_algorithm_without_values_has_advantages_by_token_and_leaves_what_was_cut_out(group):
    groups = drawn(np.random.default_rng(0), group)
    first, cut = groups[0].trajectories
    groups[0] = Group((first, replace(cut, stop=StopReason.CONTEXT_LIMIT)))
    kept = Learnable(truncated=False).learned(groups)
    rows = pack(trajectories_of(kept))
    batch = complete(rows, assign_credit(Later(scale="none"), groups, Learnable(truncated=False)), None)
    baseline = np.mean([first.reward, cut.reward])
    turn = first.turns[-1]
    ends = batch.advantages[turn.action_start : turn.end]
    expected = [(first.reward - baseline) * (i + 1) / len(ends) for i in range(len(ends))]
    assert ends.tolist() == pytest.approx(expected, abs=1e-6)
    assert (batch.advantages[batch.mask] != 0).all()


@pytest.mark.parametrize("number", SEEDS)
def test_a_clipped_value_is_minimised_by_the_worse_of_both(number):
    rng = np.random.default_rng(number)
    values, returns, old = (torch.from_numpy(rng.normal(size=9)) for _ in range(3))
    clip, weight = float(rng.uniform(0.1, 1)), float(rng.uniform(0.1, 2))
    how, given = algorithm("ppo", value_clip=clip, value_weight=weight), values.clone().requires_grad_()
    error, loss = how.value_loss(given, returns, old)
    expected, slopes = 0.0, []
    for v, target, before in zip(values.tolist(), returns.tolist(), old.tolist(), strict=True):
        near = before + max(-clip, min(clip, v - before))
        expected += weight * max((v - target) ** 2, (near - target) ** 2)
        # Where the clipped one is the worse one it counts, and does not depend on v.
        held = abs(v - before) > clip and (near - target) ** 2 > (v - target) ** 2
        slopes.append(0.0 if held else 2 * weight * (v - target))
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-5)
    assert float(error.detach()) == pytest.approx(float((values - returns).square().sum()), abs=1e-5)
    loss.backward()
    assert given.grad.tolist() == pytest.approx(slopes, abs=1e-4)
    plain = algorithm("ppo", value_weight=weight).value_loss(values, returns, old)[1]
    assert float(plain) == pytest.approx(weight * float(error.detach()), abs=1e-9)


@pytest.mark.parametrize("number", SEEDS)
@pytest.mark.parametrize("name", ["dr_grpo", "rloo", "ppo"])
def test_a_divergence_is_taken_off_the_rewards_of_its_turns(group, number, name):
    rng = np.random.default_rng(number)
    groups, how = drawn(rng, group), algorithm(name)
    each = trajectories_of(groups)
    rows: Rows = pack(each)
    turns, costs = rows.turns[rows.mask], rng.normal(size=int(rows.mask.sum()))
    values = rng.normal(size=rows.num_turns).astype(np.float32)
    estimates = (np.arange(rows.num_turns), values) if name == "ppo" else None
    order = rng.permutation(len(turns))
    found = assign_credit(how, groups, Learnable(), estimates, costs=(turns[order], costs[order]))
    left, less = iter(costs.tolist()), []
    for one in groups:  # token by token, in the order of the episodes
        cheaper = []
        for episode in one.trajectories:
            own = tuple(
                replace(turn, reward=turn.reward - sum(next(left) for _ in range(count)))
                for turn, count in zip(episode.turns, lengths(episode), strict=True)
            )
            cheaper.append(replace(episode, turns=own))
        less.append(Group(tuple(cheaper)))
    expected = assign_credit(how, less, Learnable(), estimates)
    assert found.turns.tolist() == pytest.approx(expected.turns.tolist(), abs=1e-5)
    assert found.returns.tolist() == pytest.approx(expected.returns.tolist(), abs=1e-5)
    assert np.abs(found.turns - assign_credit(how, groups, Learnable(), estimates).turns).max() > 1e-3
