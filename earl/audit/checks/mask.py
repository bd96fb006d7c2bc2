"""Checks that exactly the tokens sampled by the policy were learned from, in the episodes that count."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from earl.audit.case import Case
from earl.audit.findings import Fault, Finding
from earl.audit.rebuild import Replay, more, runs
from earl.group import Group
from earl.rollout.pack import learned
from earl.trajectory import Author

MAX_SHIFT = 16
Mask = NDArray[np.bool_]


def check_mask(case: Case) -> Iterator[Finding]:
    for replay in case.sound:
        yield from _compare_masks(replay, replay.stored.sampled, "marked as sampled")
    if len(case.experiences) != len(case.replays):
        yield case.finding(Fault.WRONG_MASK, f"{len(case.experiences)} masks for {len(case.replays)} episodes")
    for replay, experience in case.sound_experiences():
        mask, played = experience.mask, replay.played
        if len(mask) != len(played.tokens):
            said = f"a mask of {len(mask)} stands beside {len(played.tokens)} tokens"
            yield replay.finding(Fault.WRONG_MASK, said)
        elif learned([Group((played,))], case.run.config.context.learn_truncated):
            yield from _compare_masks(replay, mask, "learned from")
        elif mask.any():
            said = f"the episode ended by {played.stop} and is not learned from"
            yield replay.finding(Fault.WRONG_MASK, f"{said}, but {int(mask.sum())} tokens are masked so")


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
