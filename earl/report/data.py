"""All that a report reads from a run's folder, in one value. Nothing here fails because something is missing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from earl.config import Config, build, load_toml
from earl.errors import EarlError
from earl.report.model import ModelFacts, model_facts
from earl.runs import trajectories
from earl.runs.folder import RunFolder
from earl.runs.storage import step_of, storage
from earl.runs.store import Store
from earl.runs.tables import Event, RecordedMatch, Series
from earl.trajectory import Trajectory

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the run's database holds."""

    metrics: Series = field(default_factory=dict)
    timings: Series = field(default_factory=dict)
    matches: list[RecordedMatch] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class StoredEpisodes:
    """The trajectories of the latest step that kept them."""

    step: int
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True)
class RunData:
    """A run as the report sees it. Absent pieces are None or empty."""

    name: str
    recipe: str
    """The text of config.toml."""
    config: Config | None
    numbers: Numbers
    model: ModelFacts | None
    episodes: StoredEpisodes | None
    started: float | None
    """When the recipe was written, in seconds since the epoch."""
    changed: float | None
    """When the numbers were last written."""
    problems: tuple[str, ...]
    """What stands in the folder but could not be read, one sentence each."""

    @property
    def finished(self) -> bool:
        """Whether the evaluation that ends a run has been recorded."""
        return any(match.phase == "final" for match in self.numbers.matches)

    @property
    def warm_steps(self) -> int:
        """Steps of the warm start."""
        return self.config.warm_start.steps if self.config else 0


def gather(folder: RunFolder) -> RunData:
    """Read a run's folder."""
    problems: list[str] = []

    def attempt(read: Callable[[RunFolder], T], otherwise: T) -> T:
        try:
            return read(folder)
        except EarlError as error:
            problems.append(str(error))
            return otherwise

    return RunData(
        name=folder.path.resolve().name,
        recipe=attempt(_recipe, ""),
        config=attempt(_config, None),
        numbers=attempt(_numbers, Numbers()),
        model=attempt(lambda run: model_facts(run.checkpoints), None),
        episodes=_episodes(folder, problems),
        started=_modified(folder.config),
        changed=max(filter(None, map(_modified, _database_files(folder))), default=None),
        problems=tuple(problems),
    )


def _recipe(folder: RunFolder) -> str:
    with storage(folder.config):
        return folder.config.read_text(encoding="utf-8", errors="replace")


def _config(folder: RunFolder) -> Config | None:
    return build(load_toml(folder.config))


def _numbers(folder: RunFolder) -> Numbers:
    if not folder.database.is_file():
        return Numbers()
    with Store(folder.database, read_only=True) as store:
        return Numbers(store.metrics(), store.timings(), store.matches(), store.events(), store.last_step())


def _episodes(folder: RunFolder, problems: list[str]) -> StoredEpisodes | None:
    """The latest file that can be read; each damaged one is told."""
    paths = sorted(folder.trajectories.glob("step-*.parquet"), key=lambda path: step_of(path) or 0)
    for path in reversed(paths):
        try:
            step, groups = trajectories.read(path)
        except EarlError as error:
            problems.append(str(error))
            continue
        return StoredEpisodes(step, tuple(t for group in groups for t in group.trajectories))
    return None


def _database_files(folder: RunFolder) -> tuple[Path, Path]:
    return folder.database, folder.database.with_name(f"{folder.database.name}-wal")


def _modified(path: Path) -> float | None:
    return path.stat().st_mtime if path.is_file() else None
