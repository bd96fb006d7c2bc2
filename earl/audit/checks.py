"""The checks of the audit by name, in the order of their findings: the first are nearest to the cause."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from earl.algorithms.registry import algorithm
from earl.audit.case import Case, Check, Fault, Finding, Said, Spoken, Unchecked
from earl.audit.evidence import check_learned, check_logprobs, shape, versions
from earl.audit.rebuild import Replay, Slot, slots_of
from earl.config import Config
from earl.engine.model import load
from earl.group import Group
from earl.placement.embedded import embedded
from earl.placement.peers import Peers
from earl.rollout.metrics import episode_metrics, staleness_metrics
from earl.rollout.pack import charged, learned, trajectories_of
from earl.trajectory import Author, Trajectory

TOLERANCE = 1e-5
VALUES_TOLERANCE = 1e-3
"""Larger, since values are computed in other batches than in training."""


def check_advantages(case: Case) -> Iterator[Said]:
    name = case.run.config.algorithm.name
    groups = case.true_groups()
    if not case.file.experiences:
        yield Unchecked("the file does not say what was learned from")
    elif groups is None or len(case.file.experiences) != len(case.replays):
        yield Unchecked("not all episodes of the step can be told")
    elif not algorithm(name).needs_values:
        yield from _compare(case, expected_advantages(case.run.config, groups), TOLERANCE)
    elif (saved := case.run.checkpoints.get(case.step - 1)) is not None:
        yield from _compare(case, prepared_advantages(case.run.config, saved.path, groups), VALUES_TOLERANCE)
    else:
        yield Unchecked(f"{name} needs the value head of the step before, which is not kept")


def prepared_advantages(config: Config, weights: Path, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
    """As `expected_advantages`, but with values from the stored value head, as in training."""
    placement = embedded(config, Peers(), load(weights))
    placement.restore(weights)
    batch = placement.prepare(groups, placement.dispatch(groups))
    return [experience.advantages for experience in placement.recorded(groups, batch)[1]]


def expected_advantages(config: Config, groups: Sequence[Group]) -> list[NDArray[np.float32]]:
    """One array [K] per episode, one value per turn; zeros for an episode that is not learned from."""
    kept = learned(groups, config.context.learn_truncated)
    counts = [len(trajectory.turns) for trajectory in trajectories_of(kept)]
    values = np.zeros(sum(counts), np.float32)
    charges = charged(kept, config.context.length_penalty)
    turns = algorithm(config.algorithm.name).advantages(charges, values, config.algorithm).turns
    parts = np.split(turns, np.cumsum(counts)[:-1]) if counts else []
    own = {id(trajectory): part for trajectory, part in zip(trajectories_of(kept), parts, strict=True)}
    return [own.get(id(t), np.zeros(len(t.turns), np.float32)) for t in trajectories_of(groups)]


def _compare(case: Case, advantages: Sequence[NDArray[np.float32]], tolerance: float) -> Iterator[Finding]:
    for index, (expected, experience) in enumerate(zip(advantages, case.file.experiences, strict=True)):
        found = experience.advantages
        if len(expected) != len(found):
            said = f"{len(found)} advantages are stored for {len(expected)} turns"
            yield case.finding(Fault.WRONG_ADVANTAGE, said, index)
            continue
        wrong = np.flatnonzero(~(np.abs(expected - found) <= tolerance))
        if len(wrong):
            turn = int(wrong[0])
            said = f"the advantage is stored as {found[turn]:.6g}, the rewards give {expected[turn]:.6g}"
            yield case.spoken(index).finding(Fault.WRONG_ADVANTAGE, said, turn)


MAX_SHIFT = 16
Mask = NDArray[np.bool_]


def check_mask(case: Case) -> Iterator[Said]:
    for replay in case.replays:
        if replay.played is not None and case.whole(replay):
            spoken = case.spoken(replay.index)
            yield from compare(replay.stored.sampled, replay.played.sampled, replay.played, spoken, "marked as sampled")
    if not case.file.experiences:
        yield Unchecked("the file does not say what was learned from")
        return
    if len(case.file.experiences) != len(case.replays):
        yield case.finding(Fault.WRONG_MASK, f"{len(case.file.experiences)} masks for {len(case.replays)} episodes")
    for replay, experience in case.experiences():
        yield from _learned(case, replay, experience.mask)


def _learned(case: Case, replay: Replay, mask: Mask) -> Iterator[Finding]:
    played, spoken = replay.played, case.spoken(replay.index)
    assert played is not None
    if len(mask) != len(played.tokens):
        yield spoken.finding(Fault.WRONG_MASK, f"a mask of {len(mask)} stands beside {len(played.tokens)} tokens")
    elif learned([Group((played,))], case.run.config.context.learn_truncated):
        yield from compare(mask, played.sampled, played, spoken, "learned from")
    elif mask.any():
        said = f"the episode ended by {played.stop} and is not learned from, but {int(mask.sum())} tokens are masked so"
        yield spoken.finding(Fault.WRONG_MASK, said)


def compare(mask: Mask, expected: Mask, played: Trajectory, spoken: Spoken, verb: str) -> Iterator[Finding]:
    """At most one finding: how a mask differs from the expected one."""
    if len(mask) != len(expected) or np.array_equal(mask, expected):
        return
    surplus, lacking = np.flatnonzero(mask & ~expected), np.flatnonzero(expected & ~mask)
    first = int((surplus if len(surplus) else lacking)[0])
    token = spoken.text(played.tokens[first : first + 1].tolist())
    author = Author(int(played.authors[first]))
    if shift := shift_of(mask, expected):
        said = (
            f"the tokens {verb} stand {abs(shift)} {'later' if shift > 0 else 'earlier'} than those that were sampled"
        )
        yield spoken.finding(Fault.SHIFTED_MASK, said, token=first)
    elif len(surplus):
        fault = Fault.TEMPLATE_LOSS if author is Author.TEMPLATE else Fault.ENVIRONMENT_LOSS
        said = f"{token}, written by {author.name.lower()}, is {verb}, but was not sampled{spoken.more(len(surplus))}"
        yield spoken.finding(fault, said, token=first)
    else:
        said = f"{token} was sampled, but is not {verb}{spoken.more(len(lacking))}"
        yield spoken.finding(Fault.WRONG_MASK, said, token=first)


def shift_of(mask: Mask, expected: Mask) -> int:
    """The offset by which a mask, or some of its runs, is shifted; 0 if it is not shifted."""
    ours, theirs = runs(mask), runs(expected)
    for shift in (sign * size for size in range(1, MAX_SHIFT + 1) for sign in (1, -1)):
        moved = [(max(0, start + shift), min(len(mask), end + shift)) for start, end in theirs]
        moved = [(start, end) for start, end in moved if end > start]
        inner = {run for run in ours if run[0] > 0 and run[1] < len(mask)}
        edges = sum(end - start for start, end in ours if (start, end) not in inner)
        if inner and inner <= set(moved) and edges <= abs(shift) + max((e - s for s, e in theirs), default=0):
            return shift
    if len(ours) == len(theirs):
        shifts = {a[0] - b[0] for a, b in zip(ours, theirs, strict=True) if a != b and a[1] - a[0] == b[1] - b[0]}
        kept = all(a == b or a[1] - a[0] == b[1] - b[0] for a, b in zip(ours, theirs, strict=True))
        if kept and len(shifts) == 1:
            return shifts.pop()
    return 0


def runs(mask: Mask) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


CLOSE = 1e-9


def check_numbers(case: Case) -> Iterator[Said]:
    recorded = case.run.numbers(case.step)
    if not recorded:
        yield Unchecked("the database has no numbers of the step")
        return
    groups = case.true_groups()
    if groups is None:
        yield Unchecked("not all episodes of the step can be told")
        return
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


def check_seals(case: Case) -> Iterator[Said]:
    if case.told:
        return
    for column in case.file.changed:
        said = f"the column {column!r} is not as it was written: its checksum differs"
        yield case.finding(FAULTS.get(column, Fault.CORRUPT_FILE), said)


def check_seeds(case: Case) -> Iterator[Said]:
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


@dataclass(frozen=True, slots=True)
class CheckEntry:
    check: Check
    question: str


def _replayed(*faults: Fault) -> Check:
    """The findings of the replay (`earl.audit.case`) that name one of these faults."""

    def check(case: Case) -> Iterator[Said]:
        for findings in case.diagnoses.values():
            yield from (finding for finding in findings if finding.fault in faults)

    return check


FILES = "files"
"""The check that files are readable, done first."""
FILES_QUESTION = "every file is whole and is what its name says"

SIGNATURES = "signatures"
"""The check of signatures, done once per run."""
SIGNATURES_QUESTION = "the run and its checkpoints are as a trusted key signed them"

CHECKS = {
    "seeds": CheckEntry(check_seeds, "every episode is one that the run's seed asks for, and stands there once"),
    "tokens": CheckEntry(
        _replayed(Fault.LEFT_TRUNCATION, Fault.WRONG_TOKEN, Fault.REENCODED_ACTION),
        "prompts grow from the start, replayed to the same tokens",
    ),
    "turns": CheckEntry(
        _replayed(Fault.MISSING_TURN, Fault.WRONG_TURN), "every reply is a turn, and no turn is missing"
    ),
    "authors": CheckEntry(_replayed(Fault.WRONG_AUTHOR), "every token names who wrote it"),
    "rewards": CheckEntry(_replayed(Fault.SWAPPED_REWARD), "the environment, replayed, gives the same rewards"),
    "endings": CheckEntry(
        _replayed(Fault.UNSEEN_TRUNCATION, Fault.WRONG_ENDING), "episodes end as stored; no reply breaks off unseen"
    ),
    "mask": CheckEntry(check_mask, "learned from is what was sampled: no template, no environment"),
    "versions": CheckEntry(versions, "the weights of the step before sampled every token, or as old ones as may be"),
    "places": CheckEntry(shape, "log-probs stand at sampled tokens, at most 0"),
    "log-probs": CheckEntry(check_logprobs, "log-probs and draws are those of the stored weights"),
    "learned": CheckEntry(check_learned, "the learner's log-probs are those of the weights that it left"),
    "advantages": CheckEntry(check_advantages, "advantages follow from the rewards"),
    "numbers": CheckEntry(check_numbers, "the database counts what the episodes show"),
    "seals": CheckEntry(check_seals, "what no other check can tell is as it was written"),
}
