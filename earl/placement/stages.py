"""The stages of a step, written once: the same algorithm wherever its learner and its players run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.base import Algorithm
from earl.algorithms.correction import corrected
from earl.algorithms.imitation import Imitation
from earl.algorithms.registry import algorithm
from earl.batch import Batch, Rows
from earl.config import Config
from earl.engine.learner import Update
from earl.engine.schedule import entropy_weight, learning_rate, ramp
from earl.evaluate import Match
from earl.matches import MatchResult
from earl.parallel.memory import ModelShape
from earl.placement.players import Players
from earl.rollout.experience import charged, experiences, learned, unlearned
from earl.rollout.pack import complete, pack, trajectories_of, turn_values
from earl.rollout.tasks import World, draw, draw_tasks
from earl.seeds import derive
from earl.trajectory import Experience, Group


class Learns(Protocol):
    """What the stages need of a learner, wherever its ranks are."""

    def update(self, batch: Batch, algorithm: Algorithm, update: Update) -> dict[str, float]:
        """Learn from a batch; the mean of each statistic."""

    def logprobs(self, rows: Rows, reference: bool = False) -> NDArray[np.float32]:
        """Log-probs [T] of the targets at rows.mask under the weights, or under the reference's."""

    def values(self, rows: Rows) -> NDArray[np.float32]:
        """The value head's estimates [T] at rows.value_mask."""

    def weights(self) -> Any:
        """The weights, as the players of the same placement load them."""

    def snapshot(self) -> Callable[[Path], None]:
        """Copy all that a run continues from; called with a folder, and from any thread, the copy is written there."""

    def restore(self, folder: Path) -> None:
        """Continue from what a snapshot wrote."""


class Stages:
    """What a step does, over a learner and players that may be here or elsewhere.

    Args:
        world: of the recipe, to see what is played; the players have their own.
        shape: of the policy's model.
    """

    def __init__(self, config: Config, world: World, shape: ModelShape, learner: Learns, players: Players) -> None:
        self.config, self.world, self.shape = config, world, shape
        self.learner, self.players = learner, players
        self.algorithm = algorithm(config.algorithm.name)
        self._limit = config.context.first_limit

    def demonstrations(self, step: int, limit: int | None = None) -> Rows:
        """New episodes of the teacher; `limit` replaces the context limit that now holds."""
        warm, seed = self.config.warm_start, self._seed("demonstrate", step)
        tasks = draw_tasks(self.world.env, warm.opponents or self.config.env.opponents, warm.episodes, seed)
        return self.players.demonstrate(tasks, seed, limit or self._limit)

    def imitate(self, rows: Rows, step: int) -> dict[str, float]:
        """Learn the teacher's labels."""
        warm = self.config.warm_start
        turns = int(rows.turns.max()) + 1
        batch = complete(rows, np.ones(turns, np.float32), np.zeros(turns, np.float32), None)
        rate = ramp(step, warm.steps, warm.learning_rate, warm.final_learning_rate, 0.0, "linear")
        update = Update(rate, 0.0, 0.0, warm.minibatches, warm.epochs, self._seed("order", step))
        return self.learner.update(batch, Imitation(), update) | {"learning_rate": rate}

    def rollout(self, step: int) -> list[Group]:
        """The step's groups."""
        return self.players.play(draw(self.config, step))

    def prepare(self, groups: Sequence[Group]) -> Batch:
        """Experience preparation: rows, values, advantages, log-probs of the reference."""
        kept = charged(self.learned(groups), self.config.context.length_penalty)
        rows = pack(trajectories_of(kept))
        turns = sum(len(trajectory.turns) for trajectory in trajectories_of(kept))
        values = np.zeros(turns, np.float32)
        if self.algorithm.needs_values:
            values = turn_values(rows, self.learner.values(rows), turns)
        advantages = self.algorithm.advantages(kept, values, self.config.algorithm)
        reference = self.learner.logprobs(rows, reference=True) if self.config.algorithm.kl else None
        return complete(rows, advantages.turns, advantages.returns, reference)

    def learned(self, groups: Sequence[Group]) -> list[Group]:
        """The groups as far as the recipe learns from them."""
        return learned(groups, self.config.context.learn_truncated)

    def experiences(self, groups: Sequence[Group], batch: Batch | None) -> list[Experience]:
        """What was made of every trajectory, after the update; without a batch: nothing of any."""
        if batch is None:
            return unlearned(groups)
        return experiences(groups, self.learned(groups), batch, self.learner.logprobs(batch))

    def limit(self, tokens: int) -> None:
        """Set the context limit of the episodes to come, in tokens."""
        self._limit = tokens
        self.players.limit(tokens)

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """Learn from a batch; `step` counts the steps of reinforcement learning from 1."""
        config, steps = self.config, self.config.run.steps
        update = Update(
            learning_rate=learning_rate(config.learner, step, steps),
            entropy=entropy_weight(config.algorithm, config.learner, step, steps),
            kl=config.algorithm.kl,
            minibatches=config.learner.minibatches,
            epochs=config.learner.epochs,
            seed=self._seed("order", "rl", step),
        )
        batch, importance = self._corrected(batch)
        stats = self.learner.update(batch, self.algorithm, update) | importance
        return stats | {"learning_rate": update.learning_rate, "entropy_weight": update.entropy}

    def _corrected(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """The batch as the update takes it. What is stored of an episode is what it was before."""
        config = self.config.algorithm
        if config.correction == "none":
            return batch, {}
        return corrected(batch, self.learner.logprobs(batch), config.correction, config.correction_cap)

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        """How strong the weights are that the players have."""
        return self.players.evaluate(matches)

    def sync(self, version: int) -> None:
        """Give the learner's weights to the players."""
        self.players.load(self.learner.weights(), version)

    def snapshot(self) -> Callable[[Path], None]:
        """All that a run continues from, as it is now; the result writes it into a folder while the stages go on: the
        model as a Hugging Face folder, the learner's state, what was played ahead."""
        learner, players = self.learner.snapshot(), self.players.snapshot()

        def write(folder: Path) -> None:
            learner(folder)
            players(folder)

        return write

    def restore(self, folder: Path) -> None:
        """Take the learner that a snapshot wrote."""
        self.learner.restore(folder)

    def resume(self, folder: Path) -> None:
        """Continue from all that a snapshot wrote."""
        self.learner.restore(folder)
        self.players.restore(folder)

    def _seed(self, *purpose: int | str) -> int:
        return derive(self.config.run.seed, *purpose)
