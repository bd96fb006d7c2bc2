"""GiGPO: groups of whole episodes, and inside of them groups of turns that begin in the same state."""

from collections import defaultdict
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from earl.algorithms.base import Advantages, Returns, per_turn
from earl.algorithms.grpo import GRPO
from earl.algorithms.ppo import estimated_advantages
from earl.trajectory import EndedEpisode, GroupOf, Played, PlayedGroups


class GiGPO(GRPO):
    """A_t = A^E + ω·A^S_t (arXiv 2505.10978, equations 3 to 8). A^E is GRPO's advantage of the episode. A^S_t compares
    the discounted return R_t = Σ_k γ^k·r_{t+k} of a turn with those of all turns of its group that were asked the same
    (`Trajectory.states`), by the same scale; a state that occurs once gives 0."""

    scale: Literal["std", "none"] = "std"
    """What divides both advantages: the deviation of those compared, or nothing."""
    omega: float = Field(1.0, ge=0)
    """Weight of the advantage within a state."""
    gamma: float = Field(0.95, gt=0, le=1)
    """Discount per turn, within a state."""

    def advantages(self, groups: PlayedGroups, values: NDArray[np.float32]) -> Advantages:
        episodes = per_turn(groups, self.episode_advantages(groups))
        states = np.concatenate([np.zeros(0), *map(self._within_states, groups)])
        return Advantages((episodes + self.omega * states).astype(np.float32), np.zeros_like(values))

    def _within_states(self, group: GroupOf[Played]) -> Returns:
        """The advantage of every turn within its state, [K]; 0 after the last turn of an episode that was truncated."""
        parts = [np.append(self._returns(one), [0.0] * one.bootstrapped) for one in group.trajectories]
        found, returns = np.zeros(sum(map(len, parts))), np.concatenate([np.zeros(0), *parts])
        places: dict[int, list[int]] = defaultdict(list)
        starts = np.cumsum([0, *map(len, parts)])
        for start, trajectory in zip(starts, group.trajectories, strict=False):
            for number, state in enumerate(trajectory.states):
                places[state].append(int(start) + number)
        for same in places.values():
            found[same] = self.scaled([returns[same]])[0]
        return found

    def _returns(self, trajectory: EndedEpisode) -> Returns:
        """R_t = r_t + γ·R_{t+1} of each turn: what GAE gives with λ = 1 where nothing is expected."""
        rewards = np.array([turn.reward for turn in trajectory.turns], np.float64)
        return estimated_advantages(rewards, np.zeros(len(rewards)), self.gamma, 1.0)
