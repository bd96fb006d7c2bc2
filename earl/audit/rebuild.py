"""Replays stored episodes: the environment gets the stored replies, and determines the rest of the episode.

stored episode ─▶ its replies ─▶ a new Episode of the same task and seed ─▶ what a sound file would hold
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from earl.agents.chat import Chat
from earl.config import Config
from earl.errors import boundary
from earl.rollout.episode import Episode
from earl.rollout.prompt import Completion
from earl.rollout.tasks import EpisodeFactory, draw, episode_seed
from earl.trajectory import StopReason, Task, Trajectory, Turn

# The expected episodes of a step are derived from the run's seed alone, as in training.


@dataclass(frozen=True, slots=True)
class Slot:
    task: Task
    seed: int


@dataclass(frozen=True, slots=True)
class Placing:
    """The assignment of stored episodes to slots."""

    slots: tuple[Slot, ...]
    taken: tuple[int | None, ...]
    """Slot of each stored episode; None if its task and seed match no slot of the step."""
    twins: dict[int, int]
    """Duplicate episode → the episode with the same task and seed that is in the right place."""


def slots_of(config: Config, step: int) -> tuple[Slot, ...]:
    """The slots of a step, in the order of its file."""
    drawn = draw(config, step)
    return tuple(
        Slot(task, episode_seed(drawn.seed, number, member))
        for number, task in enumerate(drawn.tasks)
        for member in range(config.rollout.group_size)
    )


def place(slots: tuple[Slot, ...], stored: Sequence[Trajectory]) -> Placing:
    numbers = {slot: number for number, slot in enumerate(slots)}
    taken = tuple(numbers.get(Slot(episode.task, episode.seed)) for episode in stored)
    claims: dict[int, list[int]] = {}
    for index, slot in enumerate(taken):
        if slot is not None:
            claims.setdefault(slot, []).append(index)
    twins: dict[int, int] = {}
    for slot, members in claims.items():
        rightful = slot if slot in members else members[0]
        twins |= {index: rightful for index in members if index != rightful}
    return Placing(slots, taken, twins)


Span = tuple[int, int]
"""First and past-last token of a reply."""


@dataclass(frozen=True, slots=True)
class Replay:
    index: int
    """Index in the file."""
    stored: Trajectory
    played: Trajectory | None
    """The replay; None if the replies could not be played."""
    waiting: bool = False
    """Whether the replay still waited for a reply after the last stored one; `played.stop` is then the stored one."""
    room: tuple[int, ...] = ()
    """Token limit of each reply."""
    fault: str | None = None
    slot: Slot | None = None

    @property
    def same_tokens(self) -> bool:
        return self.played is not None and np.array_equal(self.stored.tokens, self.played.tokens)

    @property
    def distance(self) -> int:
        return 1 << 40 if self.played is None else _distance(self.stored, self.played) + self.waiting


def rebuild(world: EpisodeFactory, index: int, stored: Trajectory, slots: Sequence[Slot]) -> Replay:
    """The best replay over possible slots (the likeliest first) and readings of the stored replies."""
    best = Replay(index, stored, None, fault="it names no replies")
    for slot in slots:
        for completions in readings(world.chat, stored):
            found = play_again(world, index, stored, slot, completions)
            if found.distance < best.distance or best.played is None:
                best = found
            if not best.distance:
                return best
    return best


def readings(chat: Chat, stored: Trajectory) -> Iterable[list[Completion]]:
    """The replies, located by turns, by versions, and by actions."""
    by_turns = [(turn.action_start, turn.end) for turn in stored.turns]
    yield completions_of(chat, stored, by_turns)
    by_versions = sampled_spans(stored)
    if by_versions != by_turns:
        yield completions_of(chat, stored, by_versions)
    yield [_as_acted(chat, stored, turn) for turn in stored.turns]


def _as_acted(chat: Chat, stored: Trajectory, turn: Turn) -> Completion:
    """The reply of a turn, re-encoded from its action if its tokens disagree with the action."""
    found = completions_of(chat, stored, [(turn.action_start, turn.end)])
    if turn.action is None and found:
        return found[0]
    action = turn.action or ""
    if found and found[0].finished and action in chat.decode(tuple(found[0].tokens)):
        return found[0]
    tokens = chat.written(action)
    return Completion(tokens, [0.0] * len(tokens), [0] * len(tokens), True)


def completions_of(chat: Chat, stored: Trajectory, spans: Sequence[Span]) -> list[Completion]:
    """The stored replies at the given spans; parts outside the tokens are ignored."""
    replies = []
    for start, end in spans:
        tokens = stored.tokens[max(0, start) : max(0, end)].tolist()
        if not tokens:
            continue
        logprobs = stored.logprobs[start:end].tolist()
        logprobs += [0.0] * (len(tokens) - len(logprobs))
        versions = [max(0, version) for version in stored.versions[start:end].tolist()]
        versions += [0] * (len(tokens) - len(versions))
        replies.append(Completion(tokens, logprobs, versions, tokens[-1] in chat.stop))
    return replies


def sampled_spans(stored: Trajectory) -> list[Span]:
    runs = groupby(enumerate(stored.sampled.tolist()), key=lambda item: item[1])
    places = [[place for place, _ in members] for sampled, members in runs if sampled]
    return [(run[0], run[-1] + 1) for run in places]


def play_again(
    world: EpisodeFactory, index: int, stored: Trajectory, slot: Slot, completions: Sequence[Completion]
) -> Replay:
    room = []
    with boundary() as fault:  # a damaged file may make tokenizer, players or environment fail
        episode = world.episode(slot.task, slot.seed, 0)
        for completion in completions:
            if episode.stop is not None:
                break
            room.append(episode.prompt().max_tokens)
            episode.receive(completion)
        waiting = episode.stop is None
        played = _left(episode, stored.stop)
    if fault.message:
        return Replay(index, stored, None, fault=fault.message)
    return Replay(index, stored, played, waiting, tuple(room), None, slot)


def _left(episode: Episode, otherwise: StopReason) -> Trajectory:
    if episode.stop is None:
        episode.stop = otherwise
    return episode.trajectory()


def _distance(stored: Trajectory, played: Trajectory) -> int:
    """0 if equal. Tokens weigh most, then authors and sampled marks, then the rest."""
    tokens = edit(stored.tokens.tolist(), played.tokens.tolist())
    if tokens is not None:
        start, ours, theirs = tokens
        return (1 + max(ours, theirs) - start) << 20
    wrong = 0
    for name in ("authors", "sampled"):
        ours_, theirs_ = getattr(stored, name), getattr(played, name)
        wrong += abs(len(ours_) - len(theirs_)) if len(ours_) != len(theirs_) else int((ours_ != theirs_).sum())
    return (wrong << 8) + (bare(stored) != bare(played))


def bare(trajectory: Trajectory) -> tuple[object, ...]:
    """Everything but arrays, task and wall times; of an error only whether there was one."""
    turns = tuple(replace(turn, seconds=0.0) for turn in trajectory.turns)
    facts = (trajectory.stop, trajectory.outcome, trajectory.illegal, trajectory.error is not None)
    return (turns, *facts)


def edit(stored: Sequence[int], played: Sequence[int]) -> tuple[int, int, int] | None:
    """The one stretch in which two sequences differ: start, end in the first, end in the second."""
    if stored == played:
        return None
    shorter = min(len(stored), len(played))
    head = next((i for i in range(shorter) if stored[i] != played[i]), shorter)
    tail = next((i for i in range(shorter - head) if stored[-1 - i] != played[-1 - i]), shorter - head)
    return head, len(stored) - tail, len(played) - tail
