"""The records of a run, step by step. One process of a run keeps the journal; writes of the others do nothing."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from earl.observer import Observer, RecordedStep
from earl.runs import checkpoint, trajectories
from earl.runs.checkpoint import Write
from earl.runs.folder import RunFolder
from earl.runs.store import RecordedDecision, Store
from earl.trajectory import ContextTokens, Group, TrainingRecord

KEPT_CHECKPOINTS = 2


class Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - began


class Journal:
    """Writes a run's database, trajectories and checkpoints, or nothing when `keeps` is false.
    Checkpoints are written in the background, one at a time; `settle` waits."""

    def __init__(self, folder: RunFolder, keeps: bool, observer: Observer | None = None) -> None:
        self._folder, self._observer = folder, observer
        self._store = Store(folder.database) if keeps else None
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Future[None] | None = None

    def forget_after(self, step: int, best: int = -1) -> None:
        """Drop records of later steps, which a resumed run repeats identically, and checkpoints that a killed process
        did not remove. `best` is the step of the best weights."""
        if self._store:
            self._store.forget_after(step)
            trajectories.forget_after(self._folder.trajectories, step)
            checkpoint.prune(self._folder.checkpoints, KEPT_CHECKPOINTS, {best})

    def step(self, step: RecordedStep, contexts: Sequence[ContextTokens] = ()) -> None:
        """Write a step's numbers in one transaction."""
        if self._store:
            self._store.record_step(step.step, step.metrics, step.timings, step.matches, step.phase, contexts)

    def step_is_done(self, step: RecordedStep) -> None:
        """Tell the observer, who gets each step once."""
        if self._observer:
            self._observer.step(step)

    def episodes(self, step: int, groups: Sequence[Group], experiences: Sequence[TrainingRecord]) -> None:
        if self._store:
            path = trajectories.path_of(self._folder.trajectories, step)
            trajectories.write(path, trajectories.to_table(groups, step, experiences))

    def decision(self, decision: RecordedDecision) -> None:
        if self._store:
            self._store.decision(decision)

    def event(self, step: int, kind: str, message: str) -> None:
        if self._store:
            self._store.event(step, kind, message)
            if self._observer:
                self._observer.event(step, kind, message)

    def checkpoint(self, step: int, snapshot: Callable[[], Write], state: Mapping[str, Any], best: int) -> None:
        """Start saving a checkpoint once the previous one is done; the last ones and the best are kept.

        `snapshot` copies the current state; its result writes the copy into a folder, in a thread of its own.
        `state` is saved with it and must not change any more. Raises the error of the previous checkpoint.
        """
        if self._store:
            self.settle()
            self._saving = self._writer.submit(self._save, step, snapshot(), state, best)

    def settle(self) -> None:
        """Wait for the checkpoint that is being saved. Raises its error, once."""
        if self._saving:
            saving, self._saving = self._saving, None
            saving.result()

    def fall_back(self) -> None:
        """Set damaged checkpoints aside and log it, so that all processes continue from the last whole one.
        Raises Damaged when none is whole."""
        if self._store:
            whole, messages = checkpoint.fall_back(self._folder.checkpoints)
            for message in messages:
                self.event(whole.step if whole else 0, "damaged", message)

    def _save(self, step: int, write: Write, state: Mapping[str, Any], best: int) -> None:
        checkpoint.save(self._folder.checkpoints, step, write, state)
        checkpoint.prune(self._folder.checkpoints, KEPT_CHECKPOINTS, {best})

    def close(self) -> None:
        self._writer.shutdown()
        if self._store:
            self._store.close()
