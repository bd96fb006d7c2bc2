"""Checks that exactly the tokens sampled by the policy were learned from, in the episodes that count."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from earl.audit.case import Case
from earl.audit.findings import Fault, Finding, Said, Spoken, Unchecked
from earl.audit.rebuild import Replay
from earl.group import Group
from earl.rollout.pack import learned
from earl.trajectory import Author, Trajectory

MAX_SHIFT = 16
Mask = NDArray[np.bool_]


def check(case: Case) -> Iterator[Said]:
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
