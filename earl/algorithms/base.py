"""The interface of an algorithm: groups to advantages, per-token inputs to losses. Pure functions of arrays."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from earl.config import Section
from earl.trajectory import EndedEpisode, GroupOf, Played, PlayedGroups

Stats = dict[str, Tensor]
"""Sums over tokens of the statistics that a loss reports; divided by the number of tokens at the end."""
Returns = NDArray[np.float64]
"""[E], of the episodes of one group."""

EPSILON = 1e-8  # limits what is divided by a deviation of nearly 0


@dataclass(frozen=True, slots=True)
class Advantages:
    """One value per turn (`EndedEpisode.num_values`), which its tokens share, or where `Algorithm.by_token` one per
    sampled token, laid end to end over all trajectories, K in all: see `value_counts`."""

    turns: NDArray[np.float32]  # [K]
    returns: NDArray[np.float32]  # [K], targets of the value head; 0 without one
    starts: NDArray[np.int64] | None = None
    """Where the values of each turn begin, as `assign_credit` adds it; None: there is one for each turn."""
    values: NDArray[np.float32] | None = None  # [K], what the value head estimated, as `assign_credit` adds it


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """Inputs of a loss for the tokens in it, [M] each."""

    logprobs: Tensor  # under the current weights, with gradient
    entropy: Tensor  # of the current distribution at each token, with gradient
    old_logprobs: Tensor  # of the sampler; with importance correction, of the learner before the update
    advantages: Tensor
    reference: Tensor  # log-probs of the reference; only read when kl > 0
    rows: Tensor  # number of the token's row; a row is one context, and never divided
    turns: Tensor  # number of the token's turn, over the whole step


class Algorithm(Section):
    """A subclass is an algorithm, and its fields are its settings: the section [algorithm.options] of a recipe.

    Groups hold every key that advantages may be compared by: the group itself, `task.seat` and `task.opponent`,
    `turns` with their rewards, and `states`.
    """

    needs_values: ClassVar[bool] = False
    """Whether a value head is trained and its values are given to `advantages`."""
    needs_baselines: ClassVar[bool] = False
    """Whether `advantages` is given the running mean return of each turn's role in place of values."""
    needs_groups: ClassVar[bool] = True
    """Whether the episodes of a group are compared, so that one alone, or several of equal return, teach nothing."""

    on_samples: ClassVar[bool] = True
    """Whether the policy sampled the tokens, from the distribution that `rollout.top_p` and `top_k` left; labels are
    learned under the whole one."""

    aggregation: Literal["token", "sequence", "constant"] = "token"
    """Mean over `token`s of a minibatch; or over rows (contexts), `sequence`: of each row's mean, `constant`: of each
    row's sum divided by `constant_tokens`."""
    constant_tokens: int = Field(256, ge=1)
    """Divides the sum of a row where aggregation = "constant"; absent: the most tokens that a row of the recipe may
    sample, `agent.max_turn_tokens` under the history `board_only`, else `context.limit`."""
    drop_flat_groups: bool = False
    """Leave groups whose episodes all have the same return out of the update, and so out of its means."""

    @property
    def by_token(self) -> bool:
        """Whether advantages, and the values that a value head estimates, are one for each sampled token."""
        return False

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32]) -> Advantages:
        """Advantages of all turns of `groups`, or of their tokens; `values` [K] are the value head's before each, or
        baselines. By default every turn has that of its episode."""
        return Advantages(per_turn(groups, self.episode_advantages(groups)), np.zeros_like(values))

    def episode_advantages(self, groups: PlayedGroups) -> list[Returns]:
        """One advantage for each episode, group by group."""
        raise NotImplementedError(f"{type(self).__name__} has no advantages; define this or `advantages`")

    @abstractmethod
    def loss(self, inputs: TokenInputs) -> tuple[Tensor, Stats]:
        """The policy loss of each token [M], homogeneous in its advantage, and statistics. The learner aggregates it,
        and adds entropy and KL."""

    def value_loss(self, values: Tensor, returns: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
        """The value head's error summed over turns or tokens, and what is minimised of it; values, returns, and the
        values that the advantages were made with: [K]."""
        raise NotImplementedError(f"{type(self).__name__} has no value head")


def value_counts(trajectories: Iterable[EndedEpisode], by_token: bool) -> NDArray[np.int64]:
    """How many values each turn has, and each end of an episode that was bootstrapped: by token, those of its reply."""
    counts: list[int] = []
    for one in trajectories:
        counts += [turn.end - turn.action_start if by_token else 1 for turn in one.turns] + [1] * one.bootstrapped
    return np.array(counts, np.int64)


def per_turn(groups: PlayedGroups, episode_values: Sequence[Returns]) -> NDArray[np.float32]:
    """Repeat `episode_values` (per group, one value per trajectory) over each episode's turns: [K]."""
    counts = [trajectory.num_values for group in groups for trajectory in group.trajectories]
    flat = np.concatenate([np.zeros(0), *episode_values])
    return np.repeat(flat, counts).astype(np.float32)


def returns_of(group: GroupOf[Played]) -> Returns:
    return np.array([trajectory.reward for trajectory in group.trajectories], dtype=np.float64)


def normalised(parts: Sequence[Returns]) -> list[Returns]:
    """All parts less the mean of all their numbers, divided by the deviation of all."""
    everything = np.concatenate([np.zeros(0), *parts])
    mean, std = (everything.mean(), everything.std()) if len(everything) else (0.0, 1.0)
    return [(part - mean) / (std + EPSILON) for part in parts]
