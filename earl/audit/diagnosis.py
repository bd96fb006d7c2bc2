"""What is wrong with one stored episode, by its replay: the cause is named, not everything that follows from it."""

from collections.abc import Iterator, Sequence

import numpy as np

from earl.audit.findings import Fault, Finding
from earl.audit.rebuild import Replay
from earl.audit.spoken import Spoken
from earl.audit.tokens import token_fault
from earl.audit.turns import turn_faults
from earl.rollout.tasks import World
from earl.trajectory import TRUNCATING, Author, Trajectory


def diagnose(world: World, replay: Replay, step: int, actions: Sequence[str]) -> list[Finding]:
    """The faults of an episode's tokens, turns, authors, rewards and ending.

    Args:
        actions: actions of the step's episodes, the most frequent first; one of them may be the missing one.
    """
    spoken = Spoken(world.chat, step, replay.index)
    if replay.played is None:
        return [spoken.finding(Fault.WRONG_TOKEN, f"the episode cannot be replayed: {replay.fault}")]
    if not replay.same_tokens:
        return [token_fault(world, replay, replay.played, spoken, actions)]
    if replay.waiting:
        return [spoken.finding(Fault.MISSING_TURN, "the reply to the last prompt is missing", len(replay.stored.turns))]
    found = [*_lengths(replay.stored, spoken), *turn_faults(replay, replay.played, spoken)]
    if found:
        return found
    found += _authors(replay.stored, replay.played, spoken)
    found += _rewards(replay.stored, replay.played, spoken)
    found += _ending(replay.stored, replay.played, spoken)
    return found


def _lengths(stored: Trajectory, spoken: Spoken) -> Iterator[Finding]:
    faults = {"authors": Fault.WRONG_AUTHOR, "logprobs": Fault.ALTERED_LOGPROB, "versions": Fault.WRONG_MASK}
    for name, fault in faults.items():
        length = len(getattr(stored, name))
        if length != len(stored.tokens):
            yield spoken.finding(fault, f"{length} {name} stand beside {len(stored.tokens)} tokens")


def _authors(stored: Trajectory, played: Trajectory, spoken: Spoken) -> Iterator[Finding]:
    places = np.flatnonzero(stored.authors != played.authors)
    if len(places):
        first = int(places[0])
        token = spoken.text(stored.tokens[first : first + 1].tolist())
        said = f"{token} was written by {_author(played, first)}, stored is {_author(stored, first)}"
        yield spoken.finding(Fault.WRONG_AUTHOR, said + spoken.more(len(places)), token=first)


def _author(trajectory: Trajectory, place: int) -> str:
    number = int(trajectory.authors[place])
    return Author(number).name.lower() if number in list(Author) else f"author {number}, which there is not"


def _rewards(stored: Trajectory, played: Trajectory, spoken: Spoken) -> Iterator[Finding]:
    for number, (ours, theirs) in enumerate(zip(stored.turns, played.turns, strict=True)):
        if ours.reward != theirs.reward:
            said = f"the turn is rewarded with {ours.reward:g}, the environment gives {theirs.reward:g}"
            yield spoken.finding(Fault.SWAPPED_REWARD, said, number)


def _ending(stored: Trajectory, played: Trajectory, spoken: Spoken) -> Iterator[Finding]:
    if stored.stop is not played.stop:
        unseen = played.stop in TRUNCATING or stored.stop in TRUNCATING
        said = f"the episode is stored as {stored.stop}, the replay ends as {played.stop}"
        yield spoken.finding(Fault.UNSEEN_TRUNCATION if unseen else Fault.WRONG_ENDING, said)
    for name in ("outcome", "illegal"):
        ours, theirs = getattr(stored, name), getattr(played, name)
        if ours != theirs:
            yield spoken.finding(Fault.WRONG_ENDING, f"{name} is stored as {ours}, the replay gives {theirs}")
    if (stored.error is None) != (played.error is None):
        said = f"the error is stored as {stored.error!r}, the replay gives {played.error!r}"
        yield spoken.finding(Fault.WRONG_ENDING, said)
