"""A run's state, read from its folder without disturbing it."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from earl.config import MOST, Config
from earl.errors import EarlError
from earl.recipe import build
from earl.runs import checkpoint
from earl.runs.folder import RunFolder
from earl.runs.storage import read_below, step_name, storage
from earl.runs.store import Event, RecordedMatch, Series, Store, files_of

FINAL = "final"
"""Phase of the matches that end a run: a run that has recorded them is finished."""


@dataclass(frozen=True, slots=True)
class Summary:
    config: Config
    step: int  # the last step with numbers
    state: str  # "finished", "running" or "stopped"; a killed run is stopped
    matches: tuple[RecordedMatch, ...]  # the last evaluation; that of the best weights once the run is finished
    imitated: tuple[RecordedMatch, ...]  # the evaluation after the warm start
    changed: float  # last change of the numbers or the recipe; seconds since the epoch
    started: float | None  # the time of its first event; None before it


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


def summarize(folder: RunFolder) -> Summary:
    """Read a run's recipe and numbers. Raises EarlError when one of them is damaged."""
    config = build(folder.recipe())
    step, matches, events = 0, [], []
    if folder.database.is_file():
        with Store(folder.database, read_only=True) as store:
            step, matches, events = store.last_step() or 0, store.matches(), store.events()
    state = state_of(folder, matches)
    last, warm = tuple(last_evaluation(matches)), config.warm_start.steps
    imitated = tuple(match for match in matches if warm and match.step == warm)
    return Summary(config, step, state, last, imitated, changed(folder), started(events))


def started(events: Sequence[Event]) -> float | None:
    """When a run began, by its own record: a copy of its folder has other dates."""
    return min((event.time for event in events), default=None)


def last_evaluation(matches: Sequence[RecordedMatch]) -> list[RecordedMatch]:
    """The latest matches of a list in order of step; those of the best weights once the run is finished."""
    chosen = [match for match in matches if match.phase == FINAL] or matches
    return [match for match in chosen if (match.step, match.phase) == (chosen[-1].step, chosen[-1].phase)]


def state_of(folder: RunFolder, matches: Sequence[RecordedMatch]) -> str:
    if any(match.phase == FINAL for match in matches):
        return "finished"
    return "running" if _writer_is_alive(folder) else "stopped"


def changed(folder: RunFolder) -> float:
    """Last change of the numbers or the recipe; seconds since the epoch."""
    # A reader leaves an empty log behind.
    written = [path for path in files_of(folder.database) if path.is_file() and path.stat().st_size]
    return max(path.stat().st_mtime for path in [folder.config, *written])


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
