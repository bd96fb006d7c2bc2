"""DAPO: GRPO with a higher upper clip, without flat groups, and with a soft penalty on long episodes."""

import numpy as np
from pydantic import Field

from earl.algorithms.base import Returns, returns_of
from earl.algorithms.grpo import GRPO
from earl.trajectory import GroupOf, Played, PlayedGroups


class DAPO(GRPO):
    """GRPO's advantage of R_i + P_i, the mean over tokens (arXiv 2503.14476, equations 8 to 13).

    With n_i sampled tokens of an episode, the limit L and the buffer C, P_i = min(0, max(-1, (L - C - n_i) / C)).
    Flat groups are left out; `rollout.resample` samples others in their place, as the paper does.
    """

    clip_high: float | None = Field(0.28, gt=0)
    """The distance of the upper bound from 1; absent: as clip."""
    drop_flat_groups: bool = True
    """Leave groups whose episodes all have the same return out of the update, and so out of its means."""
    overlong_limit: int | None = Field(None, ge=1)
    """Sampled tokens of an episode at which the penalty is 1; absent: no penalty."""
    overlong_buffer: int = Field(64, ge=1)
    """Tokens before that limit from which the penalty grows."""

    def episode_advantages(self, groups: PlayedGroups) -> list[Returns]:
        return self.scaled([*map(self._shaped, groups)])

    def _shaped(self, group: GroupOf[Played]) -> Returns:
        returns = returns_of(group)
        if self.overlong_limit is None:
            return returns
        lengths = np.array([trajectory.num_sampled for trajectory in group.trajectories], np.float64)
        over = (self.overlong_limit - self.overlong_buffer - lengths) / self.overlong_buffer
        return np.asarray(returns + np.clip(over, -1, 0))
