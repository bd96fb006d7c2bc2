"""One stored step under audit, with the data that its checks share."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby

import numpy as np

from earl.audit.findings import CheckOutcome, Fault, Finding, Unchecked
from earl.audit.rebuild import Replay, Slot, edit, more, readings, rebuild, slots_of, written
from earl.audit.run import AuditedRun, StoredStep
from earl.trajectory import TRUNCATING, Author, Group, TrainingRecord, Trajectory, Turn

MAX_GUESSES = 64


def diagnose(replay: Replay, actions: Sequence[str]) -> list[Finding]:
    """The faults of an episode. `actions`: the step's actions, the most frequent first, to guess a missing turn."""
    if replay.fault is not None:
        return [replay.finding(Fault.WRONG_TOKEN, f"the episode cannot be replayed: {replay.fault}")]
    if not replay.same_tokens:
        return [_token_fault(replay, actions)]
    if replay.waiting:
        return [replay.finding(Fault.MISSING_TURN, "the reply to the last prompt is missing", len(replay.stored.turns))]
    return [*_lengths(replay), *_turns(replay)] or [*_authors(replay), *_rewards(replay), *_ending(replay)]


def _token_fault(replay: Replay, actions: Sequence[str]) -> Finding:
    """The cause of different tokens. A missing turn may have one of `actions`."""
    stored, played = replay.stored, replay.played
    ours, theirs = stored.tokens.tolist(), played.tokens.tolist()
    start, end, played_end = edit(ours, theirs)
    lost = len(theirs) - len(ours)
    local = not (lost or replay.waiting or len(played.turns) != len(stored.turns)) and end - start < len(ours) // 2
    if lost > 0 and ours == theirs[lost:]:
        return replay.finding(Fault.LEFT_TRUNCATION, f"the first {lost} of {len(theirs)} tokens are missing", token=0)
    if not local and ours[:1] != theirs[:1]:
        begin = f"the episode begins with {replay.quote(ours[:1])}, a prompt begins with {replay.quote(theirs[:1])}"
        return replay.finding(Fault.LEFT_TRUNCATION, f"{begin}: the tokens before are missing", token=0)
    for number, turn in enumerate(played.turns):
        if turn.action_start <= start and played_end <= turn.end and start < turn.end:
            said = (
                f"the reply's tokens {replay.quote(ours[start:end])} are stored where the action {turn.action!r} took"
            )
            return replay.finding(
                Fault.REENCODED_ACTION, f"{said} {replay.quote(theirs[start:played_end])}", number, start
            )
        if start <= turn.action_start and turn.end <= played_end and end - start < turn.end - turn.action_start:
            said = f"turn {number}, whose reply is {replay.quote(theirs[turn.action_start : turn.end])}, is missing"
            return replay.finding(Fault.MISSING_TURN, said, number, start)
    number = sum(turn.end <= start for turn in played.turns)
    if not local and (action := _missing_action(replay, number, actions)) is not None:
        said = f"a turn is missing: with the action {action!r} put before turn {number} all later tokens fit"
        return replay.finding(Fault.MISSING_TURN, said, number, start)
    if replay.waiting:
        said = f"the environment still waits after the {len(stored.turns)} stored turns, no limit is reached"
        return replay.finding(Fault.MISSING_TURN, said, len(stored.turns), start)
    author = Author(played.authors[start]).name.lower() if start < len(theirs) else "no author"
    expected, found = replay.quote(theirs[start:played_end]), replay.quote(ours[start:end])
    said = f"the replay gives {expected} ({author}), stored is {found}"
    return replay.finding(Fault.WRONG_TOKEN, said, token=start)


def _missing_action(replay: Replay, number: int, actions: Sequence[str]) -> str | None:
    """An action that makes the replay fit if its turn is put before turn `number`."""
    chat, stored = replay.world.chat, replay.stored
    for replies in readings(chat, stored):
        for action in actions[:MAX_GUESSES]:
            tried = replay.play(replay.slot, [*replies[:number], written(chat, action), *replies[number:]])
            start, end, _ = edit(stored.tokens.tolist(), tried.played.tokens.tolist())
            one_more = len(tried.played.turns) == len(replies) + 1
            if one_more and start == end and not tried.waiting and tried.fault is None:
                return action
    return None


def _lengths(replay: Replay) -> Iterator[Finding]:
    faults = {"authors": Fault.WRONG_AUTHOR, "logprobs": Fault.ALTERED_LOGPROB, "versions": Fault.WRONG_MASK}
    tokens = len(replay.stored.tokens)
    for name, fault in faults.items():
        length = len(getattr(replay.stored, name))
        if length != tokens:
            yield replay.finding(fault, f"{length} {name} stand beside {tokens} tokens")


def _turns(replay: Replay) -> Iterator[Finding]:
    """Turns that are missing, misplaced, or disagree with the tokens; also replies of a wrong length."""
    stored, played = replay.stored.turns, replay.played.turns
    if (number := _outgrown(stored, played)) is not None:
        length, room = (turns[number].end - turns[number].action_start for turns in (played, stored))
        said = f"the reply has {length} tokens where its turn has {room}: later turns stand {length - room} off"
        yield replay.finding(Fault.REENCODED_ACTION, said, number)
        return
    ours = {turn.action_start: turn for turn in stored}
    for number, turn in enumerate(played):
        found = ours.pop(turn.action_start, None)
        if found is None:
            reply = replay.quote(replay.played.tokens[turn.action_start : turn.end].tolist())
            yield replay.finding(Fault.MISSING_TURN, f"no turn is stored for the reply {reply}", number)
        else:
            yield from _turn(replay, found, turn, number)
    for turn in ours.values():
        yield replay.finding(Fault.WRONG_TURN, f"a turn is stored at token {turn.action_start}, where no reply begins")
    for number, (turn, room) in enumerate(zip(played, replay.room, strict=False)):
        yield from _length(replay, replay.played.tokens[turn.action_start : turn.end].tolist(), room, number)


def _outgrown(stored: Sequence[Turn], played: Sequence[Turn]) -> int | None:
    """The turn whose reply has a wrong length, with all later turns shifted by the same amount."""
    ends = [theirs.end - ours.end for ours, theirs in zip(stored, played, strict=False)]
    number = next((i for i, shift in enumerate(ends) if shift), None)
    if number is None or len(stored) != len(played):
        return None
    starts = [theirs.action_start - ours.action_start for ours, theirs in zip(stored, played, strict=True)]
    moved = {*ends[number:], *starts[number + 1 :]} == {ends[number]}
    return number if moved and not starts[number] else None


def _turn(replay: Replay, stored: Turn, played: Turn, number: int) -> Iterator[Finding]:
    for name in ("context_start", "prompt_start", "end", "summary"):
        expected, found = getattr(played, name), getattr(stored, name)
        if name == "context_start" and found > expected:
            said = f"the prompt is stored to begin at token {found}, it began at {expected}"
            yield replay.finding(Fault.LEFT_TRUNCATION, said, number)
        elif found != expected:
            yield replay.finding(Fault.WRONG_TURN, f"{name} is stored as {found}, the replay gives {expected}", number)
    if stored.action != played.action:
        said = f"the reply's tokens read as the action {played.action!r}, stored is the action {stored.action!r}"
        yield replay.finding(Fault.REENCODED_ACTION, said, number)


def _length(replay: Replay, reply: Sequence[int], room: int, number: int) -> Iterator[Finding]:
    end = next((place for place, token in enumerate(reply, 1) if token in replay.world.chat.stop), None)
    if len(reply) > room:
        said = f"the reply has {len(reply)} tokens, but only {room} could be sampled"
        yield replay.finding(Fault.REENCODED_ACTION, said, number)
    elif end is not None and end < len(reply):
        said = f"{len(reply) - end} tokens stand behind the reply's end"
        yield replay.finding(Fault.REENCODED_ACTION, said, number)
    elif end is None and len(reply) < room:
        said = f"the reply breaks off after {len(reply)} tokens, but no limit was reached before {room}"
        yield replay.finding(Fault.UNSEEN_TRUNCATION, said, number)


def _authors(replay: Replay) -> Iterator[Finding]:
    places = np.flatnonzero(replay.stored.authors != replay.played.authors)
    if len(places):
        first = int(places[0])
        token = replay.quote(replay.stored.tokens[first : first + 1].tolist())
        said = f"{token} was written by {_author(replay.played, first)}, stored is {_author(replay.stored, first)}"
        yield replay.finding(Fault.WRONG_AUTHOR, said + more(len(places)), token=first)


def _author(trajectory: Trajectory, place: int) -> str:
    number = int(trajectory.authors[place])
    return Author(number).name.lower() if number in list(Author) else f"author {number}, which there is not"


def _rewards(replay: Replay) -> Iterator[Finding]:
    stored, played = replay.stored.turns, replay.played.turns
    if len(stored) != len(played):
        said = f"{len(stored)} turns are stored, the replay has {len(played)}"
        yield replay.finding(Fault.WRONG_ENDING, said)
    for number, (ours, theirs) in enumerate(zip(stored, played, strict=False)):
        if ours.reward != theirs.reward:
            said = f"the turn is rewarded with {ours.reward:g}, the environment gives {theirs.reward:g}"
            yield replay.finding(Fault.SWAPPED_REWARD, said, number)


def _ending(replay: Replay) -> Iterator[Finding]:
    stored, played = replay.stored, replay.played
    if stored.stop is not played.stop:
        unseen = played.stop in TRUNCATING or stored.stop in TRUNCATING
        said = f"the episode is stored as {stored.stop}, the replay ends as {played.stop}"
        yield replay.finding(Fault.UNSEEN_TRUNCATION if unseen else Fault.WRONG_ENDING, said)
    differences = [(name, getattr(stored, name), getattr(played, name)) for name in ("outcome", "illegal")]
    if (stored.error is None) != (played.error is None):
        differences.append(("error", stored.error, played.error))
    for name, ours, theirs in differences:
        if ours != theirs:
            yield replay.finding(Fault.WRONG_ENDING, f"{name} is stored as {ours}, the replay gives {theirs}")


class Case:
    def __init__(self, run: AuditedRun, file: StoredStep) -> None:
        self.run, self.file, self.step = run, file, file.step
        self.findings: list[Finding] = []  # of the checks so far
        self.slots = slots_of(run.config, file.step, file.trajectories)
        stored = file.trajectories
        numbers = {slot: number for number, slot in enumerate(self.slots)}
        own = [Slot(episode.task, episode.seed) for episode in stored]
        self.taken = [numbers.get(slot) for slot in own]
        """Number of the slot of each stored episode; None if its task and seed match no slot of the step."""
        world, others = run.world_at(self.step), {episode.seed: episode for episode in stored}
        self.replays = [
            rebuild(world, self.step, index, episode, self._possible(index, slot), others)
            for index, (slot, episode) in enumerate(zip(own, stored, strict=True))
        ]
        actions = Counter(turn.action for episode in stored for turn in episode.turns if turn.action is not None)
        frequent = [action for action, _ in actions.most_common()]
        self.diagnoses = [diagnose(replay, frequent) for replay in self.replays]

    def _possible(self, index: int, own: Slot) -> list[Slot]:
        """Those in which an episode may have been played; own: what it says itself."""
        taken = self.taken[index]
        return [*self.slots[index:][:1], own] if taken is None else [self.slots[taken]]

    @cached_property
    def twins(self) -> dict[int, int]:
        """Duplicate episode → the episode with the same task and seed that is in the right place."""
        twins = {}
        for index, slot in enumerate(self.taken):
            if slot is not None:
                rightful = slot if self.taken[slot : slot + 1] == [slot] else self.taken.index(slot)
                if index != rightful:
                    twins[index] = rightful
        return twins

    @property
    def reported(self) -> set[int | None]:
        """Episodes in which the checks so far found something; None stands for the whole step."""
        return {finding.episode for finding in self.findings}

    def finding(self, fault: Fault, message: str, episode: int | None = None) -> Finding:
        return Finding(fault, message, self.step, episode)

    @cached_property
    def sound(self) -> list[Replay]:
        """The episodes whose tokens match their replay, with other columns of the same length; their tokens and turns
        are known from the replay, even if other parts of the file are wrong."""
        return [replay for replay in self.replays if self._whole(replay)]

    def _whole(self, replay: Replay) -> bool:
        stored = replay.stored
        same = len({len(stored.tokens), len(stored.authors), len(stored.logprobs), len(stored.versions)}) == 1
        faults = [finding.fault for finding in self.diagnoses[replay.index]]
        return same and replay.same_tokens and not replay.waiting and Fault.REENCODED_ACTION not in faults

    def true_groups(self) -> list[Group]:
        """The groups as they were played. Raises Unchecked if an episode is unknown, missing or duplicated."""
        reencoded = Fault.REENCODED_ACTION
        known = len(self.replays) == len(self.slots) and tuple(replay.slot for replay in self.sound) == self.slots
        if not known or any(finding.fault is reencoded for finding in self.findings):
            raise Unchecked("not all episodes of the step can be told")
        groups = groupby(self.sound, lambda replay: replay.slot.group)
        return [Group(tuple(replay.played for replay in members)) for _, members in groups]

    @property
    def experiences(self) -> tuple[TrainingRecord, ...]:
        """One for each stored episode. Raises Unchecked if the file has none."""
        if not self.file.experiences:
            raise Unchecked("the file does not say what was learned from")
        return self.file.experiences

    def sound_experiences(self) -> list[tuple[Replay, TrainingRecord]]:
        experiences = self.experiences
        return [(replay, experiences[replay.index]) for replay in self.sound if replay.index < len(experiences)]


Check = Callable[[Case], Iterable[CheckOutcome]]
