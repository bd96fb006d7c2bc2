"""Hand-made trajectories: an algorithm reads their rewards and counts their turns, nothing else."""

from dataclasses import dataclass, fields

import numpy as np
import pytest

from earl.trajectory import Group, Outcome, StopReason, Task, Trajectory, Turn


def trajectory(rewards):
    """One episode with a turn for each reward and a token for each turn."""
    size = len(rewards)
    return Trajectory(
        task=Task("made-up", seed=0),
        seed=0,
        tokens=np.zeros(size, np.int32),
        authors=np.zeros(size, np.uint8),
        logprobs=np.zeros(size, np.float32),
        versions=np.zeros(size, np.int32),
        turns=tuple(Turn(0, i, i, i + 1, "a", reward, 0.0) for i, reward in enumerate(rewards)),
        stop=StopReason.FINISHED,
        outcome=Outcome.WIN,
        illegal=0,
    )


@pytest.fixture
def group():
    """Makes a group from the rewards of its episodes, turn by turn."""
    return lambda *episodes: Group(tuple(trajectory(rewards) for rewards in episodes))


@dataclass(frozen=True)
class InStates(Trajectory):
    """An episode whose states are given."""

    own: tuple[int, ...] = ()

    @property
    def states(self):
        return self.own


@pytest.fixture
def in_states():
    """A group whose turns begin in states that are given, episode by episode."""

    def placed(group, states):
        pairs = zip(group.trajectories, states, strict=True)
        known = [({field.name: getattr(one, field.name) for field in fields(Trajectory)}, own) for one, own in pairs]
        return Group(tuple(InStates(**columns, own=tuple(own)) for columns, own in known))

    return placed
