"""Checks that every episode of a step follows from the run's seed and is stored exactly once."""

from collections.abc import Iterator

from earl.audit.case import Case
from earl.audit.findings import Fault, Finding
from earl.audit.rebuild import Slot, slots_of
from earl.trajectory import Trajectory


def check_seeds(case: Case) -> Iterator[Finding]:
    stored, slots, found, expected = case.file.trajectories, case.slots, len(case.replays), len(case.slots)
    for index, twin in sorted(case.twins.items()):
        said = f"episode {index} has task and seed of episode {twin}: it stands in the file twice"
        yield case.finding(Fault.DUPLICATED_EPISODE, said, index)
    foreign = [index for index, slot in enumerate(case.taken) if slot is None]
    if len(foreign) > found // 2:
        said = f"{len(foreign)} of {found} episodes have other tasks and seeds than the step's"
        yield case.finding(Fault.WRONG_SEED, f"{said}: {_whose(case, stored[foreign[0]])}")
    else:
        for index in foreign:
            yield case.finding(Fault.WRONG_SEED, _differs(stored[index], slots[index : index + 1]), index)
    if found < expected:
        missing = min({*range(expected)} - {*case.taken})
        said = f"{found} episodes are stored, the recipe plays {expected}; missing is that of place {missing}"
        yield case.finding(Fault.MISSING_EPISODE, said)
    elif found > expected and not case.twins:
        yield case.finding(Fault.DUPLICATED_EPISODE, f"{found} episodes are stored, the recipe plays {expected}")
    elif found == expected:
        yield from _groups(case)


def _whose(case: Case, stored: Trajectory) -> str:
    """Describe a step with foreign episodes: which other step they belong to, if any."""
    own, config = Slot(stored.task, stored.seed), case.run.config
    for step in range(config.warm_start.steps + 1, config.total_steps + 1):
        if own in slots_of(config, step):
            return f"those of step {step}"
    return f"no step's of a run with the seed {config.run.seed}"


def _differs(stored: Trajectory, expected: tuple[Slot, ...]) -> str:
    wrong = []
    names = {"task seed": "seed", "seat": "seat", "opponent": "opponent", "environment": "env"}
    for slot in expected:
        for label, name in names.items():
            found, right = getattr(stored.task, name), getattr(slot.task, name)
            if found != right:
                wrong.append(f"the {label} is {found!r}, the run's seed gives {right!r}")
        if stored.seed != slot.seed:
            wrong.append(f"the episode's seed is {stored.seed}, the run's seed gives {slot.seed}")
    return "; ".join(wrong) or "task and seed belong to no episode of the step"


def _groups(case: Case) -> Iterator[Finding]:
    numbers = [number for number, group in enumerate(case.file.groups) for _ in group.trajectories]
    for index, (number, slot) in enumerate(zip(numbers, case.taken, strict=True)):
        played = number if slot is None else slot // case.run.config.rollout.group_size
        if played != number and index not in case.twins:
            said = f"the episode stands in group {number}, it was played in group {played}"
            yield case.finding(Fault.WRONG_GROUP, said, index)
