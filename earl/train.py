"""Training: the step of the EARL paper (arXiv 2510.05943, Figure 2), the same in every process of a run.

rollout ─▶ dispatch ─▶ experience preparation ─▶ model update ─▶ weights back to the sampler ─▶ journal
"""

import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from earl import evaluate
from earl.config import Config
from earl.context.limit import ContextWatch, growth_of
from earl.context.track import tokens_by_turn
from earl.errors import EarlError
from earl.growth import ContextTokens
from earl.matches import MatchResult
from earl.observer import Observer
from earl.parallel.load import load_of, memory_metrics
from earl.placement import peers as peer_processes
from earl.placement.peers import Lost, Peers
from earl.placement.place import Here, Place, on_cluster
from earl.placement.stages import Stages
from earl.recipe import build, load_toml
from earl.rollout.metrics import episode_metrics, staleness_metrics
from earl.rollout.pack import trajectories_of
from earl.runs import checkpoint
from earl.runs.checkpoint import Checkpoint
from earl.runs.folder import RunFolder, open_existing
from earl.runs.journal import Clock, Journal
from earl.runs.storage import step_name
from earl.runs.summary import FINAL, context_limit
from earl.stopping import StopRequest, stopping_on_signals
from earl.trajectory import PlayedGroups

NEVER = (float("-inf"), float("-inf"))


@dataclass(slots=True)
class Progress:
    """Where a run stands: all that a checkpoint holds beside tensors.

    Every checkpoint is of a run that goes on, so there `finished` is always false.
    """

    step: int = 0
    best_step: int = 0
    best: tuple[float, float] = NEVER
    finished: bool = False
    saved: int = -1
    """The step of the last checkpoint that was due."""
    context: ContextWatch = field(default_factory=lambda: ContextWatch(0))

    def better(self, results: Sequence[MatchResult]) -> bool:
        """Whether results are the best so far; they are then remembered."""
        strength = evaluate.strength(results)
        if strength <= self.best:
            return False
        self.best, self.best_step = strength, self.step
        return True


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What is written down of a step."""

    metrics: dict[str, float]
    contexts: Sequence[ContextTokens] = ()


def train(
    folder: RunFolder, config: Config, place: Place, peers: Peers, stop: StopRequest, observer: Observer | None
) -> Progress:
    """Run all steps that are left; the caller holds the run's lock.

    Returns:
        where the run stands: finished, or stopped by request and ready to resume.
    """
    journal = Journal(folder, peers.rank == 0, observer.event if observer else None)
    try:
        placement, progress = place.open(checkpoint.latest(folder.checkpoints)), None
        while progress is None or not progress.finished:
            try:
                progress = progress or _begin(folder, placement, journal, peers.size, observer)
                if progress.step < config.total_steps and peers.agree(stop.raised):
                    journal.checkpoint(progress.step, placement.snapshot, asdict(progress), progress.best_step)
                    journal.settle()
                    journal.event(progress.step, "stop", "stopped by request; continue with --resume")
                    return progress
                _advance(folder, placement, journal, progress, peers, observer)
                _tell(journal, progress.step, place.notes())
            except Lost as lost:
                with suppress(Lost):
                    journal.settle()  # whoever was lost may have had a part of it to write
                place.mend(lost)
                progress = None  # on from the last checkpoint
        return progress
    finally:
        journal.close()


def _begin(
    folder: RunFolder, placement: Stages, journal: Journal, processes: int, observer: Observer | None
) -> Progress:
    """Begin a run, or continue it from its last checkpoint."""
    latest = checkpoint.latest(folder.checkpoints)
    progress = _resume(checkpoint.load(latest) if latest else None, placement, journal, processes)
    placement.limit(progress.context.limit)
    placement.sync(progress.step)
    if progress.step == 0 and progress.best == NEVER:
        _close_step(placement, journal, progress, StepRecord({}), Clock(), observer)
        journal.settle()  # from now on there is a checkpoint to go on from, whatever happens
    return progress


def _advance(
    folder: RunFolder,
    placement: Stages,
    journal: Journal,
    progress: Progress,
    peers: Peers,
    observer: Observer | None,
) -> None:
    """Do the next step, or what comes after the last."""
    if progress.step < placement.config.total_steps:
        progress.step += 1
        clock = Clock()
        record = _step(placement, journal, progress, clock)
        _close_step(placement, journal, progress, record, clock, observer)
    else:
        journal.settle()
        peers.agree(False)  # the first process has written the last checkpoint before any reads the best
        _finish(folder, placement, journal, progress, observer)


def _step(placement: Stages, journal: Journal, progress: Progress, clock: Clock) -> StepRecord:
    """One step, of imitation or of reinforcement learning."""
    step, warm = progress.step, placement.config.warm_start.steps
    if step <= warm:
        with clock("rollout"):
            rows = placement.demonstrations(step, progress.context.ceiling)
        _tell(journal, step, progress.context.make_room(int(rows.lengths.max())))
        placement.limit(progress.context.limit)
        with clock("dispatch"):
            taken = placement.dispatch_taught(rows, step)
        with clock("update"):
            stats = placement.imitate(taken, rows.num_turns, step)
        return StepRecord({f"warm_start/{name}": value for name, value in stats.items()} | {**placement.costs})
    with clock("rollout"):
        groups = placement.rollout(step)
    with clock("track"):
        record = _track(placement, journal, progress, groups)
    batch, stats = None, {}
    if placement.learned(groups):
        with clock("dispatch"):
            rows = placement.dispatch(groups, step - warm)
        with clock("prepare"):
            batch = placement.prepare(groups, rows)
        with clock("update"):
            stats = placement.update(batch, step - warm) | {**placement.costs}
    else:
        journal.event(step, "skipped", "nothing was learned: not one episode ended in a way that is learned from")
    with clock("record"):
        # After a checkpoint too: it holds the very weights that sampled these tokens, so that they can be audited.
        run = placement.config.run
        recent = 0 <= step - 1 - progress.saved <= placement.config.placement.max_staleness
        if recent or _due(step - warm, run.keep_trajectories_every, run.steps):
            journal.episodes(step, *placement.recorded(groups, batch))
    return StepRecord({**record.metrics, **stats}, record.contexts)


def _track(placement: Stages, journal: Journal, progress: Progress, groups: PlayedGroups) -> StepRecord:
    """Measure the step's contexts, forecast them, and let the limit follow them where the recipe says so."""
    metrics = episode_metrics(groups)
    if placement.config.placement.max_staleness:
        metrics |= staleness_metrics(groups, progress.step - 1)
    seen = progress.context.observe(growth_of(progress.step, metrics))
    metrics |= seen.metrics
    placement.limit(progress.context.limit)
    _tell(journal, progress.step, seen.events)
    metrics |= memory_metrics(load_of(metrics), placement.shape, placement.config.learner.micro_batch_tokens)
    return StepRecord(metrics, tokens_by_turn(trajectories_of(groups), progress.step))


def _tell(journal: Journal, step: int, events: Iterable[tuple[str, str]]) -> None:
    for kind, message in events:
        journal.event(step, kind, message)


def _close_step(
    placement: Stages,
    journal: Journal,
    progress: Progress,
    record: StepRecord,
    clock: Clock,
    observer: Observer | None,
) -> None:
    """Hand the weights over, evaluate, begin a checkpoint when it is time, write the step down."""
    config, step = placement.config, progress.step
    with clock("weights"):
        moved = placement.sync(step)
    record = replace(record, metrics={**record.metrics, **moved})
    results: list[MatchResult] = []
    better = False
    if step in (0, config.warm_start.steps) or _due(step, config.evaluate.every, config.total_steps):
        with clock("evaluate"):
            results = evaluate_matches(placement, config.evaluate.episodes)
        better = progress.better(results)
    if better:
        journal.event(step, "best", "the best weights so far by evaluation: fewest losses, then most wins")
    # Numbers before the checkpoint: a kill between the two repeats the step instead of losing its numbers.
    phase = phase_of(config, step)
    journal.step(step, record.metrics, clock, results, phase, record.contexts)
    if better or step == 0 or _due(step, config.run.checkpoint_every, config.total_steps):
        progress.saved = step
        with clock("checkpoint"):
            journal.checkpoint(step, placement.snapshot, asdict(progress), progress.best_step)
        journal.step(step, {}, clock, [], "")
    if observer:
        observer.step(step, record.metrics, clock.seconds, results, phase)


def _finish(
    folder: RunFolder, placement: Stages, journal: Journal, progress: Progress, observer: Observer | None
) -> None:
    """Evaluate the best weights at full length."""
    best = checkpoint.load(folder.checkpoints / step_name(progress.best_step))
    placement.restore(best.path)
    placement.limit(context_limit(best) or progress.context.limit)
    placement.sync(progress.best_step)
    results = evaluate_matches(placement, placement.config.evaluate.final_episodes)
    journal.step(progress.step, {}, Clock(), results, FINAL)
    journal.event(progress.step, "finish", f"finished; the best weights are those of step {progress.best_step}")
    progress.finished = True
    if observer:
        observer.step(progress.step, {}, {}, results, FINAL)


def evaluate_matches(placement: Stages, episodes: int) -> list[MatchResult]:
    """The recipe's evaluation of the current weights."""
    config = placement.config.evaluate
    return placement.evaluate(evaluate.matches(placement.world, config.opponents, config.exact, episodes))


def phase_of(config: Config, step: int) -> str:
    """What a step's matches belong to: "start", "warm_start" or "train"; "final" is the best weights' own."""
    if step == 0:
        return "start"
    return "warm_start" if step <= config.warm_start.steps else "train"


def _resume(saved: Checkpoint | None, placement: Stages, journal: Journal, processes: int) -> Progress:
    """Continue from a checkpoint, if there is one."""
    if saved is None:
        journal.forget_after(-1)
        journal.event(0, "start", f"started with {processes} processes")
        return Progress(context=_context_watch(placement))
    placement.resume(saved.path)
    journal.forget_after(saved.step)
    journal.event(saved.step, "resume", f"resumed from the checkpoint of step {saved.step}")
    state: dict[str, Any] = {**saved.state, "best": tuple(saved.state["best"])}
    return Progress(**{**state, "context": ContextWatch.restored(state["context"])})


def _context_watch(placement: Stages) -> ContextWatch:
    """The watch of a new run. What an automatic limit may reach was settled before the run began."""
    config = placement.config.context
    ceiling = config.ceiling or min(placement.shape.max_positions, placement.config.learner.micro_batch_tokens)
    ahead = placement.config.placement.max_staleness
    return ContextWatch(config.first_limit, ceiling if config.automatic else None, ahead=ahead)


def _due(step: int, every: int, last: int) -> bool:
    return step % every == 0 or step == last


def run(folder: RunFolder, config: Config, observer: Observer | None = None) -> Progress:
    """Train where the recipe says; the caller holds the run's lock."""
    with stopping_on_signals(observer) as stop:
        if config.placement.kind in ("colocated", "disaggregated"):
            with on_cluster(config) as place:
                return train(folder, config, place, Peers(), stop, observer)
        command = ["-m", "earl.train", str(folder.path)]
        rendezvous = folder.path.resolve() / ".peers.tmp"
        with peer_processes.together(config.run.processes, rendezvous, command) as peers:
            return train(folder, config, Here(config, peers), peers, stop, observer)


def _peer(path: str, rank: str, size: str, rendezvous: str) -> None:
    """A process beside the first: the same training, without journal and observer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides when to stop
    peer_processes.end_with_parent()
    folder = open_existing(Path(path))
    try:
        with peer_processes.joined(int(rank), int(size), Path(rendezvous)) as peers:
            config = build(load_toml(folder.config))
            train(folder, config, Here(config, peers), peers, StopRequest(), None)
    except Lost:
        sys.exit(1)  # whoever was lost, or the first process, says why
    except EarlError as error:
        sys.exit(f"process {rank}: {error}")


if __name__ == "__main__":
    _peer(*sys.argv[1:])
