"""The stages of a step, written once for every placement, over a `LearnerBackend` and `Players`."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.base import Advantages, Algorithm
from earl.algorithms.imitation import Imitation
from earl.algorithms.loss import KlEstimator
from earl.algorithms.rae import NO_BASELINES, Baselines, baselines_after
from earl.algorithms.registry import algorithm_of
from earl.batch import Batch, Rows
from earl.config import AlgorithmConfig, Config, LearnerConfig
from earl.documents import Fingerprints
from earl.engine.learner import Update
from earl.engine.samplers import engine_of
from earl.errors import EarlError, OutOfMemory
from earl.evaluation import Match
from earl.matches import MatchResult
from earl.parallel.layout import Choice, check_split
from earl.parallel.memory import ModelShape
from earl.placement.costs import with_choice
from earl.placement.episode_store import RowTable
from earl.placement.fragment import teacher_episodes
from earl.rollout.opponents import EMPTY, OpponentPool
from earl.rollout.pack import Estimates, assign_credit, by_seat, empty_records, experiences, learnable, length_penalised
from earl.rollout.tasks import Draw, EpisodeFactory, draw, draw_tasks, opponents
from earl.seeds import derive
from earl.trajectory import Group, GroupOf, PlayedGroups, Task, TrainingRecord


def ramp(step: int, steps: int, start: float, final: float | None, decay_from: float, shape: str) -> float:
    """The value at `step` (1 to `steps`): `start` up to decay_from · steps, then on the way to `final`."""
    begin = decay_from * steps
    if final is None or step <= begin:
        return start
    way = min(1.0, (step - begin) / (steps - begin))
    if shape == "cosine":
        way = (1 - math.cos(math.pi * way)) / 2
    return start + way * (final - start)


def learning_rate(config: LearnerConfig, step: int, steps: int) -> float:
    rate = ramp(step, steps, config.learning_rate, config.final_learning_rate, config.decay_from, config.schedule)
    return rate * min(1.0, step / config.warmup_steps) if config.warmup_steps else rate


def entropy_weight(algorithm: AlgorithmConfig, learner: LearnerConfig, step: int, steps: int) -> float:
    return ramp(step, steps, algorithm.entropy, algorithm.final_entropy, learner.decay_from, learner.schedule)


G = TypeVar("G", bound=GroupOf[Any])
Item = TypeVar("Item")
StoredTrajectories = Rows | RowTable
"""Rows, or counts of those that stay with the workers."""


def share(items: Sequence[Item], rank: int, size: int) -> dict[int, Item]:
    """Every `size`-th item, by its number: share("abcde", 1, 2) gives {1: 'b', 3: 'd'}."""
    return {number: items[number] for number in range(len(items))[rank::size]}


def in_order(results: Iterable[MatchResult]) -> list[MatchResult]:
    return sorted(results, key=lambda result: (result.opponent, result.seat))


def most(costs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in (item for own in costs for item in own.items()):
        found[name] = max(value, found.get(name, value))
    return found


class Players(Protocol):
    """All rollout fragments of a run, as one. Those of a cluster can be laid out anew, and play synthetic episodes: see
    `RolloutWorkers`."""

    costs: Mapping[str, float]  # costs of the last step's groups, by metric name

    def play(self, draw: Draw) -> PlayedGroups:
        """The groups of a step, in order; their tokens may stay with the workers."""

    def rows(self, groups: PlayedGroups) -> StoredTrajectories:
        """The rows to learn from of a step's groups, as the learner of the same placement takes them."""

    def whole(self, groups: PlayedGroups) -> list[Group]:
        """Groups of the step with their tokens."""

    def demonstrate(self, tasks: Sequence[Task], seed: int, limit: int) -> StoredTrajectories:
        """The teacher's episodes of the tasks, under a context limit of `limit` tokens, in order."""

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        """The results of matches, by opponent and seat."""

    def limit(self, tokens: int) -> None:
        """Set the context limit of later episodes, in tokens."""

    def peaks(self) -> Mapping[str, float]:
        """Peak memory of any process by stage, in bytes, since this was last asked; empty where it is not measured, as
        where the learner uses memory of the same processes."""
        return {}

    def load(self, weights: Any, version: int) -> Mapping[str, float]:
        """Load the `weights` of a learner of the same placement; returns the costs by metric name."""

    def snapshot(self) -> Callable[[Path], None]:
        """Copy the groups played ahead for later steps; the result writes them into a folder. Here there are none."""
        return lambda _: None

    def restore(self, folder: Path) -> None:
        """Continue from a snapshot; all other groups are dropped. Here there are none."""
        return


class LearnerBackend(Protocol):
    """The learner as the stages use it, wherever its ranks are. Rows come from the players of the same placement,
    batches from `complete`; on a cluster both are only handles."""

    costs: Mapping[str, float]  # costs of the last row dispatch, by metric name

    def peaks(self) -> Mapping[str, float]:
        """Peak memory of any rank by stage, in bytes, since this was last asked; empty where it is not measured."""

    def take(self, rows: Any, seed: int, minibatches: int) -> Any:
        """Dispatch a step's rows to the ranks that learn from them. seed: of the update, orders the rows; minibatches:
        of the update, each is split evenly.
        """

    def turn_values(self, rows: Any, by_token: bool) -> Estimates:
        """The turns of the rows, and the value head's estimate before each, or before each of their tokens."""

    def divergences(self, rows: Any, estimator: KlEstimator) -> Estimates:
        """The turn of each token to learn, and the estimated KL divergence from the sampler to the reference there."""

    def complete(self, rows: Any, advantages: Advantages, reference: bool) -> Any:
        """The batch of rows with advantages, and reference log-probs if wanted."""

    def update(self, batch: Any, algorithm: Algorithm, update: Update) -> dict[str, float]:
        """Learn from a batch, which stays uncorrected; returns the mean of each statistic."""

    def collected(self, batch: Any) -> tuple[Batch, NDArray[np.float32]]:
        """The whole batch, to be recorded, and its current log-probs [T]."""

    def weights(self) -> Any:
        """The weights, in the form that the players of the same placement load."""

    def snapshot(self) -> Callable[[Path], Fingerprints]:
        """Copy all that a run continues from; the result writes the copy into a folder, from any thread, and returns
        fingerprints of large files, each made by the process that wrote it."""

    def restore(self, folder: Path) -> None:
        """Continue from a snapshot."""


class StepPipeline:
    """The stages of a step, over a learner and players that may run here or elsewhere. world: of the recipe, for
    drawing tasks; the players have their own. shape: of the policy's model."""

    def __init__(
        self, config: Config, world: EpisodeFactory, shape: ModelShape, learner: LearnerBackend, players: Players
    ) -> None:
        self.config, self.world, self.shape = config, world, shape
        self.learner, self.players = learner, players
        self.algorithm = algorithm_of(config)
        self._learnable = learnable(config)
        self._limit = config.context.first_limit
        self._laid_out = config
        self._version = 0
        self._kl_stats: dict[str, float] = {}

    def demonstrations(self, step: int, limit: int | None = None) -> StoredTrajectories:
        warm, shares = self.config.warm_start, opponents(self.config, taught=True)
        seeds = [self._seed("demonstrate", own) for own in range(1 if warm.aggregate else step, step + 1)]
        tasks = [task for seed in seeds for task in draw_tasks(shares, warm.episodes, seed)]
        return self.players.demonstrate(tasks, seeds[0], limit or self._limit)

    def dispatch_taught(self, rows: StoredTrajectories, step: int) -> Any:
        update = self._imitation(step)
        return self.learner.take(rows, update.seed, update.minibatches)

    def imitate(self, taken: Any, turns: int, step: int) -> dict[str, float]:
        """Learn the teacher's labels. taken: the dispatched rows; turns: their number over all rows."""
        update = self._imitation(step)
        ones, zeros = np.ones(turns, np.float32), np.zeros(turns, np.float32)
        batch = self.learner.complete(taken, Advantages(ones, zeros), reference=False)
        return self.learner.update(batch, Imitation(), update) | {"learning_rate": update.learning_rate}

    def _imitation(self, step: int) -> Update:
        warm = self.config.warm_start
        rate = ramp(step, warm.steps, warm.learning_rate, warm.final_learning_rate, 0.0, "linear")
        minibatches = warm.minibatches * (step if warm.aggregate else 1)
        return Update(rate, 0.0, minibatches, warm.epochs, self._seed("order", step))

    def rollout(self, step: int, pool: OpponentPool = EMPTY) -> PlayedGroups:
        return by_seat(self.players.play(draw(self.config, step, pool)))

    def dispatch(self, groups: PlayedGroups, step: int = 1) -> Any:
        """Dispatch the rows to learn from to the learner. step: RL steps, counted from 1."""
        update = self._update(step)
        return self.learner.take(self.players.rows(self.learned(groups)), update.seed, update.minibatches)

    def prepare(self, groups: PlayedGroups, rows: Any, baselines: Baselines = NO_BASELINES) -> Any:
        """Experience preparation: values, advantages, reference log-probs. Returns the batch for `update` and
        `recorded`. rows: the dispatched rows of the groups; baselines: of their roles, before the step."""
        how, own, costs = self.config.algorithm, self.algorithm, None
        estimates = self.learner.turn_values(rows, own.by_token) if own.needs_values else None
        if how.kl and not how.loss_kl:
            turns, divergences = self.learner.divergences(rows, how.kl_estimator)
            costs = turns, how.kl * divergences
            self._kl_stats = {"kl_to_reference": float(divergences.mean())}
        advantages = assign_credit(own, groups, self._learnable, estimates, baselines, costs)
        return self.learner.complete(rows, advantages, reference=bool(how.loss_kl))

    def baselines_after(self, baselines: Baselines, groups: PlayedGroups) -> dict[str, float]:
        """The roles' baselines for the step that follows, from returns as they are learned."""
        if not self.algorithm.needs_baselines:
            return {}
        return baselines_after(baselines, length_penalised(self.learned(groups), self.config.context.length_penalty))

    def learned(self, groups: Sequence[G]) -> list[G]:
        """The groups, without trajectories that the recipe does not learn from."""
        return self._learnable.learned(groups)

    def recorded(self, groups: PlayedGroups, batch: Any) -> tuple[list[Group], list[TrainingRecord]]:
        """The step's groups with their tokens, and the training record of every trajectory, after the update. batch:
        from `prepare`; None: nothing was learned."""
        whole = by_seat(self.players.whole(groups))
        if batch is None:
            return whole, empty_records(whole)
        return whole, experiences(whole, self.learned(whole), *self.learner.collected(batch))

    def limit(self, tokens: int) -> None:
        self._limit = tokens
        self.players.limit(tokens)

    def update(self, batch: Any, step: int, distillation: float = 0.0, rate_share: float = 1.0) -> dict[str, float]:
        """Learn from a batch; `step` counts RL steps from 1; rate_share: of the step's learning rate."""
        update = self._update(step)
        update = replace(update, distillation=distillation, learning_rate=update.learning_rate * rate_share)
        stats = self.learner.update(batch, self.algorithm, update)
        return stats | self._kl_stats | {"learning_rate": update.learning_rate, "entropy_weight": update.entropy}

    def teacher_return(self) -> float:
        """Mean return of the teacher in as many episodes as a step has, against the opponents of the first step; 0: it
        is not asked in reinforcement learning. Raises EarlError where no share of it can be told."""
        config = self.config
        if not config.warm_start.distill:
            return 0.0
        seed = self._seed("teacher")
        tasks = draw_tasks(opponents(config), config.rollout.episodes, seed)
        played, _ = teacher_episodes(self.world, config, dict(enumerate(tasks)), seed, 0.0)
        found = float(np.mean([trajectory.reward for trajectory in played]))
        if found <= 0:
            raise EarlError(
                f"warm_start.distill = {config.warm_start.distill:g} falls with the share of the teacher's return that "
                f"is reached, and {config.warm_start.teacher!r} earns {found:.3g}: name a better teacher or weaker "
                "opponents, or set warm_start.distill to 0"
            )
        return found

    @property
    def costs(self) -> Mapping[str, float]:
        return {**self.players.costs, **self.learner.costs}

    def peaks(self) -> dict[str, float]:
        """Peak memory of any process by stage, in bytes, since this was last asked."""
        return most([self.players.peaks(), self.learner.peaks()])

    def lay_out(self, choice: Choice, after: OutOfMemory | None = None) -> None:
        """Change a stage's layout between two steps; players get their current weights again. `after`: memory ran out.
        On a cluster only: elsewhere there is one layout. Raises WorkerLost: see `LearnerGroup.relayout`."""
        self._laid_out = with_choice(self._laid_out, choice)
        if choice.stage == "rollout":
            self.relayout(choice.layout.dp, choice.layout.tp, self._version)
        else:
            learner: Any = self.learner
            learner.relayout(self._laid_out, after)

    def _update(self, step: int) -> Update:
        config, steps = self.config, self.config.run.steps
        return Update.of(
            config,
            learning_rate(config.learner, step, steps),
            entropy_weight(config.algorithm, config.learner, step, steps),
            self._seed("order", "rl", step),
            renews_reference=step % (config.algorithm.reset_reference or step + 1) == 0,
            takes_average=config.learner.ema > 0 and step == steps,
        )

    def sync(self, version: int) -> Mapping[str, float]:
        """Weight sync: load the learner's weights into the players; returns the costs by metric name."""
        self._version = version
        return self.players.load(self.learner.weights(), version)

    def relayout(self, copies: int, tp: int, version: int) -> None:
        """Split the samplers into `copies` copies of `tp` processes each, between two steps. They load and probe the
        weights of `version` again. Raises EarlError where the split is impossible; nothing changes then."""
        check_split(self.shape, "sampler.tp", tp, replicated=engine_of(self.config) == "vllm")
        players: Any = self.players  # of a cluster: elsewhere there is one layout
        players.relayout(copies, tp)
        self.sync(version)

    def snapshot(self) -> Callable[[Path], Fingerprints]:
        """Copy all that a run continues from; the result writes it into a folder while the stages go on: the model as a
        Hugging Face folder, the learner's state, and groups played ahead."""
        learner, players = self.learner.snapshot(), self.players.snapshot()

        def write(folder: Path) -> Fingerprints:
            written = learner(folder)
            players(folder)
            return written

        return write

    def resume(self, folder: Path) -> None:
        self.learner.restore(folder)
        self.players.restore(folder)

    def _seed(self, *purpose: int | str) -> int:
        return derive(self.config.run.seed, *purpose)
