"""What a stage takes, tried with episodes that nobody plays: the same calls as those of a step, with contexts of any
length. What is learned of them is nonsense: for stages that are thrown away afterwards.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from earl.engine.learner import Update
from earl.parallel.choice import Stage
from earl.placement.players import Held
from earl.placement.stages import Stages
from earl.rollout.invented import Invention

LONG = 5
"""A first time of so many times what is asked for stands alone: what it made is little of it."""


class Trials:
    """Stages that are tried.

    Args:
        seed: of what is invented.
    """

    def __init__(self, stages: Stages, seed: int) -> None:
        self._stages, self._seed = stages, seed

    def tried(self, stage: Stage, invention: Invention, sequences: int, seconds: float) -> list[float]:
        """Seconds that the stage took, again and again until as much time has passed.

        The first time makes what later ones find made: it counts where it is so long that there is no other.
        """
        work = self._sampling(invention, sequences) if stage == "rollout" else self._learning(invention, sequences)
        taken = [_timed(work)]
        while sum(taken[1:]) < seconds and taken[0] < LONG * seconds:
            taken.append(_timed(work))
        return taken[1:] or taken

    def _sampling(self, invention: Invention, sequences: int) -> Callable[[], None]:
        return lambda: self._stages.players.sample(invention, sequences, self._seed)

    def _learning(self, invention: Invention, sequences: int) -> Callable[[], None]:
        rows = self._stages.players.invent(invention, sequences, self._seed)
        return lambda: self._learn(rows)

    def _learn(self, rows: Held) -> None:
        """Dispatch, experience preparation and update of rows, as in a step."""
        stages, config = self._stages, self._stages.config
        update = self._update()
        taken: Any = stages.learner.take(rows, update.seed, update.minibatches)
        if stages.algorithm.needs_values:
            stages.learner.turn_values(taken)
        draws = np.random.default_rng(self._seed).standard_normal(rows.num_turns).astype(np.float32)
        batch = stages.learner.complete(taken, draws, draws, reference=bool(config.algorithm.kl))
        if config.algorithm.correction != "none":
            batch, _ = stages.learner.corrected(batch, config.algorithm.correction, config.algorithm.correction_cap)
        stages.learner.update(batch, stages.algorithm, update)

    def _update(self) -> Update:
        learner, algorithm = self._stages.config.learner, self._stages.config.algorithm
        return Update(0.0, algorithm.entropy, algorithm.kl, learner.minibatches, learner.epochs, self._seed)


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
