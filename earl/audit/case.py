"""One stored step under audit, with the data that its checks share."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from earl.agents.chat import Chat
from earl.audit.rebuild import Placing, Replay, Slot, edit, place, play_again, readings, rebuild, slots_of
from earl.audit.run import AuditedRun, StoredStep
from earl.errors import boundary
from earl.group import Group
from earl.rollout.prompt import Completion
from earl.rollout.tasks import EpisodeFactory
from earl.trajectory import TRUNCATING, Author, TrainingRecord, Trajectory, Turn


class Fault(StrEnum):
    CORRUPT_FILE = "corrupt file"
    WRONG_SEED = "wrong seed"
    WRONG_GROUP = "wrong group"
    DUPLICATED_EPISODE = "duplicated episode"
    MISSING_EPISODE = "missing episode"
    LEFT_TRUNCATION = "left truncation"
    MISSING_TURN = "missing turn"
    REENCODED_ACTION = "re-encoded action"
    WRONG_TOKEN = "wrong token"
    WRONG_TURN = "wrong turn"
    WRONG_AUTHOR = "wrong author"
    SWAPPED_REWARD = "swapped reward"
    WRONG_ENDING = "wrong ending"
    UNSEEN_TRUNCATION = "unseen truncation"
    SHIFTED_MASK = "shifted mask"
    TEMPLATE_LOSS = "loss on a template token"
    ENVIRONMENT_LOSS = "loss on an environment token"
    WRONG_MASK = "wrong mask"
    ALTERED_LOGPROB = "altered log-prob"
    STALE_WEIGHTS = "stale weights"
    WRONG_ADVANTAGE = "wrong advantage"
    WRONG_NUMBER = "wrong number"
    BAD_SIGNATURE = "bad signature"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault and its place; the message says what was expected and what was found."""

    fault: Fault
    message: str
    step: int | None = None
    episode: int | None = None
    """Index in the step's file."""
    turn: int | None = None
    token: int | None = None
    """Index in the episode's tokens."""


@dataclass(frozen=True, slots=True)
class Unchecked:
    reason: str


Said = Finding | Unchecked


@dataclass(slots=True)
class Verdict:
    check: str
    question: str
    files: int = 0
    findings: list[Finding] = field(default_factory=list)
    unchecked: dict[str, int] = field(default_factory=dict)
    """Reason for an omitted check → number of files."""

    @property
    def state(self) -> str:
        """ "failed", "passed", "partly" (some parts were not checked) or "not checked"."""
        if self.findings:
            return "failed"
        left_out = sum(self.unchecked.values())
        return "passed" if not left_out else "partly" if left_out < self.files else "not checked"


@dataclass(frozen=True, slots=True)
class Audit:
    run: str
    files: int
    episodes: int
    verdicts: tuple[Verdict, ...]

    @property
    def findings(self) -> list[Finding]:
        """The findings of all checks; those nearest to the cause come first."""
        return [finding for verdict in self.verdicts for finding in verdict.findings]


LONGEST = 60


@dataclass(frozen=True, slots=True)
class Spoken:
    """Makes findings in one episode, and quotes its tokens."""

    chat: Chat
    step: int
    episode: int

    def finding(self, fault: Fault, message: str, turn: int | None = None, token: int | None = None) -> Finding:
        return Finding(fault, message, self.step, self.episode, turn, token)

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens as quoted text; as numbers if they cannot be decoded."""
        if not tokens:
            return "nothing"
        with boundary() as fault:  # a damaged file may hold invalid token ids
            text = repr(str(self.chat.tokenizer.decode(list(tokens), skip_special_tokens=False)))
        if fault.message:
            text = f"tokens {', '.join(map(str, tokens))}"
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"

    def more(self, count: int) -> str:
        return f" (and {count - 1} more tokens)" if count > 1 else ""


MAX_GUESSES = 64


def token_fault(
    world: EpisodeFactory, replay: Replay, played: Trajectory, spoken: Spoken, actions: Sequence[str]
) -> Finding:
    """The cause of different tokens. A missing turn may have one of `actions`."""
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
    world: EpisodeFactory, replay: Replay, played: Trajectory, start: int, actions: Sequence[str]
) -> Iterator[tuple[int, str]]:
    """Missing turns whose insertion makes the replay fit: turn number and action."""
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


def turn_faults(replay: Replay, played: Trajectory, spoken: Spoken) -> Iterator[Finding]:
    """Turns that are missing, misplaced, or disagree with the tokens; also replies of a wrong length."""
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
    """The turn whose reply has a wrong length, with all later turns shifted by the same amount."""
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


def diagnose(world: EpisodeFactory, replay: Replay, step: int, actions: Sequence[str]) -> list[Finding]:
    """The faults of an episode. `actions`: the step's actions, the most frequent first, to guess a missing turn."""
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
    if len(stored.turns) != len(played.turns):
        said = f"{len(stored.turns)} turns are stored, the replay has {len(played.turns)}"
        yield spoken.finding(Fault.WRONG_ENDING, said)
    for number, (ours, theirs) in enumerate(zip(stored.turns, played.turns, strict=False)):
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


@dataclass
class Case:
    run: AuditedRun
    file: StoredStep
    world: EpisodeFactory = field(init=False)
    placing: Placing = field(init=False)
    replays: list[Replay] = field(init=False)
    diagnoses: dict[int, list[Finding]] = field(init=False)
    """Findings by episode; episodes without findings are left out."""
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        stored = self.file.trajectories
        self.world = self.run.world_at(self.step)
        self.placing = place(slots_of(self.run.config, self.step), stored)
        self.replays = [rebuild(self.world, i, episode, self._slots(i, episode)) for i, episode in enumerate(stored)]
        actions = [turn.action for episode in stored for turn in episode.turns if turn.action is not None]
        frequent = [action for action, _ in Counter(actions).most_common()]
        found = {replay.index: diagnose(self.world, replay, self.step, frequent) for replay in self.replays}
        self.diagnoses = {index: findings for index, findings in found.items() if findings}

    @property
    def step(self) -> int:
        return self.file.step

    def spoken(self, episode: int) -> Spoken:
        return Spoken(self.world.chat, self.step, episode)

    @property
    def told(self) -> set[int | None]:
        """Episodes in which the checks so far found something; None stands for the whole step."""
        return {finding.episode for finding in self.findings}

    def finding(self, fault: Fault, message: str, episode: int | None = None) -> Finding:
        return Finding(fault, message, self.step, episode)

    def sound(self) -> list[tuple[int, Trajectory]]:
        """The episodes whose tokens and turns are known; from the replay, even if other parts of the file are wrong."""
        return [(r.index, r.played) for r in self.replays if r.played is not None and self.whole(r)]

    def whole(self, replay: Replay) -> bool:
        """Whether an episode's tokens match its replay, and its other columns have the same length."""
        stored = replay.stored
        same = len({len(stored.tokens), len(stored.authors), len(stored.logprobs), len(stored.versions)}) == 1
        told = [finding.fault for finding in self.diagnoses.get(replay.index, ())]
        return same and replay.same_tokens and not replay.waiting and Fault.REENCODED_ACTION not in told

    def true_groups(self) -> list[Group] | None:
        """The groups as they were played; None if an episode is unknown, missing or duplicated."""
        size = self.run.config.rollout.group_size
        if any(finding.fault is Fault.REENCODED_ACTION for finding in self.findings):
            return None
        if self.placing.twins or len(self.replays) != len(self.placing.slots) or len(self.sound()) != len(self.replays):
            return None
        if any(replay.slot != slot for replay, slot in zip(self.replays, self.placing.slots, strict=True)):
            return None
        played = [trajectory for _, trajectory in self.sound()]
        return [Group(tuple(played[start : start + size])) for start in range(0, len(played), size)]

    def experiences(self) -> list[tuple[Replay, TrainingRecord]]:
        return [(r, e) for r, e in zip(self.replays, self.file.experiences, strict=False) if self.whole(r)]

    def _slots(self, index: int, stored: Trajectory) -> list[Slot]:
        """Task and seed, first as derived from the run's seed, then as stored."""
        own, slots, taken = Slot(stored.task, stored.seed), self.placing.slots, self.placing.taken[index]
        if taken is not None:
            return [own]
        return [slots[index], own] if index < len(slots) else [own]


Check = Callable[[Case], Iterable[Said]]
