"""The audited run: stored steps, recipe, metrics and weights. One damaged file does not hide the others."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from earl.config import MOST
from earl.engine.model import Policy, load, make
from earl.errors import EarlError
from earl.placement.fragment import episode_factory, with_context_limit
from earl.recipe import build
from earl.rollout.tasks import EpisodeFactory
from earl.runs import checkpoint, trajectories
from earl.runs.folder import RunFolder
from earl.runs.signing import SignatureError, Signer, signer
from earl.runs.storage import step_name, step_of
from earl.runs.store import Numbers, read_numbers
from earl.trajectory import Group, TrainingRecord, Trajectory


@dataclass(frozen=True, slots=True)
class StoredStep:
    path: Path
    step: int
    groups: tuple[Group, ...]
    experiences: tuple[TrainingRecord, ...]
    """One for each trajectory, or none."""
    changed: tuple[str, ...] = ()
    """Columns with a wrong checksum."""
    problem: str | None = None
    """What is wrong with the file; if it cannot be read, `groups` is empty."""

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for group in self.groups for trajectory in group.trajectories]


def read(path: Path) -> StoredStep:
    named = step_of(path) or 0
    try:
        step, groups, experiences = trajectories.read_whole(path, strict=False)
    except EarlError as error:
        return StoredStep(path, named, (), (), problem=str(error))
    problem = None if step == named else f"{path.name} holds the episodes of step {step}"
    changed = trajectories.changed(trajectories.stored(path))
    return StoredStep(path, step, tuple(groups), tuple(experiences), tuple(changed), problem)


class AuditedRun:
    """A run's folder, read for an audit. Raises EarlError if its recipe cannot be read."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.config = folder, build(folder.recipe())
        self.problems: list[str] = []  # damage outside the stored trajectories
        self.signers: list[Signer] = []  # of the run and of each of its checkpoints
        self.forged: list[str] = []  # signatures that are invalid, or required and missing
        self._policies: dict[int, Policy] = {}
        with self._noting():
            self.signers.append(signer(self.folder))

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Keep the block's error instead of raising it."""
        try:
            yield
        except SignatureError as error:
            self.forged.append(str(error))
        except EarlError as error:
            self.problems.append(str(error))

    @cached_property
    def checkpoints(self) -> dict[int, checkpoint.Checkpoint]:
        """The intact checkpoints by step; damaged ones are added to `problems`."""
        sound = {}
        for step in checkpoint.all_steps(self.folder.checkpoints):
            with self._noting():
                sound[step] = checkpoint.load(self.folder.checkpoints / step_name(step))
                self.signers.append(sound[step].signed)
        return sound

    @cached_property
    def numbers(self) -> Numbers:
        """What the database holds; nothing if it is damaged."""
        with self._noting():
            return read_numbers(self.folder.database)
        return Numbers()

    @cached_property
    def metrics(self) -> dict[int, dict[str, float]]:
        """The numbers of each step."""
        steps: defaultdict[int, dict[str, float]] = defaultdict(dict)
        for name, points in self.numbers.metrics.items():
            for step, value in points:
                steps[step][name] = value
        return dict(steps)

    @property
    def idle(self) -> tuple[str, ...]:
        """Events of steps that taught nothing, and of episodes that ended by a fault."""
        events = [event for event in self.numbers.events if event.kind in ("idle", "fault")]
        return tuple(f"step {event.step}: {event.message}" for event in events)

    def policy(self, step: int) -> Policy | None:
        """The policy of a step's checkpoint; None if there is none."""
        if step not in self.checkpoints:
            return None
        if step not in self._policies:
            self._policies.clear()  # one at a time: a model may be large
            self._policies[step] = load(self.checkpoints[step].path)
            self._policies[step].model.eval()
        return self._policies[step]

    @cached_property
    def world(self) -> EpisodeFactory:
        """Makes episodes of the run, with the recipe's first context limit."""
        stored = self.policy(max(self.checkpoints, default=-1))
        policy = stored or make(self.config.model, self.config.run.seed)
        return episode_factory(self.config, policy.tokenizer)

    def world_at(self, step: int) -> EpisodeFactory:
        """As `world`, with the context limit at the time a step's episodes began."""
        began = max(step - self.config.placement.max_staleness, min(step, self.config.warm_start.steps + 1))
        limit = self.metrics.get(began, {}).get("context/limit")
        if limit is None or not 1 <= limit <= MOST:
            return self.world
        return with_context_limit(self.world, int(limit))

    def versions(self, step: int) -> range:
        """The versions that may have sampled a step's episodes: one if rollout and learner take turns."""
        ahead = self.config.placement.max_staleness
        return range(max(step - 1 - ahead, min(step - 1, self.config.warm_start.steps)), step)
