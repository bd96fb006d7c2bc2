"""A rollout fragment that plays on while the learner learns: groups start, end, and see new weights on their way.

start ─▶ episodes, each at its own pace ─▶ ended            load, evaluate: in between, at any time
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Condition, Thread
from typing import Any

from earl.config import Config
from earl.engine.sampler import Sampler
from earl.group import Group
from earl.placement.ahead import Ticket
from earl.placement.fragment import RolloutFragment, grown, limited
from earl.rollout.concurrent import THREADS, Streams, play_one
from earl.rollout.episode import Episode
from earl.rollout.tasks import group_episodes
from earl.trajectory import Task

FIRST_SESSION = 1 << 32
"""Sessions below are those of demonstrations and matches, which are played at the same time."""


class ContinuousFragment(RolloutFragment):
    """Its methods are called by one thread; the episodes are played by others.

    Weights that are loaded hold for every reply from then on: later turns of an episode are sampled with newer weights
    than its first, and each token says with which.
    """

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
        """Let groups of a step begin, under a context limit of `limit` tokens.

        Args:
            tasks: by their number in the step.
            seed: that of the step's draw.
        """
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
        """The groups that ended since this was last asked, once none of a step up to `step` is in play.

        Args:
            seconds: how long to wait for these at most; then what there is.

        Raises:
            Exception: what kept an episode from being played.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._fault or not any(ticket.step <= step for ticket in self._playing), seconds
            )
            if self._fault:
                raise self._fault
            ended, self._ended = self._ended, {}
        return ended

    def abandon(self) -> None:
        """Forget all groups, whether they have ended or not."""
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
