"""Asynchronous rollout: which groups may start, which worker plays each, and which groups the learner gets.

The learner updates in step s from version s - 1 to version s. There is capacity for the groups of
max_staleness + 1 steps, so those of step s start as soon as version s - 1 - max_staleness exists, and none of their
tokens is older: the bound needs no further rule. Groups are learned in the order in which they start. Since all start
as early as possible, any other order would break the bound: taking a fast group early means that a slow one is later
either waited for or too old.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from pydantic import TypeAdapter

from earl.config import Config
from earl.documents import parse_json
from earl.engine.sampler import Sampler
from earl.errors import EarlError
from earl.placement.fragment import RolloutFragment, group_of, with_context_limit, with_growth, with_opponents
from earl.rollout.drivers import THREADS, Playable, PromptSampler, play_one
from earl.rollout.tasks import group_episodes
from earl.runs import trajectories
from earl.runs.storage import read_below
from earl.trajectory import Group, GroupOf, Played, Task, TrajectorySummary

NO_WORKER = -1
"""In place of the worker of a group that none has begun."""


@dataclass(frozen=True, slots=True, order=True)
class Ticket:
    """A group before it is played: the `number`-th of those drawn for `step`."""

    step: int
    number: int


class Ahead:
    """Groups that have started and are not learned yet: at most (max_staleness + 1) × prompts.

    Args:
        first: the first step that learns from groups; the oldest weights used are those of the step before.
        last: the last such step.
        prompts: groups per step.
        max_staleness: versions that rollout may run ahead of the learner; 0: they take turns.
    """

    _workers: dict[Ticket, int]  # of all groups that were opened and are not learned, in order
    _outlines: dict[Ticket, GroupOf[TrajectorySummary]]  # trajectory summaries of the groups that have ended
    _taken: list[Ticket]  # the groups being learned from
    limits: dict[int, int]
    """By step, the context limit of its groups, also when they start again; for all started, unlearned steps."""
    _next: int  # the step whose groups are opened next; 0: that of the next weights

    def __init__(self, first: int, last: int, prompts: int, max_staleness: int) -> None:
        self._first, self._last, self._max_staleness = first, last, max_staleness
        self._prompts, self._room = prompts, (max_staleness + 1) * prompts
        self.restore({})

    def advance(self, version: int, limit: int) -> list[Ticket]:
        """The groups to begin now, in order. version: of the newest weights; the groups taken for it have been learned.
        limit: context tokens for newly opened steps."""
        for ticket in self._taken:
            del self._workers[ticket]
        self._taken = []
        if version >= self._first - 1:
            self._next = self._next or version + 1
            while self._next <= self._last and len(self._workers) < self._room:
                self._open(self._next, limit)
        return [ticket for ticket, worker in self.playing.items() if worker == NO_WORKER]

    def begin(self, ticket: Ticket, worker: int) -> None:
        assert self._workers[ticket] == NO_WORKER, "a group is begun once, unless it is lost"
        self._workers[ticket] = worker

    def end(self, ticket: Ticket, worker: int, group: GroupOf[TrajectorySummary]) -> None:
        assert self._workers[ticket] == worker and ticket not in self._outlines, "one worker plays a group, once"
        self._outlines[ticket] = group

    def take(self, step: int) -> list[GroupOf[TrajectorySummary]] | None:
        """The groups of the step, in order; None while one of them is still playing."""
        tickets = [Ticket(step, number) for number in range(self._prompts)]
        if not self._outlines.keys() >= {*tickets}:
            return None
        self._taken = tickets
        del self.limits[step]
        return [self._outlines.pop(ticket) for ticket in tickets]

    def lost(self, worker: int) -> list[Ticket]:
        """The unlearned groups that a lost worker was playing or held: each has to be begun again."""
        lost = [ticket for ticket, own in self._workers.items() if own == worker]
        for ticket in lost:
            self._workers[ticket] = NO_WORKER
            self._outlines.pop(ticket, None)
        return lost

    def recent(self, ticket: Ticket, group: GroupOf[Played]) -> bool:
        """Whether no token of a group is older than its step allows; the bound of a resumed run may have changed."""
        oldest = ticket.step - 1 - self._max_staleness
        return all(episode.oldest >= oldest or not episode.num_sampled for episode in group.trajectories)

    @property
    def playing(self) -> Mapping[Ticket, int]:
        """Groups that have not ended, in order, with their workers."""
        over = {*self._outlines, *self._taken}
        return {ticket: worker for ticket, worker in self._workers.items() if ticket not in over}

    @property
    def ended(self) -> Mapping[Ticket, int]:
        return {ticket: worker for ticket, worker in self._workers.items() if ticket in self._outlines}

    @property
    def taken(self) -> Mapping[Ticket, int]:
        return {ticket: self._workers[ticket] for ticket in self._taken}

    def restore(self, limits: Mapping[int, int]) -> None:
        """Reset to the steps in `limits`; everything else is dropped, as are steps beyond the capacity. Their groups
        have no workers. The caller begins and ends again those that had ended; the others start with the next
        `advance`."""
        self._workers, self._outlines, self._taken, self.limits, self._next = {}, {}, [], {}, 0
        for step in sorted(limits):
            if len(self._workers) < self._room:
                self._open(step, limits[step])

    def _open(self, step: int, limit: int) -> None:
        self.limits[step], self._next = limit, step + 1
        self._workers |= {Ticket(step, number): NO_WORKER for number in range(self._prompts)}


# Checkpoint of the groups that wait for the learner, in checkpoints/step-000010/ahead/: ahead.json,
# step-000011.parquet, … Groups still playing are not saved: they are played again from their seeds.

AHEAD = "ahead"


@dataclass(frozen=True, slots=True)
class _Started:
    """A started step: its context limit in tokens, and the numbers of its waiting groups."""

    step: int
    limit: int
    ended: list[int]


_STARTED = TypeAdapter(list[_Started])


def save(folder: Path, limits: Mapping[int, int], ended: Mapping[Ticket, Group]) -> None:
    """Write into a checkpoint's folder: the context limit of every started step, in tokens, and the waiting groups."""
    own = folder / AHEAD
    own.mkdir()
    started = []
    for step in sorted(limits):
        kept = sorted(ticket for ticket in ended if ticket.step == step)
        if kept:
            table = trajectories.to_table([ended[ticket] for ticket in kept], step)
            trajectories.write(trajectories.path_of(own, step), table)
        started.append(asdict(_Started(step, limits[step], [ticket.number for ticket in kept])))
    (own / "ahead.json").write_text(json.dumps(started), encoding="utf-8")


def load(folder: Path) -> tuple[dict[int, int], dict[Ticket, Group]]:
    """The arguments of `save`; empty for a checkpoint without them. Raises EarlError when a file is damaged."""
    own = folder / AHEAD
    if not own.exists():
        return {}, {}
    ended: dict[Ticket, Group] = {}
    try:
        started = _STARTED.validate_python(parse_json(read_below(folder, own / "ahead.json")))
        for one in started:
            if one.ended:
                _, groups = trajectories.read(trajectories.path_of(own, one.step))
                ended |= dict(zip((Ticket(one.step, number) for number in one.ended), groups, strict=True))
    except EarlError:
        raise
    except ValueError as error:
        raise EarlError(f"{own} is not what earl wrote ({error}); go on from another checkpoint") from error
    return {one.step: one.limit for one in started}, ended


FIRST_SESSION = 1 << 32
"""Sessions below are those of demonstrations and matches, which run at the same time."""


class ContinuousFragment(RolloutFragment):
    """A rollout fragment that plays on while the learner learns. One thread calls its methods; others play the
    episodes. Loaded weights apply to every later reply: later turns of an episode may be sampled with newer weights
    than its first, and each token records its version."""

    def __init__(self, config: Config, tokenizer: Any, sampler: Sampler) -> None:
        super().__init__(config, tokenizer, sampler)
        streams = with_opponents(self.sampler)
        assert isinstance(streams, PromptSampler), "episodes ask for one reply at a time"
        self._streams: PromptSampler = streams
        self._playing: dict[Ticket, Future[Group]] = {}
        self._ended: dict[Ticket, Group] = {}
        self._fault: BaseException | None = None
        self._changed = Condition()
        self._sessions = FIRST_SESSION
        self._threads = ThreadPoolExecutor(THREADS, "earl-environment")
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, name="earl-episodes", daemon=True).start()

    def start(self, step: int, tasks: Mapping[int, Task], seed: int, limit: int) -> None:
        """Start groups of a step, under a context limit of `limit` tokens. tasks: by their number in the step. seed: of
        the step's draw."""
        world = with_growth(with_context_limit(self.world, limit), self.config, step)
        for number, task in tasks.items():
            episodes = group_episodes(world, {number: task}, self.config.rollout.group_size, seed, self._sessions)
            self._sessions += self.config.rollout.episodes
            ticket = Ticket(step, number)
            future = asyncio.run_coroutine_threadsafe(self._play(episodes), self._loop)
            with self._changed:
                self._playing[ticket] = future
            future.add_done_callback(partial(self._end, ticket))

    def ended(self, step: int, seconds: float) -> dict[Ticket, Group]:
        """The groups that ended since the last call, once no group of a step up to `step` is playing. Waits at most
        `seconds`, then returns the groups so far. Raises the exception of a failed episode."""
        with self._changed:
            self._changed.wait_for(lambda: self._fault or all(one.step > step for one in self._playing), seconds)
            if self._fault:
                raise self._fault
            ended, self._ended = self._ended, {}
        return ended

    def abandon(self) -> None:
        with self._changed:
            given_up, self._playing, self._ended = self._playing, {}, {}
        for future in given_up.values():
            future.cancel()

    async def _play(self, episodes: Sequence[Playable]) -> Group:
        await asyncio.gather(*(play_one(episode, self._streams, self._threads) for episode in episodes))
        return group_of(episodes)

    def _end(self, ticket: Ticket, done: "Future[Group]") -> None:
        with self._changed:
            if self._playing.get(ticket) is not done:
                return  # abandoned
            del self._playing[ticket]
            if error := done.exception():
                self._fault = error
            else:
                self._ended[ticket] = done.result()
            self._changed.notify_all()
