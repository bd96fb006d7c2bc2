"""From a step's groups to what is learned from, and back: which tokens of an episode were, and with which advantage."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from earl.batch import Batch
from earl.group import Group, GroupOf
from earl.outline import Outline, Played
from earl.rollout.pack import contexts, trajectories_of
from earl.trajectory import FAULTS, Experience, Trajectory, Turn

G = TypeVar("G", bound=GroupOf[Any])
E = TypeVar("E", Trajectory, Outline)


def learned(groups: Sequence[G], truncated: bool) -> list[G]:
    """The groups without the episodes that are not learned from; those are counted all the same.

    Args:
        truncated: whether episodes that a token limit cut off are learned from. Those that a fault in the
            environment ended never are.
    """
    kept = (
        replace(group, trajectories=tuple(t for t in group.trajectories if _learnable(t, truncated)))
        for group in groups
    )
    return [group for group in kept if group.trajectories]


def _learnable(trajectory: Played, truncated: bool) -> bool:
    return trajectory.stop not in FAULTS and (truncated or not trajectory.truncated)


def charged(groups: Sequence[G], penalty: float) -> Sequence[G]:
    """The groups with `penalty` taken off each turn's reward for every token that the model sampled in it."""
    if not penalty:
        return groups
    return [
        replace(group, trajectories=tuple(_charge(trajectory, penalty) for trajectory in group.trajectories))
        for group in groups
    ]


def _charge(trajectory: E, penalty: float) -> E:
    def cost(turn: Turn) -> float:
        return penalty * (turn.end - turn.action_start)

    return replace(trajectory, turns=tuple(replace(turn, reward=turn.reward - cost(turn)) for turn in trajectory.turns))


def experiences(
    groups: Sequence[Group], kept: Sequence[Group], batch: Batch, logprobs: NDArray[np.float32]
) -> list[Experience]:
    """What was made of every trajectory of `groups`: read off the batch itself, which was packed of `kept`.

    Args:
        logprobs: the learner's after the update, [T] at batch.mask.
    """
    rows = iter(range(batch.num_rows))
    made = {id(own): _unpacked(own, rows, batch, logprobs) for own in trajectories_of(kept)}
    return [made.get(id(trajectory)) or _nothing(trajectory) for trajectory in trajectories_of(groups)]


def unlearned(groups: Iterable[Group]) -> list[Experience]:
    """The experience of trajectories of which nothing was learned."""
    return [_nothing(trajectory) for trajectory in trajectories_of(groups)]


def _unpacked(trajectory: Trajectory, rows: Iterator[int], batch: Batch, logprobs: NDArray[np.float32]) -> Experience:
    result = _nothing(trajectory)
    for turns in contexts(trajectory):
        start, end, offset = turns[0][1].context_start, turns[-1][1].end, int(batch.offsets[next(rows)])
        row = slice(offset, offset + end - start)
        result.mask[start:end] = batch.mask[row]
        result.logprobs[start:end] = np.where(batch.mask[row], logprobs[row], 0)
        for number, turn in turns:
            result.advantages[number] = batch.advantages[offset + turn.action_start - start]
    return result


def _nothing(trajectory: Trajectory) -> Experience:
    """The experience of a trajectory that was not learned from."""
    tokens, turns = len(trajectory.tokens), len(trajectory.turns)
    return Experience(np.zeros(tokens, np.bool_), np.zeros(turns, np.float32), np.zeros(tokens, np.float32))
