"""A run's state, read from its folder without disturbing it."""

import math
import os
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from earl.config import MOST, Config
from earl.errors import EarlError
from earl.recipe import build
from earl.runs import checkpoint
from earl.runs.folder import RunFolder
from earl.runs.storage import read_below, step_name, storage
from earl.runs.store import Numbers, RecordedMatch, Series, Store, files_of, read_from

FINAL = "final"
"""Phase of the matches that end a run: a run that has recorded them is finished."""
T = TypeVar("T")


class StoredRun:
    """A run as its folder had it when this was made. What cannot be read is empty or None, and told in `problems`."""

    config: Config | None
    numbers: Numbers

    def __init__(self, folder: RunFolder, before: "StoredRun | None" = None, brief: bool = False) -> None:
        """`before` is an earlier reading: its numbers stay if nothing has changed since, or if they cannot be read now.
        A brief reading leaves out metrics and timings, which take most of the time."""
        self.folder, self.name = folder, folder.path.resolve().name
        self.problems: list[str] = []  # one sentence each
        with storage(folder.config):
            # A reader leaves an empty log behind, and would leave one beside an empty database.
            written = [path for path in files_of(folder.database) if path.is_file() and path.stat().st_size]
            self.changed = max(path.stat().st_mtime for path in [folder.config, *written])
        self._recorded = folder.database in written
        if before and before.changed == self.changed and not before.problems:
            self.config, self.numbers = before.config, before.numbers
            return
        self.config = self.attempt(lambda: build(folder.recipe()), None)
        read = Store.progress if brief else Store.numbers
        self.numbers = self.from_store(read, before.numbers if before else Numbers())

    def attempt(self, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except EarlError as error:
            if str(error) not in self.problems:  # a damaged database fails in several reads
                self.problems.append(str(error))
            return otherwise

    def from_store(self, read: Callable[[Store], T], otherwise: T) -> T:
        """Read the database, if there is one yet."""
        return self.attempt(lambda: read_from(self.folder.database, read), otherwise) if self._recorded else otherwise

    @cached_property
    def state(self) -> str:
        """ "finished", "running" or "stopped"; a killed run is stopped. Raises EarlError for an odd lock file."""
        if any(match.phase == FINAL for match in self.numbers.matches):
            return "finished"
        return "running" if _writer_is_alive(self.folder) else "stopped"

    @property
    def started(self) -> float | None:
        """When the run began, by its own record: a copy of its folder has other dates."""
        return min((event.time for event in self.numbers.events), default=None)

    @property
    def step(self) -> int:
        return self.numbers.last_step or 0

    @property
    def steps(self) -> int | None:
        return self.config.total_steps if self.config else None

    @property
    def warm_steps(self) -> int:
        return self.config.warm_start.steps if self.config else 0

    @property
    def last_evaluation(self) -> list[RecordedMatch]:
        """The latest matches of one step and phase; those of the best weights once the run is finished."""
        matches = self.numbers.matches
        chosen = [match for match in matches if match.phase == FINAL] or matches
        return [match for match in chosen if (match.step, match.phase) == (chosen[-1].step, chosen[-1].phase)]

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of a metric; empty if it was not recorded."""
        return self.numbers.metrics.get(name, [])

    def last(self, name: str) -> float:
        points = self.series(name)
        return points[-1][1] if points else math.nan


def summarize(folder: RunFolder) -> StoredRun:
    """A brief reading of a run. Raises EarlError when its recipe or its numbers are damaged."""
    run = StoredRun(folder, brief=True)
    if run.problems:
        raise EarlError(run.problems[0])
    return run


def tool_use(metrics: Series) -> dict[str, dict[str, float]]:
    """By tool, of all these steps: how many calls, and of which kinds of failures, and the mean seconds of a call that
    it waited (`queue_seconds`) and ran (`run_seconds`)."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, points in sorted(metrics.items()):
        if name.startswith("tool/"):
            tool, _, what = name.removeprefix("tool/").rpartition("/")
            found.setdefault(tool, {})[what] = [(step, value) for step, value in points if math.isfinite(value)]
    use = {}
    for tool, own in found.items():
        calls = dict(own.get("calls", ()))
        use[tool] = {what: sum(value for _, value in points) for what, points in own.items()}
        for what in (what for what in own if what.endswith("_seconds")):  # means of each step, weighted by its calls
            seconds = sum(value * calls.get(step, 0.0) for step, value in own[what])
            use[tool][what] = seconds / (sum(calls.values()) or 1.0)
    return use


def chosen_checkpoint(folder: RunFolder, which: str = "best") -> checkpoint.Checkpoint:
    """A run's verified checkpoint: `which` is "best" (by evaluation), "last", or a step.
    Raises EarlError when it is missing or damaged."""
    steps = checkpoint.all_steps(folder.checkpoints)
    if not steps:
        raise EarlError(f"run {folder.name!r} has no checkpoint yet; train it with --resume {folder.name}")
    kept, last = ", ".join(map(str, steps)), steps[-1]
    if which not in ("best", "last"):
        if not (which.isascii() and which.isdigit()):
            raise EarlError(f"--checkpoint {which!r} is neither 'best', 'last' nor a step; kept are the steps {kept}")
        last = int(which)
    if last not in steps:
        raise EarlError(f"run {folder.name!r} keeps no checkpoint of step {last}; kept are the steps {kept}")
    try:
        found = checkpoint.load(folder.checkpoints / step_name(last))
        best = found.state.get("best_step", last) if which == "best" else last
        if best not in steps:
            fault = f"the checkpoint {found.path} names {best!r} as the best step; kept are the steps {kept}"
            raise EarlError(f"{fault}: name one of them with --checkpoint")
        return found if best == last else checkpoint.load(folder.checkpoints / step_name(best))
    except checkpoint.Damaged as error:
        whole, _ = checkpoint.newest_whole(folder.checkpoints)
        cure = f"choose a whole one with --checkpoint {whole.step}" if whole else "start a new run"
        raise checkpoint.Damaged(error.path, error.fault, f"; {cure}") from error


def context_limit(saved: checkpoint.Checkpoint) -> int | None:
    """The context limit in tokens at a checkpoint; None in checkpoints of an earl that kept none."""
    context = saved.state.get("context")
    limit = context.get("limit") if isinstance(context, dict) else None
    if context is not None and (type(limit) is not int or not 1 <= limit <= MOST):
        raise EarlError(f"the checkpoint {saved.path} has the context limit {limit!r}: it is not one that earl saved")
    return limit


def _writer_is_alive(folder: RunFolder) -> bool:
    """Whether the process named in the lock file is alive. The lock is not tried: that would disturb a starting run."""
    if not folder.lock.exists():
        return False
    with storage(folder.lock):
        holder = read_below(folder.path, folder.lock).decode(errors="replace").strip()
    if not (holder.isascii() and holder.isdigit() and len(holder) < 20):
        return False
    try:
        os.kill(int(holder), 0)
    except PermissionError:
        return True  # another user's process, but alive
    except (ProcessLookupError, OverflowError):
        return False
    return True
