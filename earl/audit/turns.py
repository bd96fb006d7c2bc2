"""Turns that do not stand where the replies are, or do not say what they say."""

from collections.abc import Iterator, Sequence

from earl.audit.findings import Fault, Finding
from earl.audit.rebuild import Replay
from earl.audit.spoken import Spoken
from earl.trajectory import Trajectory, Turn


def turn_faults(replay: Replay, played: Trajectory, spoken: Spoken) -> Iterator[Finding]:
    """Turns that are missing, misplaced, or whose action is not what the tokens say; and replies of a wrong length."""
    if (number := _outgrown(replay.stored.turns, played.turns)) is not None:
        length, room = (turns[number].end - turns[number].action_start for turns in (played.turns, replay.stored.turns))
        said = f"the reply has {length} tokens where its turn has {room}: later turns stand {length - room} off"
        yield spoken.finding(Fault.REENCODED_ACTION, said, number)
        return
    ours = {turn.action_start: turn for turn in replay.stored.turns}
    for number, turn in enumerate(played.turns):
        found = ours.pop(turn.action_start, None)
        if found is None:
            reply = spoken.text(played.tokens[turn.action_start : turn.end].tolist())
            yield spoken.finding(Fault.MISSING_TURN, f"no turn is stored for the reply {reply}", number)
        else:
            yield from _turn(found, turn, number, spoken)
    for turn in ours.values():
        yield spoken.finding(Fault.WRONG_TURN, f"a turn is stored at token {turn.action_start}, where no reply begins")
    for number, (turn, room) in enumerate(zip(played.turns, replay.room, strict=False)):
        yield from _length(played.tokens[turn.action_start : turn.end].tolist(), room, number, spoken)


def _outgrown(stored: Sequence[Turn], played: Sequence[Turn]) -> int | None:
    """The turn whose reply has another length than it says, where all later turns are off by the same."""
    if len(stored) != len(played):
        return None
    number = next(
        (i for i, (ours, theirs) in enumerate(zip(stored, played, strict=True)) if ours.end != theirs.end), -1
    )
    if number < 0 or stored[number].action_start != played[number].action_start:
        return None
    shift = played[number].end - stored[number].end
    later = zip(stored[number + 1 :], played[number + 1 :], strict=True)
    moved = all(b.action_start - a.action_start == b.end - a.end == shift for a, b in later)
    return number if moved else None


def _turn(stored: Turn, played: Turn, number: int, spoken: Spoken) -> Iterator[Finding]:
    if stored.context_start > played.context_start:
        said = f"the prompt is stored to begin at token {stored.context_start}, it began at {played.context_start}"
        yield spoken.finding(Fault.LEFT_TRUNCATION, said, number)
    for name in ("context_start", "prompt_start", "end", "summary"):
        expected, found = getattr(played, name), getattr(stored, name)
        if found != expected and not (name == "context_start" and found > expected):
            yield spoken.finding(Fault.WRONG_TURN, f"{name} is stored as {found}, the replay gives {expected}", number)
    if stored.action != played.action:
        said = f"the reply's tokens read as the action {played.action!r}, stored is the action {stored.action!r}"
        yield spoken.finding(Fault.REENCODED_ACTION, said, number)


def _length(reply: Sequence[int], room: int, number: int, spoken: Spoken) -> Iterator[Finding]:
    ended = [place for place, token in enumerate(reply) if token in spoken.chat.stop]
    if len(reply) > room:
        said = f"the reply has {len(reply)} tokens, but only {room} could be sampled"
        yield spoken.finding(Fault.REENCODED_ACTION, said, number)
    elif ended and ended[0] < len(reply) - 1:
        said = f"{len(reply) - 1 - ended[0]} tokens stand behind the reply's end"
        yield spoken.finding(Fault.REENCODED_ACTION, said, number)
    elif not ended and len(reply) < room:
        said = f"the reply breaks off after {len(reply)} tokens, but no limit was reached before {room}"
        yield spoken.finding(Fault.UNSEEN_TRUNCATION, said, number)
