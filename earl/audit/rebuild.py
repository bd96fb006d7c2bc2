"""Replays stored episodes: the environment gets the stored replies, and determines the rest of the episode.

stored episode ─▶ its replies ─▶ a new Episode of the same task and seed ─▶ what a sound file would hold
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from earl.agents.chat import Chat
from earl.agents.scripted.registry import AFTER, EXPLOITER, SELF, is_self
from earl.audit.findings import Fault, Finding
from earl.config import Config
from earl.errors import EarlError, boundary
from earl.rollout.episode import Episode
from earl.rollout.self_play import PairedEpisodes
from earl.rollout.tasks import EpisodeFactory, draw, episode_seed
from earl.seeds import derive
from earl.trajectory import Completion, Task, Trajectory, Turn

LONGEST = 60  # characters of a quotation


@dataclass(frozen=True, slots=True)
class Slot:
    task: Task
    seed: int
    group: int = field(default=0, compare=False)
    game: "Slot | None" = field(default=None, compare=False)
    """Of the policy with itself, one seat of which this is: its task and seed."""

    def seat(self, number: int) -> "Slot":
        """One seat of this game."""
        return Slot(replace(self.task, seat=number), derive(self.seed, "seat", number), game=self)


def slots_of(config: Config, step: int, stored: Sequence[Trajectory]) -> tuple[Slot, ...]:
    """The slots of a step, in the order of its file. They follow from the run's seed alone, as in training; but what
    the exploiter plays, and from which seat that was lost, and where a game of the policy with itself begins, follow
    from the course of the run, and are taken as the first stored episode of the group says."""
    drawn = draw(config, step)
    courses = {one.task.seed: one.task for one in reversed(stored) if one.task.opponent.startswith((EXPLOITER, AFTER))}
    seeds, groups = {one.seed for one in stored}, list[list[Slot]]()
    for number, task in enumerate(drawn.tasks):
        known = _as_stored(task, courses.get(task.seed))
        group = [Slot(known, episode_seed(drawn.seed, number, one)) for one in range(config.rollout.group_size)]
        groups += _by_seat(group, seeds) if is_self(known.opponent) else [group]
    return tuple(replace(slot, group=number) for number, group in enumerate(filter(None, groups)) for slot in group)


def _by_seat(games: Sequence[Slot], stored: Set[int]) -> list[list[Slot]]:
    """The slots of both seats of games of the policy with itself. A game may end before a seat has a turn: it has those
    whose seeds are stored, and one where none is. A seat whose episode is missing leaves the other one no replay."""
    seats: list[list[Slot]] = [[], []]
    for game in games:
        both = [game.seat(number) for number in (0, 1)]
        some = any(one.seed in stored for one in both)
        for one, own in zip(both, seats, strict=True):
            if one.seed in stored or (not some and one.task.seat == game.task.seat):
                own.append(one)
    return seats


def _as_stored(task: Task, stored: Task | None) -> Task:
    if stored is None or task.opponent not in (EXPLOITER, SELF):
        return task
    return replace(task, opponent=stored.opponent, seat=stored.seat if task.opponent == EXPLOITER else task.seat)


@dataclass(frozen=True, slots=True)
class Replay:
    world: EpisodeFactory
    step: int
    index: int  # in the file
    stored: Trajectory
    slot: Slot
    played: Trajectory  # the replay, with the stored log-probs; if it failed, the stored episode
    waiting: bool = False
    """Whether the replay still waited for a reply after the last stored one; `played.stop` is then the stored one."""
    room: tuple[int, ...] = ()  # token limit of each reply
    fault: str | None = None  # why the replies could not be played
    others: Mapping[int, Trajectory] = field(default_factory=dict)  # the step's episodes by their seeds

    @property
    def same_tokens(self) -> bool:
        return self.fault is None and np.array_equal(self.stored.tokens, self.played.tokens)

    @property
    def distance(self) -> tuple[int, int, int]:
        """Zeros if equal. Tokens weigh most, then authors and sampled marks, then the rest."""
        if self.fault is not None:
            return 1 << 40, 0, 0
        if not self.same_tokens:
            start, ours, theirs = edit(self.stored.tokens.tolist(), self.played.tokens.tolist())
            return 1 + max(ours, theirs) - start, 0, self.waiting
        wrong = 0
        for name in ("authors", "sampled"):
            stored, played = getattr(self.stored, name), getattr(self.played, name)
            wrong += abs(len(stored) - len(played)) or int((stored != played).sum())
        return 0, wrong, (_bare(self.stored) != _bare(self.played)) + self.waiting

    def play(self, slot: Slot, replies: Sequence[Completion]) -> "Replay":
        """This replay with other replies, in another slot."""
        room = []
        with boundary() as fault:  # a damaged file may make tokenizer, players or environment fail
            episode, receive = self._begin(slot)
            for completion in replies:
                if episode.stop is not None:
                    break
                room.append(episode.prompt().max_tokens)
                receive(completion)
            waiting = episode.stop is None
            episode.stop = episode.stop or self.stored.stop
            played = episode.trajectory()
            if len(self.stored.logprobs) == len(played.tokens):
                played = replace(played, logprobs=self.stored.logprobs)
            if played.tools == self.stored.tools:  # the same calls, which took other times
                played = replace(played, tools=self.stored.tools)
        if fault.message:
            return replace(self, slot=slot, played=self.stored, fault=fault.message)
        return replace(self, slot=slot, played=played, waiting=waiting, room=tuple(room), fault=None)

    def _begin(self, slot: Slot) -> tuple[Episode, Callable[[Completion], None]]:
        """The episode of a slot at its first turn, and what gives it a reply."""
        if slot.game is None:
            episode = self.world.episode(slot.task, slot.seed, 0)
            return episode, episode.receive
        game, seat = self.world.game(slot.game.task, slot.game.seed, 0), slot.task.seat
        assert isinstance(game, PairedEpisodes), "the policy plays itself"
        other = self.others.get(slot.game.seat(1 - seat).seed)
        replies = iter(next(readings(self.world.chat, other)) if other else [])

        def follow() -> None:
            while game.stop is None and game.mover.task.seat != seat:
                if (reply := next(replies, None)) is None:
                    raise EarlError("a reply of the other seat is missing")
                game.receive(reply)

        def receive(completion: Completion) -> None:
            game.receive(completion)
            follow()

        follow()
        if own := [one for one in game.learners() if one.task.seat == seat]:
            return own[0], receive
        raise EarlError("the game ends before the seat has a turn")

    def finding(self, fault: Fault, message: str, turn: int | None = None, token: int | None = None) -> Finding:
        return Finding(fault, message, self.step, self.index, turn, token)

    def quote(self, tokens: Sequence[int]) -> str:
        """Tokens as quoted text; as numbers if they cannot be decoded."""
        if not tokens:
            return "nothing"
        with boundary() as fault:  # a damaged file may hold invalid token ids
            text = repr(str(self.world.chat.tokenizer.decode(list(tokens), skip_special_tokens=False)))
        if fault.message:
            text = f"tokens {', '.join(map(str, tokens))}"
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def more(count: int) -> str:
    return f" (and {count - 1} more tokens)" if count > 1 else ""


def rebuild(
    world: EpisodeFactory,
    step: int,
    index: int,
    stored: Trajectory,
    slots: Sequence[Slot],
    others: Mapping[int, Trajectory],
) -> Replay:
    """The best replay over possible slots (the likeliest first) and readings of the stored replies. others: the step's
    episodes by their seeds."""
    blank = Replay(world, step, index, stored, slots[0], stored, others=others)
    tried: list[Replay] = []
    for replay in (blank.play(slot, replies) for slot in slots for replies in readings(world.chat, stored)):
        if not any(replay.distance):
            return replay
        tried.append(replay)
    return min(tried, key=lambda replay: replay.distance)


def readings(chat: Chat, stored: Trajectory) -> Iterator[list[Completion]]:
    """The replies, located by turns, by versions, and by actions."""
    by_turns = [(turn.action_start, turn.end) for turn in stored.turns]
    yield _replies(chat, stored, by_turns)
    by_versions = runs(stored.sampled)
    if by_versions != by_turns:
        yield _replies(chat, stored, by_versions)
    yield [_as_acted(chat, stored, turn) for turn in stored.turns]


def _as_acted(chat: Chat, stored: Trajectory, turn: Turn) -> Completion:
    """The reply of a turn, re-encoded from its action if its tokens disagree with the action."""
    for found in _replies(chat, stored, [(turn.action_start, turn.end)]):
        if turn.action is None or (found.finished and turn.action in chat.decode(tuple(found.tokens))):
            return found
    return written(chat, turn.action or "")


def written(chat: Chat, action: str) -> Completion:
    return _reply(chat, chat.written(action), [])


def _replies(chat: Chat, stored: Trajectory, spans: Sequence[tuple[int, int]]) -> list[Completion]:
    """The stored replies from first to past-last token; parts outside the tokens are ignored."""
    places = [slice(max(0, start), max(0, end)) for start, end in spans]
    parts = [(stored.tokens[place].tolist(), stored.versions[place].tolist()) for place in places]
    return [_reply(chat, tokens, versions) for tokens, versions in parts if tokens]


def _reply(chat: Chat, tokens: list[int], versions: list[int]) -> Completion:
    """A reply as from a sampler. What the file lacks of the versions is 0; `Replay.play` takes the log-probs over."""
    known = [max(0, version) for version in versions] + [0] * (len(tokens) - len(versions))
    return Completion(tokens, [0.0] * len(tokens), known, tokens[-1] in chat.stop)


def runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and past-last place of each run of set places."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def _bare(trajectory: Trajectory) -> tuple[object, ...]:
    """Everything but arrays, task and wall times; of an error only whether there was one."""
    turns = tuple(replace(turn, seconds=0.0) for turn in trajectory.turns)
    return turns, trajectory.stop, trajectory.outcome, trajectory.illegal, trajectory.error is not None


def edit(stored: Sequence[int], played: Sequence[int]) -> tuple[int, int, int]:
    """The one stretch in which two sequences differ: start, end in the first, end in the second."""
    shorter = min(len(stored), len(played))
    head = next((i for i in range(shorter) if stored[i] != played[i]), shorter)
    tail = next((i for i in range(shorter - head) if stored[-1 - i] != played[-1 - i]), shorter - head)
    return head, len(stored) - tail, len(played) - tail
