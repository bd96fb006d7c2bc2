"""Rollout workers that play ahead of the learner: its groups are asked for, and those of later steps are in play.

load ─▶ what may start now ─▶ dealt to the workers ─▶ … ─▶ play: wait for the step's groups, take them
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from earl.config import Config
from earl.errors import EarlError
from earl.group import GroupOf
from earl.outline import Outline
from earl.placement import buffer
from earl.placement.ahead import Ahead, Ticket
from earl.placement.cluster.crew import Crew
from earl.placement.cluster.keeper import Keeper
from earl.placement.cluster.players import Workers
from earl.placement.cluster.team import Setup
from earl.placement.peers import Lost
from earl.placement.players import share
from earl.rollout.tasks import Draw, draw
from earl.runs.trajectories import to_bytes

ASK_SECONDS = 1.0
"""A worker answers when a step's groups have ended, or after so long with those that have."""


class AheadWorkers(Workers):
    """Rollout workers whose episodes go on while the learner learns. See `Ahead` for when they start."""

    def __init__(self, crew: Crew, setup: Setup, keeper: Keeper, config: Config) -> None:
        self._config = config
        first = config.warm_start.steps + 1
        prompts, staleness = config.rollout.prompts, config.placement.max_staleness
        self._ahead: Ahead[GroupOf[Outline]] = Ahead(first, config.total_steps, prompts, staleness)
        self._owners: dict[Ticket, int] = {}  # the worker of each group in play
        self._holders = {}
        self._limit: int | None = None
        super().__init__(crew, setup, keeper)

    def play(self, draw: Draw) -> list[GroupOf[Outline]]:
        """The groups of a step, in order, once all of them have ended."""
        ends = time.monotonic() + self._config.placement.stage_seconds
        while missing := self._ahead.playing(draw.step):
            self._collect(draw.step, ASK_SECONDS)
            if time.monotonic() > ends:
                late = {self._owners[ticket] for ticket in missing if ticket in self._owners}
                self._replace(
                    "rollout", {number: f"rollout worker {number} has not ended its groups" for number in late}
                )
                ends = time.monotonic() + self._config.placement.stage_seconds
        self._tickets = [Ticket(draw.step, number) for number in range(len(draw.tasks))]
        return self._ahead.take(draw.step)

    def relayout(self, copies: int, tp: int) -> float:  # noqa: ARG002
        """Raises EarlError."""
        raise EarlError(
            "rollout that runs ahead of the learner has no step boundary at which its samplers could be split anew; "
            "set placement.max_staleness to 0"
        )

    def limit(self, tokens: int) -> None:
        """Set the context limit of the episodes to come, in tokens."""
        self._limit = tokens
        super().limit(tokens)

    def load(self, weights: Any, version: int) -> None:
        """Play on with these weights, and start what may be played with them."""
        super().load(weights, version)
        self._holders = {ticket: worker for ticket, worker in self._holders.items() if ticket.step > version}
        assert self._limit is not None, "the limit is set before the first weights"
        starting = self._ahead.advance(version, self._limit)
        busy = Counter(self._owners.values())
        for ticket in starting:
            self._owners[ticket] = number = min(range(len(self._crew)), key=lambda worker: busy[worker])
            busy[number] += 1
        self._start(starting)

    def snapshot(self) -> Callable[[Path], None]:
        """The groups that wait, to be written; those in play start again from their seeds."""
        self._collect(0, 0.0)
        found = self._fetch(sorted(self._ahead.ended))
        ended = {ticket: group for ticket, group in found.items() if ticket in self._ahead.ended}
        return partial(buffer.save, limits=dict(self._ahead.limits), ended=ended)

    def restore(self, folder: Path) -> None:
        """Continue from what a snapshot wrote; whatever else was played is forgotten."""
        self._owners, self._holders = {}, {}
        self._all("abandon", lambda actor, _: actor.abandon.remote())
        limits, ended = buffer.load(folder)
        dealt = {number: share(sorted(ended), number, len(self._crew)) for number in range(len(self._crew))}
        own = {number: [*tickets.values()] for number, tickets in dealt.items()}
        held = self._all(
            "start", lambda actor, n: actor.hold.remote(own[n], to_bytes([ended[ticket] for ticket in own[n]], 0))
        )
        self._holders = {ticket: number for number, groups in enumerate(held) for ticket in groups}
        self._ahead.restore(limits, {ticket: group for groups in held for ticket, group in groups.items()})

    def _collect(self, step: int, seconds: float) -> None:
        """Take in the groups that have ended."""
        answers = self._crew.ask("rollout", partial(_ended, step=step, seconds=seconds), range(len(self._crew)))
        for number, groups in answers.results.items():
            for ticket, group in groups.items():
                assert self._owners.pop(ticket) == number, "a group is played by one worker"
                self._holders[ticket] = number
                self._ahead.end(ticket, group)
        self._replace("rollout", answers.lost)

    def _ready(self, numbers: Sequence[int]) -> None:
        """Make workers ready. What those in whose place they are had in play, or kept for later, starts again."""
        gone = {ticket: self._holders.pop(ticket) for ticket, holder in [*self._holders.items()] if holder in numbers}
        taken = [ticket for ticket in gone if ticket not in self._ahead.ended]
        self._ahead.again(gone.keys() - taken)
        self._owners |= {ticket: number for ticket, number in gone.items() if ticket not in taken}
        super()._ready(numbers)
        self._start(sorted(ticket for ticket, owner in self._owners.items() if owner in numbers))
        if taken:
            raise Lost(f"what was played for step {taken[0].step} is gone with the worker that had it")

    def _start(self, tickets: Iterable[Ticket]) -> None:
        """Let workers play the groups that were dealt to them."""
        shares: dict[int, list[Ticket]] = {}
        for ticket in tickets:
            shares.setdefault(self._owners[ticket], []).append(ticket)
        orders = {number: [self._order(step, own) for step, own in _by_step(share)] for number, share in shares.items()}
        if orders:
            answers = self._crew.ask("start", lambda actor, number: actor.start.remote(orders[number]), [*orders])
            self._replace("start", answers.lost)

    def _order(self, step: int, tickets: Iterable[Ticket]) -> tuple[Any, ...]:
        """What `ContinuousFragment.start` is told."""
        drawn = draw(self._config, step)
        tasks = {ticket.number: drawn.tasks[ticket.number] for ticket in tickets}
        return step, tasks, drawn.seed, self._ahead.limit_of(step)


def _by_step(tickets: Iterable[Ticket]) -> Iterable[tuple[int, Iterable[Ticket]]]:
    return groupby(sorted(tickets), key=lambda ticket: ticket.step)


def _ended(actor: Any, _: int, step: int, seconds: float) -> Any:
    return actor.ended.remote(step, seconds)
