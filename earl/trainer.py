"""The training loop, the same in every process of a run.

begin, or resume ─▶ step (step.py) ─▶ weight sync ─▶ evaluation ─▶ journal, checkpoint ─▶ … ─▶ finish
"""

import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from earl import evaluation
from earl.config import Config
from earl.context.limit import ContextWatch
from earl.envs import registry
from earl.errors import EarlError
from earl.guards import IDLE
from earl.layouts import Layouts
from earl.matches import MatchResult
from earl.observer import Observer, RecordedStep
from earl.parallel.memory import peak_metrics
from earl.placement import peers as peer_processes
from earl.placement.backend import Backend, on_cluster
from earl.placement.embedded import EmbeddedBackend
from earl.placement.peers import Peers, WorkerLost
from earl.placement.pipeline import StepPipeline
from earl.profiling.campaign import add_known_measurements, measure_before_run
from earl.recipe import build
from earl.rollout.opponents import lost_games
from earl.rollout.tasks import EVALUATION
from earl.runs import checkpoint
from earl.runs.folder import RunFolder, open_existing
from earl.runs.journal import Clock, Journal
from earl.runs.storage import step_name, storage, temporary
from earl.runs.summary import FINAL, context_limit
from earl.step import NEVER, OpenRun, Progress, StepRecord, done, due, log_events, phase_of, step_of
from earl.stopping import StopRequest, stopping_on_signals


def train(
    folder: RunFolder, config: Config, place: Backend, peers: Peers, stop: StopRequest, observer: Observer | None
) -> Progress:
    """Run all remaining steps; the caller holds the run's lock.
    Returns the run's progress: finished, or stopped by request and ready to resume."""
    journal = Journal(folder, peers.rank == 0, observer)
    try:
        pipeline, progress = place.open(checkpoint.latest(folder.checkpoints)), None
        run = OpenRun(folder, pipeline, journal, Layouts(pipeline, journal))
        while progress is None or not progress.finished:
            try:
                progress = progress or _begin(run, peers.size)
                if not done(config, progress) and peers.agree(stop.raised):
                    run.checkpoint(progress)
                    journal.settle()
                    journal.event(progress.step, "stop", "stopped by request; continue with --resume")
                    return progress
                _advance(run, progress, peers)
                log_events(journal, progress.step, place.notes())
            except WorkerLost as lost:
                with suppress(WorkerLost):
                    journal.settle()  # the lost worker may have owed a part of it
                journal.fall_back()  # the replacement loads the last checkpoint
                place.mend(lost)
                progress = None  # continue from the last checkpoint
        return progress
    finally:
        journal.close()


def _begin(run: OpenRun, processes: int) -> Progress:
    """Continue from the last checkpoint, or start a run, whose first weights are evaluated and saved."""
    latest = checkpoint.latest(run.folder.checkpoints)
    progress = _resume(run, checkpoint.load(latest)) if latest else _start(run, processes)
    run.pipeline.limit(progress.context.limit)
    _sync(run, progress.step)
    if progress.step == 0 and progress.best == NEVER:
        _close_step(run, progress, StepRecord({}), Clock())
        run.journal.settle()  # from here on there is always a checkpoint to continue from
    return progress


def _advance(run: OpenRun, progress: Progress, peers: Peers) -> None:
    """Run the next step; after the last, finish."""
    if not done(run.config, progress):
        if progress.collapsed:
            _return_to_best(run, progress, peers)
        progress.step += 1
        clock = Clock()
        record = step_of(run, progress, clock)
        _close_step(run, progress, record, clock)
    else:
        _finish(run, progress, peers)


def _sync(run: OpenRun, step: int) -> Mapping[str, float]:
    """Copy the learner's weights to the rollout workers; returns metrics of the transfer."""
    return run.layouts.run_with_oom_retry(None, step, partial(run.pipeline.sync, step))


def _close_step(run: OpenRun, progress: Progress, record: StepRecord, clock: Clock) -> None:
    """Sync weights, evaluate, start a checkpoint if one is due, record the step."""
    config, step, journal = run.config, progress.step, run.journal
    with clock("weights"):
        moved = _sync(run, step)
    results: list[MatchResult] = []
    better = False
    if step in (0, config.warm_start.steps) or due(step, config.evaluate.every, config.total_steps):
        with clock("evaluate"):
            results = _evaluate(run, step, final=False)
        averaged = config.learner.ema > 0 and step == config.total_steps
        better, progress.lost = progress.better(results, averaged), lost_games(results)
        if better:
            by_evaluation = "the best weights so far by evaluation: fewest losses, then most wins"
            journal.event(step, "best", "the mean of the weights, learner.ema" if averaged else by_evaluation)
    _watch_collapse(run, progress, results)
    peaks = run.pipeline.peaks()
    run.layouts.record_peak_memory(peaks)
    metrics = {**record.metrics, **moved, **peak_metrics(peaks)}
    # Numbers before the checkpoint: a kill in between repeats the step instead of losing its numbers.
    recorded = RecordedStep(step, metrics, clock.seconds, results, phase_of(config, step))
    journal.step(recorded, record.contexts)
    if better or step == 0 or done(config, progress) or due(step, config.run.checkpoint_every, config.total_steps):
        progress.saved = step
        progress.record_checkpoint(config.pool_size)
        with clock("checkpoint"):
            run.checkpoint(progress)
        journal.step(recorded)  # again, with the seconds of the checkpoint
    journal.step_is_done(recorded)


def _watch_collapse(run: OpenRun, progress: Progress, results: Sequence[MatchResult]) -> None:
    """Raise the alarm where an evaluation is far worse than the best one."""
    rule, best = run.config.evaluate, progress.best_step
    if rule.collapse is None or not evaluation.collapsed(results, progress.best, rule.collapse):
        return
    progress.collapsed = rule.return_to_best
    fault = f"more than {rule.collapse:g} of the games that the weights of step {best} did not lose are lost"
    cure = "evaluate.return_to_best = true would go back to them"
    if rule.return_to_best:
        cure = f"learning goes on from these, at {0.5 ** (progress.returns + 1):g} of the recipe's learning rate"
    run.journal.event(progress.step, "collapse", f"{fault}; {cure}")


def _return_to_best(run: OpenRun, progress: Progress, peers: Peers) -> None:
    """Learn on from the best weights, with the optimizer's state and the baselines of then, at half the step size."""
    best = _restore_best(run, progress, peers)
    progress.baselines, progress.collapsed = Progress.restored(best.state).baselines, False
    progress.returns += 1
    _sync(run, progress.step)


def _restore_best(run: OpenRun, progress: Progress, peers: Peers) -> checkpoint.Checkpoint:
    run.journal.settle()
    peers.agree(False)  # the first process must have written the checkpoint before any process reads it
    best = checkpoint.load(run.folder.checkpoints / step_name(progress.best_step))
    with storage(best.path):
        run.pipeline.learner.restore(best.path)
    return best


def _finish(run: OpenRun, progress: Progress, peers: Peers) -> None:
    step, best = progress.best_step, _restore_best(run, progress, peers)
    run.pipeline.limit(context_limit(best) or progress.context.limit)
    _sync(run, step)
    recorded = RecordedStep(progress.step, {}, {}, _evaluate(run, progress.step, final=True), FINAL)
    run.journal.step(recorded)
    early = progress.step < run.config.total_steps
    why = f" of {progress.step}, after which none won more: they lose to no reply (evaluate.patience)" if early else ""
    run.journal.event(progress.step, "finish", f"finished; the best weights are those of step {step}{why}")
    if step == 0:
        cure = (
            "see earlier warnings and the rewards in `earl report`; set learner.learning_rate or evaluate.every lower"
        )
        run.journal.event(
            progress.step, IDLE, f"no step played better than the weights that the run began with: {cure}"
        )
    progress.finished = True
    run.journal.step_is_done(recorded)


def _evaluate(run: OpenRun, step: int, final: bool) -> list[MatchResult]:
    """The results of evaluation; what was lost by faults is logged."""
    results = evaluate_matches(run.pipeline, final)
    for result in results:
        if result.faults:
            opponent = result.opponent or "the tasks"
            counted = f"{len(result.faults)} of {result.episodes} episodes of evaluation against {opponent}"
            run.journal.event(step, "fault", f"{counted} ended by a fault, and count as lost: {result.faults[0]}")
    return results


def evaluate_matches(pipeline: StepPipeline, final: bool) -> list[MatchResult]:
    """The results against the recipe's opponents. The final ones are of games by which no weights were selected, and
    against held-out opponents too."""
    planned = []
    for one in pipeline.config.each_env():
        rule, world = one.evaluate, pipeline.world.of(one.env.name)
        if final:
            opponents = [*rule.opponents, *rule.held_out]
            planned += evaluation.matches(world, opponents, rule.exact, rule.final_episodes)
        else:
            planned += evaluation.matches(world, rule.opponents, rule.exact, rule.episodes, EVALUATION)
    return pipeline.players.evaluate(planned)


def _start(run: OpenRun, processes: int) -> Progress:
    run.journal.forget_after(-1)
    run.journal.event(0, "start", f"started with {processes} processes")
    add_known_measurements(run.layouts, run.pipeline, run.journal)
    config, context = run.config, run.config.context
    ceiling = context.ceiling or min(run.pipeline.shape.max_positions, config.learner.micro_batch_tokens)
    automatic = ceiling if context.automatic else None  # fixed before the run began
    watch = ContextWatch(context.first_limit, automatic, ahead=config.placement.max_staleness)
    return Progress(context=watch, teacher_return=run.pipeline.teacher_return())


def _resume(run: OpenRun, saved: checkpoint.Checkpoint) -> Progress:
    with storage(saved.path):
        run.pipeline.resume(saved.path)
    progress = Progress.restored(saved.state)
    run.journal.forget_after(saved.step, progress.best_step)
    run.journal.event(saved.step, "resume", f"resumed from the checkpoint of step {saved.step}")
    run.layouts.restore(progress.layouts, saved.step)
    return progress


def run(folder: RunFolder, config: Config, observer: Observer | None = None) -> Progress:
    """Train with the recipe's placement; the caller holds the run's lock."""
    with stopping_on_signals(observer) as stop:
        if config.placement.kind in ("colocated", "disaggregated"):
            if checkpoint.latest(folder.checkpoints) is None:
                measure_before_run(config, stop, observer)
            with on_cluster(config) as place:
                return train(folder, config, place, Peers(), stop, observer)
        command = ["-m", "earl.trainer", str(folder.path)]
        rendezvous = temporary(folder.path.resolve() / "peers")
        with peer_processes.start_peers(config.run.processes, rendezvous, command) as peers:
            return train(folder, config, EmbeddedBackend(config, peers), peers, stop, observer)


def _peer(path: str, rank: str, size: str, rendezvous: str) -> None:
    """A peer process: runs the same training, without journal and observer."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the first process decides when to stop
    peer_processes.end_with_parent()
    folder = open_existing(Path(path))
    try:
        with peer_processes.join_peers(int(rank), int(size), Path(rendezvous)) as peers:
            config = build(folder.recipe())
            registry.allow(*config.code)  # the first process may
            train(folder, config, EmbeddedBackend(config, peers), peers, StopRequest(), None)
    except WorkerLost:
        sys.exit(1)  # the lost worker or the first process reports the reason
    except EarlError as error:
        sys.exit(f"process {rank}: {error}")


if __name__ == "__main__":
    _peer(*sys.argv[1:])
