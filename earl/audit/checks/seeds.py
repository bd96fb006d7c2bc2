"""Checks that every episode of a step follows from the run's seed and is stored exactly once."""

from collections.abc import Iterator

from earl.audit.case import Case
from earl.audit.findings import Fault, Finding, Said
from earl.audit.rebuild import Slot, slots_of
from earl.trajectory import Trajectory


def check(case: Case) -> Iterator[Said]:
    placing, stored = case.placing, case.file.trajectories
    for index, twin in sorted(placing.twins.items()):
        said = f"episode {index} has task and seed of episode {twin}: it stands in the file twice"
        yield case.finding(Fault.DUPLICATED_EPISODE, said, index)
    foreign = [index for index, slot in enumerate(placing.taken) if slot is None]
    if len(foreign) > len(stored) // 2:
        yield case.finding(Fault.WRONG_SEED, _whole_step(case, foreign))
    else:
        for index in foreign:
            expected = placing.slots[index] if index < len(placing.slots) else None
            yield case.finding(Fault.WRONG_SEED, _differs(stored[index], expected), index)
    yield from _count(case)
    yield from _groups(case)


def _whole_step(case: Case, foreign: list[int]) -> str:
    """Describe a step with foreign episodes: which other step they belong to, if any."""
    stored = case.file.trajectories[foreign[0]]
    own = Slot(stored.task, stored.seed)
    config = case.run.config
    others = range(config.warm_start.steps + 1, config.total_steps + 1)
    other = next((step for step in others if own in slots_of(config, step)), None)
    whose = f"those of step {other}" if other is not None else f"no step's of a run with the seed {config.run.seed}"
    return (
        f"{len(foreign)} of {len(case.file.trajectories)} episodes have other tasks and seeds than the step's: {whose}"
    )


def _differs(stored: Trajectory, expected: Slot | None) -> str:
    if expected is None:
        return "task and seed belong to no episode of the step"
    names = [("task seed", "seed"), ("seat", "seat"), ("opponent", "opponent"), ("environment", "env")]
    wrong = [
        f"the {label} is {getattr(stored.task, name)!r}, the run's seed gives {getattr(expected.task, name)!r}"
        for label, name in names
        if getattr(stored.task, name) != getattr(expected.task, name)
    ]
    if stored.seed != expected.seed:
        wrong.append(f"the episode's seed is {stored.seed}, the run's seed gives {expected.seed}")
    return "; ".join(wrong)


def _count(case: Case) -> Iterator[Finding]:
    found, expected = len(case.replays), len(case.placing.slots)
    if found < expected:
        missing = sorted(set(range(expected)) - {slot for slot in case.placing.taken if slot is not None})
        said = f"{found} episodes are stored, the recipe plays {expected}; missing is that of place {missing[0]}"
        yield case.finding(Fault.MISSING_EPISODE, said)
    elif found > expected and not case.placing.twins:
        yield case.finding(Fault.DUPLICATED_EPISODE, f"{found} episodes are stored, the recipe plays {expected}")


def _groups(case: Case) -> Iterator[Finding]:
    size, index = case.run.config.rollout.group_size, 0
    for number, group in enumerate(case.file.groups):
        for _ in group.trajectories:
            slot = case.placing.taken[index]
            shifted = len(case.replays) != len(case.placing.slots)
            if slot is not None and index not in case.placing.twins and slot // size != number and not shifted:
                said = f"the episode stands in group {number}, it was played in group {slot // size}"
                yield case.finding(Fault.WRONG_GROUP, said, index)
            index += 1
