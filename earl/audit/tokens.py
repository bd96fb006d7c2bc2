"""Why the tokens of a stored episode are not those of its replay."""

from collections.abc import Iterator, Sequence

from earl.audit.findings import Fault, Finding
from earl.audit.rebuild import Replay, edit, play_again, readings
from earl.audit.spoken import Spoken
from earl.rollout.prompt import Completion
from earl.rollout.tasks import World
from earl.trajectory import Author, Trajectory, Turn

MAX_GUESSES = 64
"""Actions that are tried in the place of a missing one."""


def token_fault(world: World, replay: Replay, played: Trajectory, spoken: Spoken, actions: Sequence[str]) -> Finding:
    """The cause, by where the two sequences of tokens differ and by what makes them agree.

    Args:
        actions: one of them may be the action of a missing turn.
    """
    ours, theirs = replay.stored.tokens.tolist(), played.tokens.tolist()
    difference = edit(ours, theirs)
    assert difference is not None
    start, end, played_end = difference
    lost = len(theirs) - len(ours)
    same_shape = lost == 0 and not replay.waiting and len(played.turns) == len(replay.stored.turns)
    local = same_shape and end - start < len(ours) // 2
    if lost > 0 and ours == theirs[lost:]:
        return spoken.finding(Fault.LEFT_TRUNCATION, f"the first {lost} of {len(theirs)} tokens are missing", token=0)
    if not local and ours[:1] != theirs[:1]:
        begin = f"the episode begins with {spoken.text(ours[:1])}, a prompt begins with {spoken.text(theirs[:1])}"
        return spoken.finding(Fault.LEFT_TRUNCATION, f"{begin}: what was before is missing", token=0)
    for number, turn in enumerate(played.turns):
        if turn.action_start <= start and played_end <= turn.end and start < turn.end:
            return _reencoded(spoken, number, start, ours[start:end], theirs[start:played_end], turn)
        if start <= turn.action_start and turn.end <= played_end and end - start < turn.end - turn.action_start:
            said = f"turn {number}, whose reply is {spoken.text(theirs[turn.action_start : turn.end])}, is missing"
            return spoken.finding(Fault.MISSING_TURN, said, number, start)
    if not local:
        for number, action in _insertions(world, replay, played, start, actions):
            said = f"a turn is missing: with the action {action!r} put before turn {number} all later tokens fit"
            return spoken.finding(Fault.MISSING_TURN, said, number, start)
    if replay.waiting:
        said = f"the environment still waits after the {len(replay.stored.turns)} stored turns, no limit is reached"
        return spoken.finding(Fault.MISSING_TURN, said, len(replay.stored.turns), start)
    expected, got = spoken.text(theirs[start:played_end]), spoken.text(ours[start:end])
    who = Author(played.authors[start]).name.lower() if start < len(theirs) else "nobody"
    return spoken.finding(Fault.WRONG_TOKEN, f"the replay gives {expected} ({who}), stored is {got}", token=start)


def _reencoded(
    spoken: Spoken, number: int, start: int, ours: Sequence[int], theirs: Sequence[int], turn: Turn
) -> Finding:
    said = (
        f"the reply's tokens {spoken.text(ours)} are stored where the action {turn.action!r} took {spoken.text(theirs)}"
    )
    return spoken.finding(Fault.REENCODED_ACTION, said, number, start)


def _insertions(
    world: World, replay: Replay, played: Trajectory, start: int, actions: Sequence[str]
) -> Iterator[tuple[int, str]]:
    """Turns that make the replay fit when they are put in: the place and the action."""
    stored, slot = replay.stored, replay.slot
    assert slot is not None
    number = sum(turn.end <= start for turn in played.turns)
    for replies in readings(world.chat, stored):
        for action in actions[:MAX_GUESSES]:
            tokens = world.chat.written(action)
            guess = Completion(tokens, [0.0] * len(tokens), [0] * len(tokens), True)
            tried = play_again(world, replay.index, stored, slot, [*replies[:number], guess, *replies[number:]])
            if tried.played is not None and not tried.waiting and _lacks_one_turn(stored, tried.played, len(replies)):
                yield number, action


def _lacks_one_turn(stored: Trajectory, whole: Trajectory, replies: int) -> bool:
    left = edit(stored.tokens.tolist(), whole.tokens.tolist())
    return left is not None and left[0] == left[1] and len(whole.turns) == replies + 1
