"""Rollout workers for asynchronous rollout: groups of later steps are played while the learner learns.

`load` starts the groups that may start now and deals them to workers; `play` waits for the step's groups.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from earl.config import Config
from earl.errors import EarlError
from earl.group import GroupOf, TrajectorySummary
from earl.placement import async_rollout
from earl.placement.async_rollout import Ahead, Ticket
from earl.placement.peers import WorkerLost
from earl.placement.ray.actor_group import ActorGroup, ActorOwner
from earl.placement.ray.rollout_workers import RolloutWorkers, Setup
from earl.placement.rollout_backend import share
from earl.rollout.tasks import Draw, draw
from earl.runs.trajectories import to_bytes

ASK_SECONDS = 1.0
"""How long a worker may wait for a step's groups before it answers with those that have ended."""


class AheadWorkers(RolloutWorkers):
    """Rollout workers whose episodes go on while the learner learns; `Ahead` decides when they start."""

    def __init__(self, crew: ActorGroup, setup: Setup, keeper: ActorOwner, config: Config) -> None:
        self._config = config
        first, rollout, staleness = config.warm_start.steps + 1, config.rollout, config.placement.max_staleness
        self._ahead = Ahead(first, config.total_steps, rollout.prompts, staleness)
        self._limit: int | None = None
        super().__init__(crew, setup, keeper)

    def play(self, draw: Draw) -> list[GroupOf[TrajectorySummary]]:
        ends = time.monotonic() + self._config.placement.stage_seconds
        while (groups := self._ahead.take(draw.step)) is None:
            missing = [ticket for ticket in self._ahead.playing if ticket.step == draw.step]
            self._collect(draw.step, ASK_SECONDS)
            if time.monotonic() > ends:
                late = {worker for ticket, worker in self._ahead.playing.items() if ticket in missing}
                self._replace(
                    "rollout", {number: f"rollout worker {number} has not ended its groups" for number in late}
                )
                ends = time.monotonic() + self._config.placement.stage_seconds
        self._holders = self._ahead.taken
        return groups

    def relayout(self, copies: int, tp: int) -> float:  # noqa: ARG002
        """Raises EarlError."""
        raise EarlError(
            "rollout that runs ahead of the learner has no step boundary at which its samplers could be split anew; "
            "set placement.max_staleness to 0"
        )

    def limit(self, tokens: int) -> None:
        self._limit = tokens
        super().limit(tokens)

    def load(self, weights: Any, version: int) -> None:
        """Load these weights, and start the groups that may be played with them."""
        super().load(weights, version)
        assert self._limit is not None, "the limit is set before the first weights"
        starting = self._ahead.advance(version, self._limit)
        busy = Counter(self._ahead.playing.values())
        dealt: dict[Ticket, int] = {}
        for ticket in starting:
            dealt[ticket] = number = min(range(len(self._crew)), key=lambda worker: busy[worker])
            busy[number] += 1
        self._start(dealt)

    def snapshot(self) -> Callable[[Path], None]:
        """Save the groups that wait for the learner; those still playing start again from their seeds."""
        self._collect(0, 0.0)
        found = self._fetch(self._ahead.ended)
        ended = {ticket: found[ticket] for ticket in self._ahead.ended}
        return partial(async_rollout.save, limits=dict(self._ahead.limits), ended=ended)

    def restore(self, folder: Path) -> None:
        limits, saved = async_rollout.load(folder)
        self._ahead.restore(limits)
        self._all("abandon", lambda actor, _: actor.abandon.remote())
        ended = {t: saved[t] for t in self._ahead.playing if t in saved and self._ahead.recent(t, saved[t])}
        dealt = {number: share(sorted(ended), number, len(self._crew)) for number in range(len(self._crew))}
        own = {number: [*tickets.values()] for number, tickets in dealt.items()}
        held = self._all(
            "start", lambda actor, n: actor.hold.remote(own[n], to_bytes([ended[ticket] for ticket in own[n]], 0))
        )
        for number, groups in enumerate(held):
            for ticket, group in groups.items():
                self._ahead.begin(ticket, number)
                self._ahead.end(ticket, number, group)

    def _collect(self, step: int, seconds: float) -> None:
        answers = self._crew.ask("rollout", partial(_ended, step=step, seconds=seconds), range(len(self._crew)))
        for number, groups in answers.results.items():
            for ticket, group in groups.items():
                self._ahead.end(ticket, number, group)
        self._replace("rollout", answers.lost)

    def _ready(self, numbers: Sequence[int]) -> None:
        """Make workers ready. Groups that their predecessors were playing or held start again."""
        gone = {ticket: number for number in numbers for ticket in self._ahead.lost(number)}
        super()._ready(numbers)
        taken = gone.keys() & self._ahead.taken.keys()
        self._start({ticket: number for ticket, number in gone.items() if ticket not in taken})
        if taken:
            raise WorkerLost(f"what was played for step {min(taken).step} is gone with the worker that had it")

    def _start(self, dealt: Mapping[Ticket, int]) -> None:
        shares: dict[int, list[Ticket]] = {}
        for ticket, number in sorted(dealt.items()):
            self._ahead.begin(ticket, number)
            shares.setdefault(number, []).append(ticket)
        orders = {number: [self._order(step, own) for step, own in _by_step(share)] for number, share in shares.items()}
        if orders:
            answers = self._crew.ask("start", lambda actor, number: actor.start.remote(orders[number]), [*orders])
            self._replace("start", answers.lost)

    def _order(self, step: int, tickets: Iterable[Ticket]) -> tuple[Any, ...]:
        drawn = draw(self._config, step)
        tasks = {ticket.number: drawn.tasks[ticket.number] for ticket in tickets}
        return step, tasks, drawn.seed, self._ahead.limits[step]


def _by_step(tickets: Iterable[Ticket]) -> Iterable[tuple[int, Iterable[Ticket]]]:
    return groupby(sorted(tickets), key=lambda ticket: ticket.step)


def _ended(actor: Any, _: int, step: int, seconds: float) -> Any:
    return actor.ended.remote(step, seconds)
