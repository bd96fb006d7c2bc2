"""What a run writes down, step by step. One process of a run keeps the journal; the others' writes do nothing."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from earl.group import Group
from earl.matches import MatchResult
from earl.runs import checkpoint, trajectories
from earl.runs.folder import RunFolder
from earl.runs.store import Store
from earl.runs.tables import RecordedDecision
from earl.trajectory import ContextTokens, TrainingRecord

KEPT_CHECKPOINTS = 2


class Clock:
    """Seconds by stage of one step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - began


class Journal:
    """Writes a run's database, trajectories and checkpoints, or nothing when `keeps` is false.

    A checkpoint is written in the background, one at a time; `settle` waits for it.
    """

    def __init__(self, folder: RunFolder, keeps: bool, heard: Callable[[int, str, str], None] | None = None) -> None:
        """Begin; `heard` is told every event that is noted."""
        self._folder, self._heard = folder, heard
        self._store = Store(folder.database) if keeps else None
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Future[None] | None = None

    def forget_after(self, step: int, best: int = -1) -> None:
        """Drop what was written of later steps; a resumed run does them again, identically.

        Args:
            best: the step of the best weights; checkpoints that a killed process had no time to remove go too.
        """
        if self._store:
            self._store.forget_after(step)
            trajectories.forget_after(self._folder.trajectories, step)
            checkpoint.prune(self._folder.checkpoints, KEPT_CHECKPOINTS, {best})

    def step(
        self,
        step: int,
        metrics: Mapping[str, float],
        clock: Clock,
        matches: Sequence[MatchResult],
        phase: str,
        contexts: Sequence[ContextTokens] = (),
    ) -> None:
        """Write a step's numbers in one transaction."""
        if self._store:
            self._store.record_step(step, metrics, clock.seconds, matches, phase, contexts)

    def episodes(self, step: int, groups: Sequence[Group], experiences: Sequence[TrainingRecord]) -> None:
        """Keep a step's trajectories, and what the learner made of each."""
        if self._store:
            path = trajectories.path_of(self._folder.trajectories, step)
            trajectories.write(path, trajectories.to_table(groups, step, experiences))

    def decision(self, decision: RecordedDecision) -> None:
        """Keep what a stage runs in, and why."""
        if self._store:
            self._store.decision(decision)

    def event(self, step: int, kind: str, message: str) -> None:
        """Note that something happened now."""
        if self._store:
            self._store.event(step, kind, message)
            if self._heard:
                self._heard(step, kind, message)

    def checkpoint(
        self, step: int, snapshot: Callable[[], Callable[[Path], None]], state: Mapping[str, Any], best: int
    ) -> None:
        """Begin to save a checkpoint, once the one before is there; the last ones and the best stay.

        Args:
            snapshot: copies what is now; the result writes the copy into a folder, in a thread of its own.
            state: is written along, so nobody may change it any more.

        Raises:
            Exception: what befell the checkpoint before.
        """
        if self._store:
            self.settle()
            self._saving = self._writer.submit(self._save, step, snapshot(), state, best)

    def settle(self) -> None:
        """Wait until the checkpoint that is being saved is there. Raises what befell it, once."""
        if self._saving:
            saving, self._saving = self._saving, None
            saving.result()

    def fall_back(self) -> None:
        """Put damaged checkpoints aside, and note it: the run goes on from the last whole one, in all its processes.

        Raises:
            Damaged: when none is whole.
        """
        if self._store:
            whole, told = checkpoint.fall_back(self._folder.checkpoints)
            for message in told:
                self.event(whole.step if whole else 0, "damaged", message)

    def _save(self, step: int, write: Callable[[Path], None], state: Mapping[str, Any], best: int) -> None:
        checkpoint.save(self._folder.checkpoints, step, write, state)
        checkpoint.prune(self._folder.checkpoints, KEPT_CHECKPOINTS, {best})

    def close(self) -> None:
        """Close the database, once nothing is being written any more."""
        self._writer.shutdown()
        if self._store:
            self._store.close()
