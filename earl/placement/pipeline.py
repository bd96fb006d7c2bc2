"""The stages of a step, written once: the same algorithm wherever its learner and its players run."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.base import Algorithm
from earl.algorithms.imitation import Imitation
from earl.algorithms.registry import algorithm
from earl.batch import Batch
from earl.config import AlgorithmConfig, Config, LearnerConfig
from earl.engine.learner import Update
from earl.engine.samplers import engine_of
from earl.errors import OutOfMemory
from earl.evaluate import Match
from earl.group import Group, GroupOf, PlayedGroups
from earl.matches import MatchResult
from earl.parallel.arrangement import check_split
from earl.parallel.layout import Choice
from earl.parallel.memory import ModelShape
from earl.placement.costs import chosen
from earl.placement.rollout_backend import Players, StoredTrajectories, most
from earl.rollout.pack import charged, experiences, learned, trajectories_of, unlearned
from earl.rollout.tasks import EpisodeFactory, draw, draw_tasks
from earl.seeds import derive
from earl.trajectory import TrainingRecord

# How learning rate and entropy weight move over the steps of reinforcement learning.


def ramp(step: int, steps: int, start: float, final: float | None, decay_from: float, shape: str) -> float:
    """The value at `step` (1 to `steps`): `start` up to decay_from · steps, then on the way to `final`.

    Example:
        >>> [ramp(step, 4, 1.0, 0.0, 0.5, "linear") for step in (1, 2, 3, 4)]
        [1.0, 1.0, 0.5, 0.0]
    """
    begin = decay_from * steps
    if final is None or step <= begin:
        return start
    way = min(1.0, (step - begin) / (steps - begin))
    if shape == "cosine":
        way = (1 - math.cos(math.pi * way)) / 2
    return start + way * (final - start)


def learning_rate(config: LearnerConfig, step: int, steps: int) -> float:
    """The learning rate of an RL step, after a linear warm-up."""
    rate = ramp(step, steps, config.learning_rate, config.final_learning_rate, config.decay_from, config.schedule)
    return rate * min(1.0, step / config.warmup_steps) if config.warmup_steps else rate


def entropy_weight(algorithm: AlgorithmConfig, learner: LearnerConfig, step: int, steps: int) -> float:
    """The weight of the entropy bonus at an RL step."""
    return ramp(step, steps, algorithm.entropy, algorithm.final_entropy, learner.decay_from, learner.schedule)


G = TypeVar("G", bound=GroupOf[Any])


class LearnerBackend(Protocol):
    """What the stages need of a learner, wherever its ranks are.

    Rows are what the players of the same placement give, a batch is what `complete` made of them; where they lie on
    other machines both only stand for them.
    """

    costs: Mapping[str, float]
    """What it took to dispatch the rows that were taken last, by the names that are recorded."""

    given: Mapping[str, float]
    """What it took to give the weights to the players last, as above."""

    def relayout(self, config: Config, after: OutOfMemory | None = None) -> None:
        """Take the layout that a recipe names, in place.

        Args:
            after: why, where memory ran out.

        Raises:
            Lost: when that cannot be done in place; mended, it goes on from the last checkpoint under the new layout.
        """

    def peaks(self) -> Mapping[str, float]:
        """The most memory that any rank took by stage, in bytes, since this was last asked, where it is counted."""

    def take(self, rows: Any, seed: int, minibatches: int) -> Any:
        """Have the rows of a step dispatched to those who learn from them.

        Args:
            seed: that of the update, which orders the rows.
            minibatches: of the update: each is shared evenly.
        """

    def turn_values(self, rows: Any) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The turns of the rows, and the value head's estimate before each."""

    def complete(
        self, rows: Any, advantages: NDArray[np.float32], returns: NDArray[np.float32], reference: bool
    ) -> Any:
        """The batch of rows with advantages and returns [K] by turn, and log-probs of the reference if wanted."""

    def corrected(self, batch: Any, mode: Literal["token", "sequence"], cap: float) -> tuple[Any, dict[str, float]]:
        """The batch with its importance corrected; see `earl.algorithms.loss`."""

    def update(self, batch: Any, algorithm: Algorithm, update: Update) -> dict[str, float]:
        """Learn from a batch; the mean of each statistic."""

    def collected(self, batch: Any) -> tuple[Batch, NDArray[np.float32]]:
        """The whole batch, to be written down, and its log-probs [T] as they are now."""

    def weights(self) -> Any:
        """The weights, as the players of the same placement load them."""

    def snapshot(self) -> Callable[[Path], None]:
        """Copy all that a run continues from; called with a folder, and from any thread, the copy is written there."""

    def restore(self, folder: Path) -> None:
        """Continue from what a snapshot wrote."""


class StepPipeline:
    """What a step does, over a learner and players that may be here or elsewhere.

    Args:
        world: of the recipe, to see what is played; the players have their own.
        shape: of the policy's model.
    """

    def __init__(
        self, config: Config, world: EpisodeFactory, shape: ModelShape, learner: LearnerBackend, players: Players
    ) -> None:
        self.config, self.world, self.shape = config, world, shape
        self.learner, self.players = learner, players
        self.algorithm = algorithm(config.algorithm.name)
        self._limit = config.context.first_limit
        self._laid = config
        self._version = 0

    def demonstrations(self, step: int, limit: int | None = None) -> StoredTrajectories:
        """New episodes of the teacher; `limit` replaces the context limit that now holds."""
        warm, seed = self.config.warm_start, self._seed("demonstrate", step)
        tasks = draw_tasks(self.world.env, warm.opponents or self.config.env.opponents, warm.episodes, seed)
        return self.players.demonstrate(tasks, seed, limit or self._limit)

    def dispatch_taught(self, rows: StoredTrajectories, step: int) -> Any:
        """Have the teacher's rows sent to where they are learned from."""
        update = self._imitation(step)
        return self.learner.take(rows, update.seed, update.minibatches)

    def imitate(self, taken: Any, turns: int, step: int) -> dict[str, float]:
        """Learn the teacher's labels.

        Args:
            taken: the rows as they were dispatched.
            turns: of all rows.
        """
        update = self._imitation(step)
        ones, zeros = np.ones(turns, np.float32), np.zeros(turns, np.float32)
        batch = self.learner.complete(taken, ones, zeros, reference=False)
        return self.learner.update(batch, Imitation(), update) | {"learning_rate": update.learning_rate}

    def _imitation(self, step: int) -> Update:
        warm = self.config.warm_start
        rate = ramp(step, warm.steps, warm.learning_rate, warm.final_learning_rate, 0.0, "linear")
        return Update(rate, 0.0, 0.0, warm.minibatches, warm.epochs, self._seed("order", step))

    def rollout(self, step: int) -> PlayedGroups:
        """The step's groups."""
        return self.players.play(draw(self.config, step))

    def dispatch(self, groups: PlayedGroups, step: int = 1) -> Any:
        """Have the rows of what is learned from sent from where they were played to where they are learned from.

        Args:
            step: counts the steps of reinforcement learning from 1.
        """
        update = self._update(step)
        return self.learner.take(self.players.rows(self.learned(groups)), update.seed, update.minibatches)

    def prepare(self, groups: PlayedGroups, rows: Any) -> Any:
        """Experience preparation: values, advantages, log-probs of the reference.

        Args:
            rows: those of the groups, as they were dispatched.

        Returns:
            the batch, as `update` and `recorded` take it.
        """
        kept = charged(self.learned(groups), self.config.context.length_penalty)
        values = np.zeros(sum(len(trajectory.turns) for trajectory in trajectories_of(kept)), np.float32)
        if self.algorithm.needs_values:
            turns, estimates = self.learner.turn_values(rows)
            values[turns] = estimates
        advantages = self.algorithm.advantages(kept, values, self.config.algorithm)
        reference = bool(self.config.algorithm.kl)
        return self.learner.complete(rows, advantages.turns, advantages.returns, reference)

    def learned(self, groups: Sequence[G]) -> list[G]:
        """The groups as far as the recipe learns from them."""
        return learned(groups, self.config.context.learn_truncated)

    def recorded(self, groups: PlayedGroups, batch: Any) -> tuple[list[Group], list[TrainingRecord]]:
        """The step's groups with their tokens, and what was made of every trajectory, after the update.

        Args:
            batch: what `prepare` gave; None: nothing was learned.
        """
        whole = self.players.whole(groups)
        if batch is None:
            return whole, unlearned(whole)
        return whole, experiences(whole, self.learned(whole), *self.learner.collected(batch))

    def limit(self, tokens: int) -> None:
        """Set the context limit of the episodes to come, in tokens."""
        self._limit = tokens
        self.players.limit(tokens)

    def update(self, batch: Any, step: int) -> dict[str, float]:
        """Learn from a batch; `step` counts the steps of reinforcement learning from 1."""
        update, config = self._update(step), self.config.algorithm
        importance: dict[str, float] = {}
        if config.correction != "none":  # what is stored of an episode is what it was before
            batch, importance = self.learner.corrected(batch, config.correction, config.correction_cap)
        stats = self.learner.update(batch, self.algorithm, update) | importance
        return stats | {"learning_rate": update.learning_rate, "entropy_weight": update.entropy}

    @property
    def costs(self) -> Mapping[str, float]:
        """What it took to play the last step's groups, and to dispatch the rows that were learned from."""
        return {**self.players.costs, **self.learner.costs}

    def peaks(self) -> dict[str, float]:
        """The most memory that any process took of its own by stage, in bytes, since this was last asked."""
        return most([self.players.peaks(), self.learner.peaks()])

    def lay_out(self, choice: Choice, after: OutOfMemory | None = None) -> None:
        """Lay a stage out anew, between two steps; players are given the weights that they had.

        Args:
            after: why, where memory ran out.

        Raises:
            Lost: see `LearnerBackend.relayout`.
        """
        self._laid = chosen(self._laid, choice)
        if choice.stage == "rollout":
            self.relayout(choice.layout.dp, choice.layout.tp, self._version)
        else:
            self.learner.relayout(self._laid, after)

    def _update(self, step: int) -> Update:
        config, steps = self.config, self.config.run.steps
        return Update(
            learning_rate=learning_rate(config.learner, step, steps),
            entropy=entropy_weight(config.algorithm, config.learner, step, steps),
            kl=config.algorithm.kl,
            minibatches=config.learner.minibatches,
            epochs=config.learner.epochs,
            seed=self._seed("order", "rl", step),
        )

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        """How strong the weights are that the players have."""
        return self.players.evaluate(matches)

    def sync(self, version: int) -> Mapping[str, float]:
        """Give the learner's weights to the players; what that took, by the names that are recorded."""
        self._version = version
        self.players.load(self.learner.weights(), version)
        return self.learner.given

    def relayout(self, copies: int, tp: int, version: int) -> float:
        """Split the samplers anew between two steps: `copies` copies, each over `tp` of their processes.

        Args:
            version: of the weights, which they are given, and are probed for, in the new layout.

        Returns:
            the seconds until they could play.

        Raises:
            EarlError: where that cannot be; they are then as they were.
        """
        began = time.perf_counter()
        check_split(self.shape, "sampler.tp", tp, replicated=engine_of(self.config, self.shape) == "vllm")
        self.players.relayout(copies, tp)
        self.sync(version)
        return time.perf_counter() - began

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
