"""Asynchronous rollout: which groups may start, which worker plays each, and which groups the learner gets.

The learner updates in step s from version s - 1 to version s. The episode store has capacity for the groups of
max_staleness + 1 steps, so those of step s start as soon as version s - 1 - max_staleness exists, and none of their
tokens is older: the bound needs no further rule. Groups are learned in the order in which they start. Since all start
as early as possible, any other order would break the bound: taking a fast group early means that a slow one is later
either waited for or too old.
"""

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import Condition, Thread
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from earl.config import Config
from earl.dispatch.ledger import NOBODY, Consumer, Handout, Ledger
from earl.dispatch.rows import Numbers, columns
from earl.documents import parse_json
from earl.engine.sampler import Sampler
from earl.errors import EarlError
from earl.group import Group, GroupOf, Played, TrajectorySummary
from earl.placement.fragment import RolloutFragment, grown, limited
from earl.rollout.drivers import THREADS, Streams, play_one
from earl.rollout.episode import Episode
from earl.rollout.tasks import group_episodes
from earl.runs import trajectories
from earl.runs.storage import read_below
from earl.trajectory import Task

EPISODE = columns(["tokens"])
"""Columns of a row of the store: one episode, whole, at its worker."""
LEARNER = Consumer("learner", EPISODE, np.zeros((1, 1, 1), np.int64), in_order=True)
"""One reader: the split over learner ranks is decided later, when the rows to learn from are counted."""


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
        size: episodes per group.
        max_staleness: versions that rollout may run ahead of the learner; 0: they take turns.
    """

    _dock: Ledger
    _taken: Handout | None  # the groups being learned from
    _outlines: dict[Ticket, GroupOf[TrajectorySummary]]  # trajectory summaries of the groups that have ended
    _limits: dict[int, int]
    _opened: range  # the steps whose groups were opened, consecutive

    def __init__(self, first: int, last: int, prompts: int, size: int, max_staleness: int) -> None:
        self._first, self._last, self._max_staleness = first, last, max_staleness
        self._prompts, self._size, self._room = prompts, size, (max_staleness + 1) * prompts * size
        self.restore({})

    def advance(self, version: int, limit: int) -> list[Ticket]:
        """The groups to begin now, in order. version: of the newest weights; the groups taken for it have been learned.
        limit: context tokens for newly opened steps."""
        if self._taken is not None:
            self._dock.done(self._taken)
            self._taken = None
        if version >= self._first - 1 and not self._dock.closed:
            self._fill(version + 1, limit)
        return [ticket for ticket, worker in self.playing.items() if worker == NOBODY]

    def begin(self, ticket: Ticket, worker: int) -> None:
        self._dock.begin(self._group(ticket), worker)

    def end(self, ticket: Ticket, worker: int, group: GroupOf[TrajectorySummary]) -> None:
        rows = self._group(ticket) + np.arange(self._size)
        assert self._dock.makers(rows[:1]) == worker, "a group is played by one worker"
        lengths = np.array([episode.num_tokens for episode in group.trajectories])
        self._dock.ready(rows, lengths, worker, [column.name for column in EPISODE])
        self._outlines[ticket] = group

    def take(self, step: int) -> list[GroupOf[TrajectorySummary]] | None:
        """The groups of the step, in order; None while one of them is still playing."""
        handout = self._dock.take(LEARNER.name, self._prompts)
        if handout is None:
            return None
        self._taken = handout
        assert {ticket.step for ticket in self.taken} == {step}, "steps are learned one after another"
        del self._limits[step]
        return [self._outlines.pop(ticket) for ticket in self.taken]

    def lost(self, worker: int) -> list[Ticket]:
        """The unlearned groups that a lost worker was playing or held: each has to be begun again."""
        return [*self._tickets(self._dock.lost(worker))]

    def recent(self, ticket: Ticket, group: GroupOf[Played]) -> bool:
        """Whether no token of a group is older than its step allows; the bound of a resumed run may have changed."""
        oldest = ticket.step - 1 - self._max_staleness
        return all(episode.oldest >= oldest or not episode.num_sampled for episode in group.trajectories)

    @property
    def playing(self) -> Mapping[Ticket, int]:
        """Groups that have not ended, in order, with their workers."""
        return self._tickets(self._dock.waiting(LEARNER.name)[1])

    @property
    def ended(self) -> Mapping[Ticket, int]:
        return self._tickets(self._dock.waiting(LEARNER.name)[0])

    @property
    def taken(self) -> Mapping[Ticket, int]:
        return {} if self._taken is None else self._tickets(self._taken.groups)

    @property
    def limits(self) -> Mapping[int, int]:
        """By step, the context limit of its groups, also when they start again; for all started, unlearned steps."""
        return self._limits

    def restore(self, limits: Mapping[int, int]) -> None:
        """Reset to the steps in `limits`; everything else is dropped, as are steps beyond the capacity. Their groups
        have no workers. The caller begins and ends again those that had ended; the others start with the next
        `advance`."""
        self._dock = Ledger(EPISODE, [LEARNER], self._room)
        self._taken, self._outlines, self._limits, self._opened = None, {}, {}, range(0)
        for step in sorted(limits):
            if self._dock.free:
                self._open(step, limits[step])

    def _fill(self, step: int, limit: int) -> None:
        """Open the groups of all steps that fit, from `step` if none is open."""
        step = self._opened.stop if self._opened else step
        while step <= self._last and self._dock.free:
            self._open(step, limit)
            step += 1
        if step > self._last:
            self._dock.close()

    def _open(self, step: int, limit: int) -> None:
        self._opened = range(self._opened.start if self._opened else step, step + 1)
        self._limits[step] = limit
        for _ in range(self._prompts):
            self._dock.open(self._size)

    def _group(self, ticket: Ticket) -> int:
        """The number of the group's first row: groups are opened in the order of their tickets."""
        return ((ticket.step - self._opened.start) * self._prompts + ticket.number) * self._size

    def _tickets(self, groups: Numbers) -> dict[Ticket, int]:
        steps, numbers = np.divmod(groups // self._size, self._prompts)
        tickets = map(Ticket, (steps + self._opened.start).tolist(), numbers.tolist())
        return dict(zip(tickets, self._dock.makers(groups).tolist(), strict=True))


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
    numbers: dict[int, list[int]] = {step: [] for step in sorted(limits)}
    for ticket in sorted(ended):
        numbers[ticket.step].append(ticket.number)
    own = folder / AHEAD
    own.mkdir()
    for step, kept in numbers.items():
        if kept:
            table = trajectories.to_table([ended[Ticket(step, number)] for number in kept], step)
            trajectories.write(trajectories.path_of(own, step), table)
    started = [asdict(_Started(step, limits[step], kept)) for step, kept in numbers.items()]
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
        assert isinstance(self.sampler, Streams), "episodes ask for one reply at a time"
        self._streams: Streams = self.sampler
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
        size, world = self.config.rollout.group_size, grown(limited(self.world, limit), self.config, step)
        for number, task in tasks.items():
            episodes = group_episodes(world, {number: task}, size, seed)
            for episode in episodes:
                episode.session = self._sessions = self._sessions + 1
            ticket = Ticket(step, number)
            future = asyncio.run_coroutine_threadsafe(self._play(episodes), self._loop)
            with self._changed:
                self._playing[ticket] = future
            future.add_done_callback(partial(self._end, ticket))

    def ended(self, step: int, seconds: float) -> dict[Ticket, Group]:
        """The groups that ended since the last call, once no group of a step up to `step` is playing. Waits at most
        `seconds`, then returns the groups so far. Raises the exception of a failed episode."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._fault or not any(ticket.step <= step for ticket in self._playing), seconds
            )
            if self._fault:
                raise self._fault
            ended, self._ended = self._ended, {}
        return ended

    def abandon(self) -> None:
        with self._changed:
            given_up, self._playing, self._ended = self._playing, {}, {}
        for future in given_up.values():
            future.cancel()

    async def _play(self, episodes: list[Episode]) -> Group:
        played = (play_one(episode, self._streams, self._threads) for episode in episodes)
        return Group(tuple(await asyncio.gather(*played)))

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
