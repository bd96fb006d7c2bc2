"""Every algorithm's advantages against the same sums written out with loops."""

import pickle
import re
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from earl.algorithms.base import per_turn
from earl.algorithms.imitation import Imitation
from earl.algorithms.ppo import estimated_advantages
from earl.algorithms.rae import baselines_after, turn_baselines
from earl.algorithms.registry import ALGORITHMS, algorithm, algorithm_of
from earl.envs import registry
from earl.errors import EarlError
from earl.recipe import build
from earl.trajectory import Group, StopReason

# Two groups; the episodes have 1 to 3 turns, so that values per turn and per episode cannot be mixed up.
UNEVEN = [[[1.0], [0.0, -1.0], [0.0, 0.0, 0.5]], [[0.25], [0.0, 1.0]]]


@pytest.fixture
def groups(group):
    return [group(*episodes) for episodes in UNEVEN]


def turns_in(groups):
    return [turn.reward for group in groups for trajectory in group.trajectories for turn in trajectory.turns]


def advantages(name, groups, values=None, **options):
    zeros = np.zeros(len(turns_in(groups)), np.float32)
    return algorithm(name, **options).advantages(groups, zeros if values is None else values)


def mean(numbers):
    return sum(numbers) / len(numbers)


def deviation(numbers):
    """The population standard deviation."""
    return sqrt(mean([(number - mean(numbers)) ** 2 for number in numbers]))


def spread(per_episode):
    """One number per episode of UNEVEN, repeated for each of its turns."""
    episodes = [episode for group in UNEVEN for episode in group]
    return [number for number, episode in zip(per_episode, episodes, strict=True) for _ in episode]


def test_grpo_by_hand(group):
    # Returns 1, 0, 1, 0: mean 0.5, deviation 0.5, so ±0.5 / (0.5 + 0.0001) = ±0.9998.
    result = advantages("grpo", [group([1.0], [0.0, 0.0], [0.0, 1.0], [0.0])])
    assert result.turns.tolist() == pytest.approx([0.9998, -0.9998, -0.9998, 0.9998, 0.9998, -0.9998], abs=1e-6)
    assert result.returns.tolist() == [0.0] * 6


def test_grpo(groups):
    expected = []
    for episodes in UNEVEN:
        returns = [sum(rewards) for rewards in episodes]
        expected += [(value - mean(returns)) / (deviation(returns) + 1e-4) for value in returns]
    assert advantages("grpo", groups).turns.tolist() == pytest.approx(spread(expected), rel=1e-6)


def test_rloo(groups):
    expected = []
    for episodes in UNEVEN:
        returns = [sum(rewards) for rewards in episodes]
        for own, value in enumerate(returns):
            others = [other for place, other in enumerate(returns) if place != own]
            expected.append(value - mean(others))
    assert advantages("rloo", groups).turns.tolist() == pytest.approx(spread(expected), rel=1e-6)


def test_reinforce_plus_plus(groups):
    centred = []
    for episodes in UNEVEN:
        returns = [sum(rewards) for rewards in episodes]
        centred += [value - mean(returns) for value in returns]
    expected = [(value - mean(centred)) / deviation(centred) for value in centred]
    assert advantages("reinforce++", groups).turns.tolist() == pytest.approx(spread(expected), rel=1e-5)


def naive_gae(rewards, values, gamma, lam):
    """A_k = sum over l of (γλ)^l δ_{k+l}, summed anew for every turn (arXiv 1506.02438, equation 16)."""
    padded = [*values, 0.0]
    deltas = [rewards[k] + gamma * padded[k + 1] - values[k] for k in range(len(rewards))]
    return [sum((gamma * lam) ** (j - k) * deltas[j] for j in range(k, len(deltas))) for k in range(len(deltas))]


def test_gae_by_hand():
    # δ = [0 + 0.5·2 - 1, 4 + 0.5·0 - 2] = [0, 2]; A_1 = 2, A_0 = 0 + 0.5·0.5·2 = 0.5.
    result = estimated_advantages(np.array([0.0, 4.0]), np.array([1.0, 2.0]), gamma=0.5, lam=0.5)
    assert result.tolist() == [0.5, 2.0]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8), (1.0, 1.0), (0.7, 0.0)])
def test_ppo(groups, gamma, lam):
    values = np.random.default_rng(0).normal(size=len(turns_in(groups))).astype(np.float32)
    raw, start = [], 0
    for episode in (episode for episodes in UNEVEN for episode in episodes):
        own = values[start : start + len(episode)].tolist()
        raw += naive_gae(episode, own, gamma, lam)
        start += len(episode)
    result = advantages("ppo", groups, values, gamma=gamma, gae_lambda=lam)
    assert result.returns.tolist() == pytest.approx(
        [a + v for a, v in zip(raw, values.tolist(), strict=True)], abs=1e-6
    )
    expected = [(advantage - mean(raw)) / deviation(raw) for advantage in raw]
    assert result.turns.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8), (0.7, 0.0)])
def test_ppo_estimates_the_rest_of_an_episode_that_was_truncated(group, gamma, lam):
    (cut, whole) = group([1.0, 2.0], [3.0]).trajectories
    cut = replace(cut, stop=StopReason.ENV_TRUNCATED)
    values = np.array([0.5, -1.0, 7.0, 2.0], np.float32)
    result = advantages("ppo", [Group((cut, whole))], values, gamma=gamma, gae_lambda=lam)
    # A reward of γ·7 in the last turn is worth as much as a value of 7 after it.
    raw = [*naive_gae([1.0, 2.0 + gamma * 7.0], [0.5, -1.0], gamma, lam), *naive_gae([3.0], [2.0], gamma, lam)]
    expected = [(advantage - mean(raw)) / deviation(raw) for advantage in raw]
    assert result.turns.tolist() == pytest.approx([*expected[:2], 0.0, expected[2]], abs=1e-5)
    assert result.returns.tolist() == pytest.approx([raw[0] + 0.5, raw[1] - 1.0, 7.0, raw[2] + 2.0], abs=1e-5)


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce++"])
def test_other_algorithms_give_a_truncated_episode_one_value_more(name, group):
    cut = [replace(one, stop=StopReason.ENV_TRUNCATED) for one in group([1.0, 0.0], [0.0]).trajectories]
    assert len(advantages(name, [Group(tuple(cut))]).turns) == 5


def test_imitation_counts_every_turn_alike(groups):
    result = Imitation().advantages(groups, np.zeros(9, np.float32))
    assert result.turns.tolist() == [1.0] * 9
    assert result.returns.tolist() == [0.0] * 9


WITHIN_GROUPS = sorted(name for name in ALGORITHMS if not algorithm(name).needs_baselines)
"""Those whose baseline comes from the step itself."""


@pytest.mark.parametrize("name", WITHIN_GROUPS)
def test_equal_returns_teach_nothing(name, group):
    # 0.1 has no exact float: rounding must not be blown up into an advantage.
    same = [group([0.1], [0.1], [0.1]), group([0.1], [0.1], [0.1])]
    assert advantages(name, same).turns.tolist() == pytest.approx([0.0] * 6, abs=1e-7)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("episodes", [[], [[1.0]]], ids=["no groups", "a group of one"])
def test_the_smallest_batches_give_finite_advantages(name, episodes, group):
    groups = [group(*episodes)] if episodes else []
    result = advantages(name, groups)
    assert result.turns.shape == result.returns.shape == (len(turns_in(groups)),)
    assert np.isfinite(result.turns).all()
    assert result.turns.dtype == result.returns.dtype == np.float32


def test_per_turn_repeats_an_episodes_number(group):
    result = per_turn([group([0.0, 0.0], [0.0])], [np.array([7.0, 8.0])])
    assert result.tolist() == [7.0, 7.0, 8.0]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_option_that_an_algorithm_does_not_have_is_refused(name):
    with pytest.raises(EarlError, match=f"unknown option of algorithm {re.escape(name)} 'clip_hihg'"):
        algorithm(name, clip_hihg=0.3)
    with pytest.raises(EarlError, match=r"algorithm.options.aggregation = 'mean': input should be 'token'"):
        algorithm(name, aggregation="mean")


def test_rloo_does_not_clip():
    with pytest.raises(EarlError, match="unknown option of algorithm rloo 'clip'"):
        algorithm("rloo", clip=0.2)


def test_options_change_a_preset():
    how = algorithm("dr_grpo", constant_tokens=99)
    assert (how.scale, how.aggregation, how.constant_tokens) == ("none", "constant", 99)


@pytest.mark.parametrize(
    ("history", "options", "tokens"),
    [("board_only", {}, 4), ("full", {}, 90), ("full", {"constant_tokens": 7}, 7)],  # a row: a turn, an episode
)
def test_the_divisor_of_rows_follows_from_the_recipe(history, options, tokens):
    recipe = {
        "env": {"name": "tictactoe"},
        "agent": {"history": history, "max_turn_tokens": 4},
        "context": {"limit": 90},
        "algorithm": {"name": "dr_grpo", "options": options},
    }
    assert algorithm_of(build(recipe)).constant_tokens == tokens


THEIRS = """
from earl.algorithms.base import Algorithm
from earl.algorithms.grpo import GRPO

class Warm(GRPO):
    heat: float = 1.0

class Cold:
    pass

class Half(Algorithm):
    pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "their_algorithms.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.usefixtures("own")
def test_an_algorithm_by_import_string_is_code_that_the_user_has_to_have_named():
    with pytest.raises(EarlError, match="you never named it yourself"):
        algorithm("their_algorithms:Warm")
    registry.allow(*(f"their_algorithms:{name}" for name in ("Warm", "Cold", "Half")))
    how = algorithm("their_algorithms:Warm", heat=2.0, clip=0.1)
    assert (how.heat, how.bounds) == (2.0, (0.9, 1.1))
    assert pickle.loads(pickle.dumps(how)) == how  # as Ray sends it
    with pytest.raises(EarlError, match="'heta'; did you mean 'heat'"):
        algorithm("their_algorithms:Warm", heta=2.0)
    with pytest.raises(EarlError, match="is no subclass"):
        algorithm("their_algorithms:Cold")
    with pytest.raises(EarlError, match="does not define loss and episode_advantages or advantages; add it"):
        algorithm("their_algorithms:Half")


def test_an_unknown_algorithm_is_refused_with_the_nearest():
    with pytest.raises(EarlError, match="did you mean 'dapo'"):
        algorithm("dapoo")


def test_role_conditioned_advantages_by_hand(group):
    # Returns 1 and 0 in one role. b = 0.2 before the step: A = 0.8 and -0.2, the second for both of its turns.
    groups = [group([1.0], [0.0, 0.0])]
    values = turn_baselines({"made-up  0": 0.2}, groups)
    assert advantages("rae", groups, values).turns.tolist() == pytest.approx([0.8, -0.2, -0.2])
    # Then b = 0.95·0.2 + 0.05·1 = 0.24, and 0.95·0.24 + 0.05·0 = 0.228; another role keeps its own.
    assert baselines_after({"made-up  0": 0.2, "other  1": 0.5}, groups) == pytest.approx(
        {"made-up  0": 0.228, "other  1": 0.5}
    )
