"""PPO with a value head and generalised advantage estimation over turns or tokens (arXiv 1707.06347, 1506.02438)."""

from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from earl.algorithms.base import Advantages, normalised, value_counts
from earl.algorithms.loss import Clipped
from earl.trajectory import Played, PlayedGroups

Numbers = NDArray[np.float64]


def estimated_advantages(rewards: Numbers, values: Numbers, gamma: float, lam: float) -> Numbers:
    """A_k = δ_k + γλ A_{k+1} with δ_k = r_k + γ V_{k+1} - V_k over the K actions of one episode. After the last, V is
    0, or the last of K + 1 `values`. An action is a turn, however many tokens it has, or a token."""
    advantages = np.zeros(len(rewards))
    ahead, following = 0.0, values[-1] if len(values) > len(rewards) else 0.0
    for place in reversed(range(len(rewards))):
        delta = rewards[place] + gamma * following - values[place]
        ahead = delta + gamma * lam * ahead
        advantages[place], following = ahead, values[place]
    return advantages


class PPO(Clipped):
    """GAE, normalised over the batch; returns = advantages + values before normalising. The value head's loss is the
    mean over turns, or tokens, of value_weight·(V - return)²; with value_clip of the larger of this and the same of
    V_old + clip(V - V_old) (the authors' code; arXiv 2005.12729, section 3)."""

    needs_values: ClassVar[bool] = True
    needs_groups: ClassVar[bool] = False
    gae: Literal["turn", "token", "two_level"] = "turn"
    """Actions of GAE: turns, with a value before each; tokens, the last of a turn has its reward; or both as in VAGEN
    (arXiv 2510.16907): over turns, from the values before their first tokens, and then over the tokens of each turn,
    where the turn's return is what its last token earns."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per turn; with gae = "token" per token."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """λ of generalised advantage estimation, alike."""
    token_gamma: float = Field(1.0, gt=0, le=1)
    """With gae = "two_level": discount per token of a turn."""
    token_lambda: float = Field(1.0, ge=0, le=1)
    """With gae = "two_level": λ over the tokens of a turn."""
    value_weight: float = Field(0.5, ge=0)
    """Weight of the value loss."""
    value_clip: float | None = Field(None, gt=0)
    """How far a value may usefully move from what it was before the update; absent: as far as it likes."""

    @property
    def by_token(self) -> bool:
        return self.gae != "turn"

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32]) -> Advantages:
        parts, start = [], 0
        real = np.ones(len(values), np.bool_)
        for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
            end = start + int(value_counts([trajectory], self.by_token).sum())
            parts.append(self._credited(trajectory, values[start:end].astype(np.float64)))
            real[end - trajectory.bootstrapped : end] = False
            start = end
        raw, scaled = np.zeros((2, len(values)))
        raw[real] = made = np.concatenate([np.zeros(0), *parts])
        scaled[real] = normalised([made])[0]
        return Advantages(scaled.astype(np.float32), (raw + values).astype(np.float32))

    def _credited(self, trajectory: Played, values: Numbers) -> Numbers:
        """The advantages of an episode's turns or tokens."""
        rewards = np.array([turn.reward for turn in trajectory.turns], dtype=np.float64)
        if not self.by_token:
            return estimated_advantages(rewards, values, self.gamma, self.gae_lambda)
        ends = np.cumsum([turn.end - turn.action_start for turn in trajectory.turns], dtype=np.int64)
        earned, after = np.zeros(ends[-1] if len(ends) else 0), values[len(values) - trajectory.bootstrapped :]
        if self.gae == "token":
            earned[ends - 1] = rewards
            return estimated_advantages(earned, values, self.gamma, self.gae_lambda)
        before = values[np.append(0, ends)[:-1]]
        returns = before + estimated_advantages(rewards, np.append(before, after), self.gamma, self.gae_lambda)
        earned[ends - 1] = returns
        parts = zip(np.split(earned, ends)[:-1], np.split(values, ends)[:-1], strict=True)
        own = [estimated_advantages(*part, self.token_gamma, self.token_lambda) for part in parts]
        return np.concatenate([np.zeros(0), *own])

    def value_loss(self, values: Tensor, returns: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
        errors = (values - returns).square()
        if self.value_clip is None:
            return errors.sum(), self.value_weight * errors.sum()
        near = old + (values - old).clamp(-self.value_clip, self.value_clip)
        return errors.sum(), self.value_weight * torch.maximum(errors, (near - returns).square()).sum()
