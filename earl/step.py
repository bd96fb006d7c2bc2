"""The step of the EARL paper (arXiv 2510.05943, Figure 2), the same in every process of a run.

layouts ─▶ rollout ─▶ track contexts ─▶ layouts ─▶ dispatch ─▶ experience preparation ─▶ model update
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from earl import evaluation
from earl.agents.scripted.registry import RUN
from earl.algorithms.imitation import distillation_weight
from earl.config import Config
from earl.context.limit import ContextWatch, growth_of
from earl.context.track import tokens_by_turn
from earl.engine.learner import SKIPPED
from earl.errors import EarlError
from earl.guards import GUARD, IDLE, append_numbers, idleness, warnings_of
from earl.layouts import Layouts
from earl.matches import MatchResult
from earl.parallel.memory import load_of, memory_metrics, taught_load
from earl.placement.pipeline import StepPipeline
from earl.rollout.metrics import episode_metrics, staleness_metrics
from earl.rollout.opponents import LostGame, OpponentPool, Start, add_to_pool, preferences_after, starts_after
from earl.rollout.pack import trajectories_of
from earl.rollout.tasks import draw, passed
from earl.runs.folder import RunFolder
from earl.runs.journal import Clock, Journal
from earl.trajectory import ContextTokens, PlayedGroups

NEVER = (float("-inf"), float("-inf"))


@dataclass(slots=True)
class Progress:
    """Position of a run between steps: everything in a checkpoint except tensors; there `finished` is always false."""

    step: int = 0
    best_step: int = 0
    best: tuple[float, float] = NEVER
    finished: bool = False
    saved: int = -1  # step of the last scheduled checkpoint
    warned: tuple[str, ...] = ()
    """Kinds of warnings that hold since an earlier step, and are not repeated."""
    watched: tuple[dict[str, float], ...] = ()  # numbers of the last steps, see `earl.guards`
    skipped: int = 0
    """Consecutive steps, up to this one, without an update because loss or gradient were not finite."""
    context: ContextWatch = field(default_factory=lambda: ContextWatch(0))
    layouts: dict[str, Any] = field(default_factory=dict)  # state of `earl.layouts.Layouts`
    baselines: dict[str, float] = field(default_factory=dict)  # running mean return of each role, see `algorithms/rae`
    preferences: dict[str, float] = field(default_factory=dict)  # of opponents and levels, see `rollout/opponents`
    starts: dict[str, Start] = field(default_factory=dict)  # positions that games may begin at
    lost: tuple[LostGame, ...] = ()  # games of the last evaluation, which the exploiter plays
    teacher_return: float = 0.0  # mean return of the teacher's episodes; 0: it is not asked, or not any more
    recent: tuple[int, ...] = ()
    """With a pool: steps of the last two scheduled checkpoints, of which the last may not be written yet."""
    pool: tuple[int, ...] = ()  # steps of those that are opponents
    collapsed: bool = False  # whether learning is to go on from the best weights
    returns: int = 0  # how often it did; each time halves the learning rate

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Self:
        """Parse a checkpoint's state. Raises EarlError when it is invalid."""
        try:
            return TypeAdapter(cls).validate_python(state)
        except ValidationError as error:
            place, fault = ".".join(map(str, error.errors()[0]["loc"])), error.errors()[0]["msg"]
            rule = "the checkpoint's state is not one that earl saved"
            raise EarlError(f"{rule} ({place}: {fault}); delete the checkpoint, then continue with --resume") from None

    def record_checkpoint(self, pool_size: int) -> None:
        """Take the step as a scheduled checkpoint's. The one before the last, which all processes can read by now,
        joins the pool."""
        if not pool_size:
            return
        if self.recent[1:]:
            self.pool = add_to_pool(self.pool, self.recent[0], pool_size)
        self.recent = (*self.recent[-1:], self.step)

    def better(self, results: Sequence[MatchResult], averaged: bool = False) -> bool:
        """Whether results are the best so far, or those of the mean of the weights; if so, they are kept."""
        strength = evaluation.strength(results)
        if strength <= self.best and not averaged:
            return False
        self.best, self.best_step = strength, self.step
        return True


def phase_of(config: Config, step: int) -> str:
    """Phase of a step's matches: "start", "warm_start" or "train". "final" is for the best weights."""
    if step == 0:
        return "start"
    return "warm_start" if step <= config.warm_start.steps else "train"


def due(step: int, every: int, last: int) -> bool:
    return step % every == 0 or step == last


def done(config: Config, progress: Progress) -> bool:
    """Whether no step is left: all were run, or the best weights lose to no reply and the recipe's patience is over."""
    patience, unbeaten = config.evaluate.patience, progress.best[0] == 0
    waited = progress.step - max(progress.best_step, config.warm_start.steps)
    early = patience and unbeaten and waited >= patience * config.evaluate.every
    return bool(early) or progress.step >= config.total_steps


MOST_SKIPPED = 3
"""Consecutive steps without an update after which the run fails."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    metrics: dict[str, float]
    contexts: Sequence[ContextTokens] = ()


@dataclass(frozen=True, slots=True)
class OpenRun:
    """The objects that every part of a step needs."""

    folder: RunFolder
    pipeline: StepPipeline
    journal: Journal
    layouts: Layouts

    @property
    def config(self) -> Config:
        return self.pipeline.config

    def opponents(self, progress: Progress) -> OpponentPool:
        past = [f"{RUN}{self.folder.path}@{step}" for step in progress.pool]
        return OpponentPool(progress.preferences, past, progress.starts, progress.teacher_return > 0, progress.lost)

    def checkpoint(self, progress: Progress) -> None:
        progress.layouts = self.layouts.state()
        snapshot = partial(self.layouts.run_with_oom_retry, None, progress.step, self.pipeline.snapshot)
        self.journal.checkpoint(progress.step, snapshot, asdict(progress), progress.best_step)


def step_of(run: OpenRun, progress: Progress, clock: Clock) -> StepRecord:
    step, warm = progress.step, run.config.warm_start.steps
    if step <= warm:
        return _imitate(run, progress, clock)
    run.layouts.choose_layout("rollout", step, clock)
    with clock("rollout"):
        pool = run.opponents(progress)
        play = partial(run.pipeline.rollout, step, pool)
        groups = run.layouts.run_with_oom_retry("rollout", step, play)
    with clock("track"):
        record = _track(run, progress, groups)
        progress.preferences = preferences_after(progress.preferences, run.config.env.each, groups)
        if any(env.restarts for env in run.config.env.each.values()):
            games = passed(run.pipeline.world, draw(run.config, step, pool), run.config.rollout.group_size, groups)
            progress.starts = starts_after(progress.starts, games)
    batch: Any = None
    stats: dict[str, float] = {}
    if run.pipeline.learned(groups):
        run.layouts.choose_layout("update", step, clock)
        weight = _distillation(run.config, progress, record.metrics["reward"])
        learn = partial(_learn, run.pipeline, groups, step - warm, clock, progress, weight)
        batch, stats = run.layouts.run_with_oom_retry("update", step, learn)
        _count_skipped(run, progress, stats)
        progress.baselines = run.pipeline.baselines_after(progress.baselines, groups)
    else:
        run.journal.event(step, "skipped", "nothing was learned: not one episode ended in a way that is learned from")
    with clock("record"):
        # Also after a checkpoint: it holds the weights that sampled these tokens, so they can be audited.
        recent = 0 <= step - 1 - progress.saved <= run.config.placement.max_staleness
        if recent or due(step - warm, run.config.run.keep_trajectories_every, run.config.run.steps):
            stored = run.layouts.once(step, partial(run.pipeline.recorded, groups, batch))
            if stored:
                run.journal.episodes(step, *stored)
    metrics = {**record.metrics, **stats}
    if pool.labelled:  # one label for each turn
        metrics["teacher_labels"] = float(sum(len(one.turns) for one in trajectories_of(groups)))
    _warn(run, progress, metrics)
    return StepRecord(metrics, record.contexts)


def _warn(run: OpenRun, progress: Progress, metrics: Mapping[str, float]) -> None:
    """Log faults of the environment, why a step taught nothing, and what the last steps say of the run; each once for
    as long as it holds."""
    progress.watched = append_numbers(progress.watched, metrics)
    warnings = {IDLE: idleness(run.config, metrics)}
    if failed := round(metrics["stop/env_error"] * metrics["episodes"]):
        extent = f"{failed} of {metrics['episodes']:.0f} episodes ended by a fault of {run.config.env.name}"
        warnings["fault"] = f"{extent}, and are not learned from; `earl replay` shows what each was"
    warnings |= {f"{GUARD}:{name}": text for name, text in warnings_of(run.config, progress.watched).items()}
    warnings = {kind: text for kind, text in warnings.items() if text}
    for kind, text in warnings.items():
        if kind not in progress.warned:
            run.journal.event(progress.step, kind.partition(":")[0], text)
    progress.warned = (*warnings,)


def _learn(
    pipeline: StepPipeline, groups: PlayedGroups, step: int, clock: Clock, progress: Progress, distillation: float
) -> tuple[Any, dict[str, float]]:
    """The stages after rollout; `step` counts the steps of reinforcement learning from 1."""
    with clock("dispatch"):
        rows = pipeline.dispatch(groups, step)
    with clock("prepare"):
        batch = pipeline.prepare(groups, rows, progress.baselines)
    with clock("update"):
        return batch, pipeline.update(batch, step, distillation, 0.5**progress.returns) | {**pipeline.costs}


def _distillation(config: Config, progress: Progress, reward: float) -> float:
    """The weight of the teacher's labels; once it is 0, or their period is over, the teacher is not asked any more."""
    warm, weight = config.warm_start, 0.0
    if progress.teacher_return:
        weight = distillation_weight(warm.distill, reward, progress.teacher_return)
    if not weight or (warm.distill_steps and progress.step - warm.steps >= warm.distill_steps):
        progress.teacher_return = 0.0
    return weight


def _imitate(run: OpenRun, progress: Progress, clock: Clock) -> StepRecord:
    """One step of the warm start."""
    step, pipeline = progress.step, run.pipeline
    with clock("rollout"):
        demonstrate = partial(pipeline.demonstrations, step, progress.context.ceiling)
        rows = run.layouts.run_with_oom_retry(None, step, demonstrate)
    if not len(rows.lengths):
        run.journal.event(step, "skipped", "nothing was learned: every demonstration ended by a fault")
        return StepRecord({})
    log_events(run.journal, step, progress.context.make_room(int(rows.lengths.max())))
    pipeline.limit(progress.context.limit)
    run.layouts.record_load(step, taught_load(rows.lengths.tolist(), progress.context.limit))

    def learn() -> dict[str, float]:
        with clock("dispatch"):
            taken = pipeline.dispatch_taught(rows, step)
        with clock("update"):
            return pipeline.imitate(taken, rows.num_turns, step)

    run.layouts.choose_layout("update", step, clock)
    stats = run.layouts.run_with_oom_retry("update", step, learn)
    _count_skipped(run, progress, stats)
    return StepRecord({f"warm_start/{name}": value for name, value in stats.items()} | {**pipeline.costs})


def _count_skipped(run: OpenRun, progress: Progress, stats: Mapping[str, float]) -> None:
    """Log what an update skipped. Raises EarlError after MOST_SKIPPED skipped updates in a row."""
    skipped, learned = stats.get(SKIPPED, 0), "loss" in stats
    progress.skipped = progress.skipped + 1 if skipped and not learned else 0
    if not skipped:
        return
    extent = f"{skipped:.0f} minibatches of the update" if learned else "the whole update"
    fault = f"skipped {extent}: loss or gradient were not finite (NaN or infinite); the weights are as before"
    run.journal.event(progress.step, "skipped", fault)
    if progress.skipped >= MOST_SKIPPED:
        raise EarlError(
            f"nothing could be learned in {MOST_SKIPPED} steps in a row, up to step {progress.step}: lower rewards, "
            "algorithm.kl or learner.learning_rate, or widen learner.dtype, in a new run; its --model can be one of "
            f"the checkpoints in {run.folder.checkpoints}, which are sound"
        )


def _track(run: OpenRun, progress: Progress, groups: PlayedGroups) -> StepRecord:
    """Measure the step's contexts, forecast them, and adjust the limit if the recipe says so."""
    metrics = episode_metrics(groups)
    if run.config.placement.max_staleness:
        metrics |= staleness_metrics(groups, progress.step - 1)
    seen = progress.context.observe(growth_of(progress.step, metrics))
    metrics |= seen.metrics
    run.pipeline.limit(progress.context.limit)
    log_events(run.journal, progress.step, seen.events)
    load = load_of(metrics)
    run.layouts.record_load(progress.step, load)
    metrics |= memory_metrics(load, run.pipeline.shape, run.config.learner.micro_batch_tokens)
    return StepRecord(metrics, tokens_by_turn(trajectories_of(groups), progress.step))


def log_events(journal: Journal, step: int, events: Iterable[tuple[str, str]]) -> None:
    """Log events, given as (kind, message)."""
    for kind, message in events:
        journal.event(step, kind, message)
