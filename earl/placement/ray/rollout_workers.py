"""Rollout workers of a cluster: lost ones are replaced, get the same state as the others, and repeat their share."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from earl.dispatch.transports.rendezvous import Rendezvous
from earl.engine.sharding.tp_group import Meeting
from earl.errors import EarlError
from earl.evaluate import Match
from earl.group import Group, GroupOf, PlayedGroups, TrajectorySummary
from earl.matches import MatchResult
from earl.placement.async_rollout import Ticket
from earl.placement.ray.actor_group import ActorGroup, ActorOwner, Call, Member
from earl.placement.ray.exchange_member import LEARNED, TAUGHT, EpisodeTable
from earl.placement.rollout_backend import in_order, most, share
from earl.rollout.invented import Invention
from earl.rollout.tasks import Draw
from earl.runs.storage import void
from earl.runs.trajectories import from_bytes, matches_from_bytes
from earl.trajectory import Task

Setup = Callable[[Any, int, Meeting | None], Any]


class Team:
    """Actors that all use the same weights. A copy of the model may be split over `tp` actors: the first plays, the
    others follow. setup: makes an actor ready, given its number and the meeting of its copy."""

    def __init__(self, crew: ActorGroup, setup: Setup, keeper: ActorOwner, tp: int = 1) -> None:
        self._crew, self._setup, self._keeper = crew, setup, keeper
        self._told: dict[str, Call] = {}
        self._meetings: dict[int, Rendezvous] = {}
        self._unready: set[int] = set()
        self._crew.group = tp
        self._ready(range(len(crew)))

    @property
    def tp(self) -> int:
        return self._crew.group

    @property
    def copies(self) -> int:
        return len(self._crew) // self.tp

    @property
    def actors(self) -> list[Any]:
        return [member.actor for member in self.members]

    @property
    def members(self) -> Sequence[Member]:
        """The first member of each copy; changes when actors are replaced."""
        return self._crew.members[:: self.tp]

    def load(self, weights: Any, version: int) -> None:
        call = partial(_load, given=(weights, version))
        self._told["weights"] = call
        for damaged in self._each("weights", call).values():
            for said in damaged or ():
                self._keeper.note("dispatch", f"{said}: sent again")

    def relayout(self, copies: int, tp: int) -> float:
        """Regroup the same processes into copies split over `tp`; they have no weights until the next `load`. Returns
        the seconds it took. Raises EarlError when `copies` × `tp` are not all processes, or a copy spans hosts."""
        began = time.perf_counter()
        if copies * tp != len(self._crew):
            raise EarlError(
                f"{copies} copies of the sampler x sampler.tp {tp} are {copies * tp} processes, and there are "
                f"{len(self._crew)}; choose a split of these"
            )
        for first in range(0, len(self._crew), tp):
            if len({member.node for member in self._crew.members[first : first + tp]}) > 1:
                raise EarlError(
                    f"sampler.tp {tp}: a copy of the sampler lies on one host, and processes {first} to "
                    f"{first + tp - 1} lie on several; choose a smaller one"
                )
        self._told.pop("weights", None)
        self._keeper.turn(self._crew)
        self._crew.group = tp
        self._ready(range(len(self._crew)))
        return time.perf_counter() - began

    def forget(self) -> None:
        """Do not give the lost learner's weights to replacements any more, until the next `load`."""
        self._told.pop("weights", None)

    def mend(self, stage: str, lost: Mapping[int, str]) -> None:
        """Replace actors that were lost in a call made by others."""
        self._replace(stage, lost)

    def watch(self) -> None:
        self._replace("rollout", self._crew.watch())

    @property
    def loading(self) -> Sequence[Member]:
        """The first member of each copy that loads weights."""
        return self.members

    @property
    def readers(self) -> int:
        """The number of processes that load weights, each its own part."""
        return len(self._crew)

    @property
    def crew(self) -> ActorGroup:
        """The actor group of all its processes, for calls by others."""
        return self._crew

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of `members` in the actor group."""
        return range(0, len(self._crew), self.tp)

    def _tell(self, stage: str, call: Call) -> None:
        """Call all actors, and later also their replacements."""
        self._told[stage] = call
        self._all(stage, call)

    def _all(self, stage: str, call: Call, turn: bool = True) -> list[Any]:
        """Every copy's result, by number. call: gets an actor and its copy's number; turn: needs the device."""
        results = self._each(stage, call, turn)
        return [results[copy * self.tp] for copy in range(self.copies)]

    def _each(self, stage: str, call: Call, turn: bool = True) -> Mapping[int, Any]:
        """Every process's result, by number; arguments as in `_all`."""
        if turn:
            self._keeper.turn(self._crew)
        if self._unready:
            self._ready(sorted(self._unready))
        results: dict[int, Any] = {}
        while missing := [number for number in range(len(self._crew)) if number not in results]:
            answers = self._crew.ask(stage, self._by_copy(call), missing)
            replaced = self._replace(stage, answers.lost)
            results |= {number: own for number, own in answers.results.items() if number not in replaced}
        return results

    def _by_copy(self, call: Call) -> Call:
        return lambda actor, number: call(actor, number // self.tp)

    def _replace(self, stage: str, lost: Mapping[int, str]) -> set[int]:
        """Replace lost actors and their copies' others, restoring the common state; returns all their numbers."""
        if not lost:
            return set()
        began = time.perf_counter()
        first = {number - number % self.tp: why for number, why in reversed([*lost.items()])}  # of each copy
        numbers = {mate for number in first for mate in self._crew.mates(number)}
        for why in first.values():
            self._keeper.failed(f"{why} during {stage}")
        for number in sorted(numbers):
            self._crew.replace(number)
        self._ready(sorted(numbers))
        for why in first.values():
            self._keeper.mended(f"{why} during {stage}: replaced in {time.perf_counter() - began:.1f} s")
        return numbers

    def _ready(self, numbers: Sequence[int]) -> None:
        """Bring members, all of some copies, to the state of the others. If this is interrupted, since it depends on
        other processes, it is repeated before their next call."""
        self._unready |= {*numbers}
        left = {*numbers} - self._replace("start", self._crew.introduce())
        if self.tp > 1:
            answers = self._crew.ask("start", _address, sorted(n for n in left if n % self.tp == 0))
            self._meetings |= answers.results
            left -= self._replace("start", answers.lost)
        for step in (self._set_up, *map(self._by_copy, self._told.values())):
            left -= self._replace("start", self._crew.ask("start", step, sorted(left)).lost)
        self._unready -= {*numbers}

    def _set_up(self, actor: Any, number: int) -> Any:
        if self.tp == 1:
            return self._setup(actor, number, None)
        first = self._crew.mates(number).start
        return self._setup(actor, number, Meeting(number - first, self.tp, self._meetings[first]))


def _load(actor: Any, _: int, given: tuple[Any, int]) -> Any:
    (weights, probe), version = given
    return actor.load.remote(weights, probe, version)


def _address(actor: Any, _: int) -> Any:
    return actor.address.remote()


class RolloutWorkers(Team):
    """Rollout fragments in separate processes. An episode's draws follow from its seed, not from the worker."""

    costs: Mapping[str, float] = MappingProxyType({})
    _holders: Mapping[Ticket, int]
    """The worker that holds each of the step's groups, in order."""

    def play(self, draw: Draw) -> list[GroupOf[TrajectorySummary]]:
        """The groups of a step, in order. Tokens stay with the workers; a lost worker's groups are played again."""
        size, tasks, seed = self.copies, draw.tasks, draw.seed
        played = self._hold(
            "rollout", lambda actor, number: actor.play.remote(draw.step, share(tasks, number, size), seed)
        )
        holders = {ticket: worker for worker, (groups, _) in enumerate(played) for ticket in groups}
        self._holders = dict(sorted(holders.items()))
        outlines = {ticket: group for groups, _ in played for ticket, group in groups.items()}
        self.costs = most(costs for _, costs in played)
        return [outlines[ticket] for ticket in self._holders]

    def rows(self, groups: PlayedGroups) -> EpisodeTable:  # noqa: ARG002
        counted = partial(_table, step=next(iter(self._holders)).step)
        tables = self._all("rows", counted)
        self._told["rows"] = counted  # replacements play and pack again, until the rows are sent
        return EpisodeTable.joined(tables, LEARNED)

    def offer(self, manifest: Any, checksums: bool) -> list[dict[int, Any]]:
        """References to the rows counted last, by worker and host."""
        return self._all("dispatch", lambda actor, worker: actor.offer.remote(manifest, worker, checksums))

    def whole(self, groups: PlayedGroups) -> list[Group]:  # noqa: ARG002
        found = self._fetch(self._holders)
        return [found[ticket] for ticket in self._holders]

    def _fetch(self, holders: Mapping[Ticket, int]) -> dict[Ticket, Group]:
        """Groups from the workers that hold them. Those of a worker that is replaced meanwhile may be missing."""
        own = {worker: [t for t in holders if holders[t] == worker] for worker in range(self.copies)}
        parts = self._all("recording", lambda actor, worker: actor.whole.remote(own[worker]), turn=False)
        return {t: group for known, data in parts for t, group in zip(known, from_bytes(data)[1], strict=True)}

    def demonstrate(self, tasks: Sequence[Task], seed: int, limit: int) -> EpisodeTable:
        size = self.copies
        tables = self._hold(
            "demonstrations", lambda actor, number: actor.demonstrate.remote(share(tasks, number, size), seed, limit)
        )
        return EpisodeTable.joined(tables, TAUGHT)

    def sample(self, invention: Invention, count: int, seed: int) -> None:
        size = self.copies
        self._all("rollout", lambda actor, n: actor.sample.remote(invention, [*share(range(count), n, size)], seed))

    def invent(self, invention: Invention, count: int, seed: int) -> EpisodeTable:
        """Rows of `count` synthetic episodes, which stay with the workers in place of the step's."""
        size = self.copies
        tables = self._hold(
            "rows", lambda actor, number: actor.invent.remote(invention, [*share(range(count), number, size)], seed)
        )
        return EpisodeTable.joined(tables, LEARNED)

    def relayout(self, copies: int, tp: int) -> float:
        self._learned()
        return super().relayout(copies, tp)

    def forget(self) -> None:
        """The learner's weights are lost with it, and the step is played again."""
        self._learned()
        super().forget()

    def load(self, weights: Any, version: int) -> None:
        """Load the weights that a handle stands for; the groups played so far have been learned from."""
        self._learned()
        super().load(weights, version)

    def _hold(self, stage: str, call: Call) -> list[Any]:
        """Call all, and also replacements until the step is learned from."""
        self._learned()
        played = self._all(stage, call)
        self._told["play"] = call
        return played

    def _learned(self) -> None:
        """Replacements no longer need the step's rows."""
        self._told.pop("play", None)
        self._told.pop("rows", None)

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        size = self.copies
        parts = self._all(
            "evaluation", lambda actor, number: actor.evaluate.remote([*share(matches, number, size).values()])
        )
        return in_order(result for part in parts for result in matches_from_bytes(part))

    def limit(self, tokens: int) -> None:
        self._tell("limit", partial(_limit, tokens=tokens))

    def peaks(self) -> dict[str, float]:
        return most(self._crew.ask("peaks", _peaks, range(len(self._crew))).results.values())

    def snapshot(self) -> Callable[[Path], None]:
        """Nothing is played ahead."""
        return void

    def restore(self, folder: Path) -> None:
        """Nothing is played ahead."""


class Environments(RolloutWorkers):
    """Rollout fragments without samplers: they call those of another team, which has the weights. A sampler that is
    lost during rollout is replaced, and unanswered prompts are sent again."""

    def __init__(self, crew: ActorGroup, setup: Setup, keeper: ActorOwner, samplers: Team) -> None:
        self._samplers = samplers
        crew.meanwhile = self._see_to_samplers
        super().__init__(crew, setup, keeper)

    @property
    def loading(self) -> Sequence[Member]:
        return self._samplers.members

    @property
    def readers(self) -> int:
        return self._samplers.readers

    def load(self, weights: Any, version: int) -> None:
        self._learned()
        self._samplers.load(weights, version)
        self._introduce()
        self._tell("weights", lambda actor, _: actor.load.remote(version))

    def forget(self) -> None:
        self._samplers.forget()
        super().forget()

    def relayout(self, copies: int, tp: int) -> float:  # noqa: ARG002
        """Raises EarlError."""
        raise EarlError(
            "environments apart ask their samplers at any time, so these are not split anew in a run; "
            "set placement.environments to 0"
        )

    def _see_to_samplers(self) -> None:
        known = self._samplers.actors
        try:
            self._samplers.watch()
        finally:  # waiting for a lost sampler would never end
            if self._samplers.actors != known:
                self._introduce()

    def _introduce(self) -> None:
        """Tell every environment the current samplers."""
        for actor in self.actors:
            actor.meet.remote(self._samplers.actors)  # result ignored: losses are noticed elsewhere


def _peaks(actor: Any, _: int) -> Any:
    return actor.peaks.remote()


def _table(actor: Any, _: int, step: int) -> Any:
    return actor.table.remote(step)


def _limit(actor: Any, _: int, tokens: int) -> Any:
    return actor.limit.remote(tokens)
