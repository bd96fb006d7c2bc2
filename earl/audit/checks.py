"""Checks that every episode of a step follows from the run's seed and is stored exactly once."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.registry import algorithm_of
from earl.audit.case import Case
from earl.audit.findings import Fault, Finding, Unchecked
from earl.audit.rebuild import Replay, Slot, more, runs, slots_of
from earl.config import Config
from earl.engine.model import load
from earl.placement.embedded import embedded_pipeline
from earl.placement.peers import Peers
from earl.rollout.metrics import episode_metrics, staleness_metrics
from earl.rollout.pack import assign_credit, learnable, trajectories_of
from earl.trajectory import Author, Group, Trajectory

TOLERANCE = 1e-5
VALUES_TOLERANCE = 1e-3
"""Larger, since values are computed in other batches than in training."""


def check_advantages(case: Case) -> Iterator[Finding]:
    config = case.run.config
    stored, groups = case.experiences, case.true_groups()
    if len(stored) != len(case.replays):
        raise Unchecked("not all episodes of the step can be told")
    how = config.algorithm
    if not algorithm_of(config).needs_values and how.kl == how.loss_kl:
        yield from _compare(case, expected_advantages(config, groups), TOLERANCE)
    elif (saved := case.run.checkpoints.get(case.step - 1)) is not None:
        yield from _compare(case, prepared_advantages(config, saved.path, groups), VALUES_TOLERANCE)
    else:
        raise Unchecked(f"{how.name} needs the value head or the reference of the step before, which is not kept")


def prepared_advantages(config: Config, weights: Path, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
    """As `expected_advantages`, but with values from the stored value head, as in training."""
    pipeline = embedded_pipeline(config, Peers(), load(weights))
    pipeline.learner.restore(weights)
    batch = pipeline.prepare(groups, pipeline.dispatch(groups))
    return [experience.advantages for experience in pipeline.recorded(groups, batch)[1]]


def expected_advantages(config: Config, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
    """One array [K] per episode, one value per turn; zeros for an episode that is not learned from."""
    how = algorithm_of(config)
    rule = learnable(config)
    kept = rule.learned(groups)
    counts = [trajectory.num_values for trajectory in trajectories_of(kept)]
    found = assign_credit(how, groups, rule)
    turns = found.turns if found.starts is None else found.turns[found.starts]
    parts = np.split(turns, np.cumsum(counts)[:-1]) if counts else []
    own = {id(trajectory): part for trajectory, part in zip(trajectories_of(kept), parts, strict=True)}
    return [own.get(id(t), np.zeros(len(t.turns), np.float32))[: len(t.turns)] for t in trajectories_of(groups)]


def _compare(case: Case, advantages: Sequence[NDArray[np.float32]], tolerance: float) -> Iterator[Finding]:
    for index, (expected, experience) in enumerate(zip(advantages, case.file.experiences, strict=True)):
        found = experience.advantages
        if len(expected) != len(found):
            said = f"{len(found)} advantages are stored for {len(expected)} turns"
            yield case.finding(Fault.WRONG_ADVANTAGE, said, index)
        elif len(wrong := np.flatnonzero(~(np.abs(expected - found) <= tolerance))):
            turn = int(wrong[0])
            said = f"the advantage is stored as {found[turn]:.6g}, the rewards give {expected[turn]:.6g}"
            yield case.replays[index].finding(Fault.WRONG_ADVANTAGE, said, turn)


MAX_SHIFT = 16
Mask = NDArray[np.bool_]


def check_mask(case: Case) -> Iterator[Finding]:
    for replay in case.sound:
        yield from _compare_masks(replay, replay.stored.sampled, "marked as sampled")
    if len(case.experiences) != len(case.replays):
        yield case.finding(Fault.WRONG_MASK, f"{len(case.experiences)} masks for {len(case.replays)} episodes")
    learns = _learns(case)
    for replay, experience in case.sound_experiences():
        mask, played = experience.mask, replay.played
        if len(mask) != len(played.tokens):
            said = f"a mask of {len(mask)} stands beside {len(played.tokens)} tokens"
            yield replay.finding(Fault.WRONG_MASK, said)
        elif learns(played):
            yield from _compare_masks(replay, mask, "learned from")
        elif mask.any():
            said = f"the episode ended by {played.stop} and is not learned from"
            yield replay.finding(Fault.WRONG_MASK, f"{said}, but {int(mask.sum())} tokens are masked so")


def _learns(case: Case) -> Callable[[Trajectory], bool]:
    """Whether an episode as played is learned from; where flat groups are not, that takes the whole step."""
    config = case.run.config
    rule = learnable(config)
    if rule.flat:
        return lambda played: bool(rule.learned([Group((played,))]))
    kept = {id(trajectory) for trajectory in trajectories_of(rule.learned(case.true_groups()))}
    return lambda played: id(played) in kept


def _compare_masks(replay: Replay, mask: Mask, verb: str) -> Iterator[Finding]:
    """At most one finding: how a mask differs from the expected one."""
    expected = replay.played.sampled
    surplus, lacking = np.flatnonzero(mask & ~expected), np.flatnonzero(expected & ~mask)
    if not len(surplus) and not len(lacking):
        return
    first = int((surplus if len(surplus) else lacking)[0])
    token = replay.quote(replay.played.tokens[first : first + 1].tolist())
    author = Author(int(replay.played.authors[first]))
    if shift := _shift(mask, expected):
        where = f"{abs(shift)} {'later' if shift > 0 else 'earlier'} than those that were sampled"
        yield replay.finding(Fault.SHIFTED_MASK, f"the tokens {verb} stand {where}", token=first)
    elif len(surplus):
        fault = Fault.TEMPLATE_LOSS if author is Author.TEMPLATE else Fault.ENVIRONMENT_LOSS
        said = f"{token}, written by {author.name.lower()}, is {verb}, but was not sampled{more(len(surplus))}"
        yield replay.finding(fault, said, token=first)
    else:
        said = f"{token} was sampled, but is not {verb}{more(len(lacking))}"
        yield replay.finding(Fault.WRONG_MASK, said, token=first)


def _shift(mask: Mask, expected: Mask) -> int:
    """The offset by which a mask, or some of its runs, is shifted; 0 if it is not shifted.
    A run that touches an end may be what a shift pushed out or brought in from there."""
    ours, theirs = runs(mask), runs(expected)
    inner = {run for run in ours if run[0] > 0 and run[1] < len(mask)}
    edges = sum(end - start for start, end in ours if (start, end) not in inner)
    for shift in (sign * size for size in range(1, MAX_SHIFT + 1) for sign in (1, -1)):
        moved = {(max(0, start + shift), min(len(mask), end + shift)) for start, end in theirs}
        most = abs(shift) + max((end - start for start, end in theirs), default=0)
        if inner - {*theirs} and inner <= moved | {*theirs} and edges <= most:
            return shift
    return 0


CLOSE = 1e-9


def check_numbers(case: Case) -> Iterator[Finding]:
    recorded = case.run.metrics.get(case.step)
    if not recorded:
        raise Unchecked("the database has no numbers of the step")
    groups = case.true_groups()
    for name, value in (episode_metrics(groups) | staleness_metrics(groups, case.step - 1)).items():
        if name in recorded and not math.isclose(recorded[name], value, rel_tol=CLOSE, abs_tol=CLOSE):
            cut = name.startswith("truncation/") or name in ("stop/context_limit", "stop/truncated_turn")
            said = f"{name} is recorded as {recorded[name]:g}, the stored episodes give {value:g}"
            yield case.finding(Fault.UNSEEN_TRUNCATION if cut else Fault.WRONG_NUMBER, said)


FAULTS = {
    "tokens": Fault.REENCODED_ACTION,
    "authors": Fault.WRONG_AUTHOR,
    "logprobs": Fault.ALTERED_LOGPROB,
    "versions": Fault.STALE_WEIGHTS,
    "mask": Fault.WRONG_MASK,
    "advantages": Fault.WRONG_ADVANTAGE,
    "new_logprobs": Fault.ALTERED_LOGPROB,
}
"""The fault if a column was changed consistently with all other columns."""


def check_seals(case: Case) -> Iterator[Finding]:
    if case.reported:
        return
    for column in case.file.changed:
        said = f"the column {column!r} is not as it was written: its checksum differs"
        yield case.finding(FAULTS.get(column, Fault.CORRUPT_FILE), said)


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
        if own in slots_of(config, step, case.file.trajectories):
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
        played = number if slot is None else case.slots[slot].group
        if played != number and index not in case.twins:
            said = f"the episode stands in group {number}, it was played in group {played}"
            yield case.finding(Fault.WRONG_GROUP, said, index)
