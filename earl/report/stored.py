"""The stored episodes of a run: a few of its steps, from the first that kept them to the last."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from earl.errors import EarlError
from earl.report.choice import StoredEpisode, choose
from earl.runs import trajectories
from earl.runs.folder import RunFolder
from earl.runs.storage import step_of
from earl.trajectory import Experience

MAX_STEPS = 10
"""Stored steps that episodes are taken from."""
MAX_PROBLEMS = 3
"""Unreadable files that are named one by one."""


@dataclass(frozen=True, slots=True)
class StoredEpisodes:
    """Some episodes of some stored steps."""

    steps: tuple[int, ...]
    """Those that were looked into."""
    total: int
    """How many episodes these steps have stored."""
    chosen: tuple[StoredEpisode, ...]


def stored_episodes(folder: RunFolder, limit: int, problems: list[str]) -> StoredEpisodes | None:
    """Up to `limit` varied episodes; None when there are none. What cannot be read is told in `problems`."""
    paths = sorted(folder.trajectories.glob("step-*.parquet"), key=lambda path: step_of(path) or 0)
    read: dict[Path, list[StoredEpisode]] = {}
    failures: list[str] = []
    while missing := [path for path in spread(paths, MAX_STEPS) if path not in read]:
        try:
            read[missing[0]] = _read(missing[0])
        except EarlError as error:  # another step takes its place
            failures.append(str(error))
            paths.remove(missing[0])
    problems += failures[:MAX_PROBLEMS]
    if len(failures) > MAX_PROBLEMS:
        problems.append(f"and {len(failures) - MAX_PROBLEMS} more files of trajectories in {folder.trajectories}")
    everything = [episode for path in spread(paths, MAX_STEPS) for episode in read[path]]
    if not everything:
        return None
    steps = tuple(sorted({episode.step for episode in everything}))
    return StoredEpisodes(steps, len(everything), tuple(choose(everything, limit)))


def spread(items: Sequence[Path], limit: int) -> list[Path]:
    """At most `limit` items at even distances, the first and the last among them.

    Example:
        7 items, limit 4 -> those at 0, 2, 4, 6
    """
    if len(items) <= limit:
        return list(items)
    return [items[round(place * (len(items) - 1) / (limit - 1))] for place in range(limit)]


def _read(path: Path) -> list[StoredEpisode]:
    step, groups, known = trajectories.read_whole(path)
    played = [trajectory for group in groups for trajectory in group.trajectories]
    experiences: Sequence[Experience | None] = known or [None] * len(played)
    return [
        StoredEpisode(step, number, trajectory, experience)
        for number, (trajectory, experience) in enumerate(zip(played, experiences, strict=True))
    ]
