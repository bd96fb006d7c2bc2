"""All that a report reads from a run's folder, in one value. Nothing here fails because something is missing."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from earl.config import Config
from earl.errors import EarlError
from earl.growth import ContextTokens
from earl.recipe import build
from earl.report.model import ModelFacts, model_facts
from earl.report.stored import StoredEpisodes, stored_episodes
from earl.runs import checkpoint, numbers, signing
from earl.runs.folder import RunFolder
from earl.runs.numbers import Numbers
from earl.runs.storage import read_below, storage
from earl.runs.store import Store, files_of
from earl.runs.tables import RecordedDecision

T = TypeVar("T")

MAX_EPISODES = 200
"""Episodes that a page shows, over all its runs."""


@dataclass(frozen=True, slots=True)
class RunData:
    """A run as the report sees it. Absent pieces are None or empty."""

    name: str
    recipe: str
    """The text of config.toml."""
    config: Config | None
    numbers: Numbers
    contexts: list[ContextTokens]
    """Tokens by step, turn and author; empty for a run of an earl that did not keep them."""
    decisions: list[RecordedDecision]
    """Which layout each stage ran in, by step; empty where layouts were fixed."""
    model: ModelFacts | None
    episodes: StoredEpisodes | None
    started: float | None
    """When the recipe was written, in seconds since the epoch."""
    changed: float | None
    """When the numbers were last written."""
    signed: str
    """By whom, in words; of a run that goes on or was killed, the last checkpoint."""
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


def gather(folder: RunFolder, max_episodes: int = MAX_EPISODES) -> RunData:
    """Read a run's folder, and of its episodes up to `max_episodes`."""
    problems: list[str] = []

    def attempt(read: Callable[[RunFolder], T], otherwise: T) -> T:
        try:
            return read(folder)
        except EarlError as error:
            if str(error) not in problems:  # a damaged database is met twice
                problems.append(str(error))
            return otherwise

    return RunData(
        name=folder.path.resolve().name,
        recipe=attempt(_recipe, ""),
        config=attempt(_config, None),
        numbers=attempt(_numbers, Numbers()),
        contexts=attempt(_contexts, []) if folder.database.is_file() else [],
        decisions=attempt(_decisions, []) if folder.database.is_file() else [],
        model=attempt(lambda run: model_facts(run.checkpoints), None),
        episodes=stored_episodes(folder, max_episodes, problems),
        started=_modified(folder.config),
        changed=max(filter(None, map(_modified, files_of(folder.database))), default=None),
        signed=_signed(folder, problems),
        problems=tuple(problems),
    )


def _signed(folder: RunFolder, problems: list[str]) -> str:
    """Whose word the run stands on. A bad signature is said here and among the problems."""
    try:
        whole, last = signing.signer(folder), checkpoint.latest(folder.checkpoints)
        signed = checkpoint.signer(last) if last else signing.UNSIGNED
        if signing.UNSIGNED in (signed, whole) and signed != whole:
            return f"the run {whole.said}, its checkpoint {last and last.name} {signed.said}"
        return whole.said
    except EarlError as error:
        problems.append(str(error))
        return str(error)


def _recipe(folder: RunFolder) -> str:
    with storage(folder.config):
        return read_below(folder.path, folder.config).decode(errors="replace")


def _config(folder: RunFolder) -> Config | None:
    return build(folder.recipe())


def _numbers(folder: RunFolder) -> Numbers:
    if not folder.database.is_file():
        return Numbers()
    return numbers.read(folder.database)


def _contexts(folder: RunFolder) -> list[ContextTokens]:
    with Store(folder.database, read_only=True) as store:
        return store.contexts()


def _decisions(folder: RunFolder) -> list[RecordedDecision]:
    with Store(folder.database, read_only=True) as store:
        return store.decisions()


def _modified(path: Path) -> float | None:
    return path.stat().st_mtime if path.is_file() else None
