"""The stored files of a run, read as far as they can be: what is wrong with one does not hide the others."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from earl.errors import EarlError
from earl.group import Group
from earl.runs import seal, trajectories
from earl.runs.storage import step_of
from earl.trajectory import Experience, Trajectory


@dataclass(frozen=True, slots=True)
class StoredStep:
    """The episodes of one step as its file holds them."""

    path: Path
    step: int
    groups: tuple[Group, ...]
    experiences: tuple[Experience, ...]
    """One for each trajectory, or none."""
    changed: tuple[str, ...] = ()
    """Columns that are not as they were written."""
    problem: str | None = None
    """What is wrong with the file as a file; empty groups when it cannot be read at all."""

    @property
    def trajectories(self) -> list[Trajectory]:
        """All of them, group after group."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]


def files(folder: Path) -> list[Path]:
    """The files of stored steps, in order of their names' steps."""
    paths = [path for path in folder.glob("step-*.parquet") if step_of(path) is not None]
    return sorted(paths, key=lambda path: step_of(path) or 0)


def read(path: Path) -> StoredStep:
    """Read one file; a file that earl's own reader refuses is read by its columns' names where that is possible."""
    named = step_of(path) or 0
    try:
        step, groups, experiences = trajectories.read_whole(path, strict=False)
        problem = None if step == named else f"{path.name} holds the episodes of step {step}"
    except EarlError as error:
        refused = str(error)
        try:
            step, groups, experiences = _by_name(path)
        except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, OverflowError):
            return StoredStep(path, named, (), (), problem=refused)
        problem = refused
    changed = seal.changed(trajectories.stored(path))
    return StoredStep(path, step, tuple(groups), tuple(experiences), tuple(changed), problem)


def _by_name(path: Path) -> tuple[int, list[Group], list[Experience]]:
    """Columns written by another program: the types may be wider and the metadata gone."""
    table = trajectories.stored(path)
    table = table.select(trajectories.SCHEMA.names).cast(trajectories.SCHEMA)
    step = table["step"][0].as_py()
    named = {b"earl.format": trajectories.FORMAT, b"earl.step": str(step).encode()}
    table = table.replace_schema_metadata(named)
    return step, trajectories.from_table(table, strict=False), trajectories.experiences_of(table)
