"""Checks stored advantages: they must follow from the rewards by the recipe's algorithm."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.registry import algorithm
from earl.audit.case import Case
from earl.audit.findings import Fault, Finding, Unchecked
from earl.config import Config
from earl.engine.model import load
from earl.group import Group
from earl.placement.embedded import embedded
from earl.placement.peers import Peers
from earl.rollout.pack import charged, learned, trajectories_of

TOLERANCE = 1e-5
VALUES_TOLERANCE = 1e-3
"""Larger, since values are computed in other batches than in training."""


def check_advantages(case: Case) -> Iterator[Finding]:
    config, name = case.run.config, case.run.config.algorithm.name
    stored, groups = case.experiences, case.true_groups()
    if len(stored) != len(case.replays):
        raise Unchecked("not all episodes of the step can be told")
    if not algorithm(name).needs_values:
        yield from _compare(case, expected_advantages(config, groups), TOLERANCE)
    elif (saved := case.run.checkpoints.get(case.step - 1)) is not None:
        yield from _compare(case, prepared_advantages(config, saved.path, groups), VALUES_TOLERANCE)
    else:
        raise Unchecked(f"{name} needs the value head of the step before, which is not kept")


def prepared_advantages(config: Config, weights: Path, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
    """As `expected_advantages`, but with values from the stored value head, as in training."""
    placement = embedded(config, Peers(), load(weights))
    placement.restore(weights)
    batch = placement.prepare(groups, placement.dispatch(groups))
    return [experience.advantages for experience in placement.recorded(groups, batch)[1]]


def expected_advantages(config: Config, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
    """One array [K] per episode, one value per turn; zeros for an episode that is not learned from."""
    kept = learned(groups, config.context.learn_truncated)
    counts = [len(trajectory.turns) for trajectory in trajectories_of(kept)]
    values = np.zeros(sum(counts), np.float32)
    charges = charged(kept, config.context.length_penalty)
    turns = algorithm(config.algorithm.name).advantages(charges, values, config.algorithm).turns
    parts = np.split(turns, np.cumsum(counts)[:-1]) if counts else []
    own = {id(trajectory): part for trajectory, part in zip(trajectories_of(kept), parts, strict=True)}
    return [own.get(id(t), np.zeros(len(t.turns), np.float32)) for t in trajectories_of(groups)]


def _compare(case: Case, advantages: Sequence[NDArray[np.float32]], tolerance: float) -> Iterator[Finding]:
    for index, (expected, experience) in enumerate(zip(advantages, case.file.experiences, strict=True)):
        found = experience.advantages
        if len(expected) != len(found):
            said = f"{len(found)} advantages are stored for {len(expected)} turns"
            yield case.finding(Fault.WRONG_ADVANTAGE, said, index)
        elif len(wrong := np.flatnonzero(~(np.abs(expected - found) <= tolerance))):
            turn = int(wrong[0])
            said = f"the advantage is stored as {found[turn]:.6g}, the rewards give {expected[turn]:.6g}"
            yield case.replays[index].finding(Fault.WRONG_ADVANTAGE, said, turn)
