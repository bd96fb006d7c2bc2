"""Which episodes a step must hold: derived from the run's seed alone, as training derived them."""

from collections.abc import Sequence
from dataclasses import dataclass

from earl.config import Config
from earl.rollout.tasks import draw, episode_seed
from earl.trajectory import Task, Trajectory


@dataclass(frozen=True, slots=True)
class Slot:
    """One episode of a step before it was played."""

    task: Task
    seed: int


@dataclass(frozen=True, slots=True)
class Placing:
    """Which slot each stored episode takes."""

    slots: tuple[Slot, ...]
    """The step's, in order."""
    taken: tuple[int | None, ...]
    """Slot of each stored episode; None where its task and seed belong to no slot of the step."""
    twins: dict[int, int]
    """Stored episode → the one that it has task and seed in common with and that stands where they belong."""


def slots_of(config: Config, step: int) -> tuple[Slot, ...]:
    """The episodes of a step, in the order of its file."""
    drawn = draw(config, step)
    return tuple(
        Slot(task, episode_seed(drawn.seed, number, member))
        for number, task in enumerate(drawn.tasks)
        for member in range(config.rollout.group_size)
    )


def place(slots: tuple[Slot, ...], stored: Sequence[Trajectory]) -> Placing:
    """Find the slot of every stored episode by its task and seed."""
    numbers = {slot: number for number, slot in enumerate(slots)}
    taken = tuple(numbers.get(Slot(episode.task, episode.seed)) for episode in stored)
    claims: dict[int, list[int]] = {}
    for index, slot in enumerate(taken):
        if slot is not None:
            claims.setdefault(slot, []).append(index)
    twins: dict[int, int] = {}
    for slot, members in claims.items():
        rightful = slot if slot in members else members[0]
        twins |= {index: rightful for index in members if index != rightful}
    return Placing(slots, taken, twins)
