"""A crew of equals: whoever is lost is replaced, told what the others were told, and asked again."""

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
    """Actors that all play with the same weights. A copy of the model may be split over several: the first of them
    plays, the others compute with it.

    Args:
        setup: given an actor, its number and where the processes of its copy meet, make it ready.
        tp: processes of one copy.
    """

    def __init__(self, crew: ActorGroup, setup: Setup, keeper: ActorOwner, tp: int = 1) -> None:
        self._crew, self._setup, self._keeper = crew, setup, keeper
        self._told: dict[str, Call] = {}
        self._meetings: dict[int, Rendezvous] = {}
        self._unready: set[int] = set()
        self._crew.group = tp
        self._ready(range(len(crew)))

    @property
    def tp(self) -> int:
        """Processes of one copy."""
        return self._crew.group

    @property
    def copies(self) -> int:
        """Of the model."""
        return len(self._crew) // self.tp

    @property
    def actors(self) -> list[Any]:
        """The first of each copy, as they are now."""
        return [member.actor for member in self.members]

    @property
    def members(self) -> Sequence[Member]:
        """The first of each copy, as they are now."""
        return self._crew.members[:: self.tp]

    def load(self, weights: Any, version: int) -> None:
        """Play with the weights that a reference stands for from now on."""
        call = partial(_load, given=(weights, version))
        self._told["weights"] = call
        for damaged in self._each("weights", call).values():
            for said in damaged or ():
                self._keeper.note("dispatch", f"{said}: sent again")

    def relayout(self, copies: int, tp: int) -> float:
        """Let the same processes be other copies, each split over `tp`; they have no weights until the next `load`.

        Returns:
            the seconds that it took.

        Raises:
            EarlError: for a split of another number of processes, or one that lies on several hosts.
        """
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
        """What the learner gave is gone with it: nobody is given it any more, until the next `load`."""
        self._told.pop("weights", None)

    def mend(self, stage: str, lost: Mapping[int, str]) -> None:
        """Replace those who were lost in a call that others made."""
        self._replace(stage, lost)

    def watch(self) -> None:
        """Replace whoever is lost while others work with them."""
        self._replace("rollout", self._crew.watch())

    @property
    def loading(self) -> Sequence[Member]:
        """The first of each copy that takes weights."""
        return self.members

    @property
    def readers(self) -> int:
        """How many processes take weights, each what it needs of them."""
        return len(self._crew)

    @property
    def crew(self) -> ActorGroup:
        """All of its processes, to be asked by others too."""
        return self._crew

    @property
    def numbers(self) -> Sequence[int]:
        """In the crew, of `members`."""
        return range(0, len(self._crew), self.tp)

    def _tell(self, stage: str, call: Call) -> None:
        """Tell all, and whoever is replaced from now on."""
        self._told[stage] = call
        self._all(stage, call)

    def _all(self, stage: str, call: Call, turn: bool = True) -> list[Any]:
        """Every copy's answer, by number.

        Args:
            call: given an actor and the number of its copy.
            turn: whether they need the device for it, where it is shared.
        """
        results = self._each(stage, call, turn)
        return [results[copy * self.tp] for copy in range(self.copies)]

    def _each(self, stage: str, call: Call, turn: bool = True) -> Mapping[int, Any]:
        """Every process's answer, by number; arguments as of `_all`."""
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
        """Put new ones in the place of each that was lost and of those who work with it, and bring them to where the
        others are.

        Returns:
            the numbers of those who were replaced.
        """
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
        """Bring members to where the others are: all of some copies. Where that breaks off, since it is from others
        that they get something, they are brought there before they are next asked."""
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


# The rollout workers of a cluster, as the stages see them: whoever is lost is replaced, and its share played again.


class RolloutWorkers(Team):
    """Rollout fragments in processes of their own. An episode's draws follow from its seed, not from who plays it."""

    costs: Mapping[str, float] = MappingProxyType({})
    _holders: Mapping[Ticket, int]
    """Of the step's groups, in order, the worker that has each."""

    def play(self, draw: Draw) -> list[GroupOf[TrajectorySummary]]:
        """The groups of a step, in order. Their tokens stay with the workers, one of whom plays them again if lost."""
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
        """The rows of the step's groups, of those that are learned from."""
        counted = partial(_table, step=next(iter(self._holders)).step)
        tables = self._all("rows", counted)
        self._told["rows"] = counted  # whoever is replaced before they are sent plays, and packs, again
        return EpisodeTable.joined(tables, LEARNED)

    def offer(self, manifest: Any, checksums: bool) -> list[dict[int, Any]]:
        """References to the rows that were last counted, by worker and host."""
        return self._all("dispatch", lambda actor, worker: actor.offer.remote(manifest, worker, checksums))

    def whole(self, groups: PlayedGroups) -> list[Group]:  # noqa: ARG002
        """The groups of the step with their tokens, to be written down."""
        found = self._fetch(self._holders)
        return [found[ticket] for ticket in self._holders]

    def _fetch(self, holders: Mapping[Ticket, int]) -> dict[Ticket, Group]:
        """Groups from the workers that have them. Those of a worker that is replaced meanwhile may be missing."""
        own = {worker: [t for t in holders if holders[t] == worker] for worker in range(self.copies)}
        parts = self._all("recording", lambda actor, worker: actor.whole.remote(own[worker]), turn=False)
        return {t: group for known, data in parts for t, group in zip(known, from_bytes(data)[1], strict=True)}

    def demonstrate(self, tasks: Sequence[Task], seed: int, limit: int) -> EpisodeTable:
        """The teacher's episodes of the tasks, in order."""
        size = self.copies
        tables = self._hold(
            "demonstrations", lambda actor, number: actor.demonstrate.remote(share(tasks, number, size), seed, limit)
        )
        return EpisodeTable.joined(tables, TAUGHT)

    def sample(self, invention: Invention, count: int, seed: int) -> None:
        """Sample the replies of so many episodes that nobody plays."""
        size = self.copies
        self._all("rollout", lambda actor, n: actor.sample.remote(invention, [*share(range(count), n, size)], seed))

    def invent(self, invention: Invention, count: int, seed: int) -> EpisodeTable:
        """Rows of so many episodes that nobody played, which stay with the workers in place of the step's."""
        size = self.copies
        tables = self._hold(
            "rows", lambda actor, number: actor.invent.remote(invention, [*share(range(count), number, size)], seed)
        )
        return EpisodeTable.joined(tables, LEARNED)

    def relayout(self, copies: int, tp: int) -> float:
        """Let the same processes be other copies between two steps; see `Team.relayout`."""
        self._learned()
        return super().relayout(copies, tp)

    def forget(self) -> None:
        """Weights are gone with the learner that gave them, and the step is played again."""
        self._learned()
        super().forget()

    def load(self, weights: Any, version: int) -> None:
        """Play with the weights that a reference stands for from now on; what was played has been learned from."""
        self._learned()
        super().load(weights, version)

    def _hold(self, stage: str, call: Call) -> list[Any]:
        """Have all play, and whoever is replaced before the step is learned from."""
        self._learned()
        played = self._all(stage, call)
        self._told["play"] = call
        return played

    def _learned(self) -> None:
        """Nobody has to have the step's rows any more."""
        self._told.pop("play", None)
        self._told.pop("rows", None)

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        """The results of matches, by opponent and seat."""
        size = self.copies
        parts = self._all(
            "evaluation", lambda actor, number: actor.evaluate.remote([*share(matches, number, size).values()])
        )
        return in_order(result for part in parts for result in matches_from_bytes(part))

    def limit(self, tokens: int) -> None:
        """Set the context limit of the episodes to come, in tokens."""
        self._tell("limit", partial(_limit, tokens=tokens))

    def peaks(self) -> dict[str, float]:
        """The most memory that any worker took of its own by stage, in bytes, since this was last asked."""
        return most(self._crew.ask("peaks", _peaks, range(len(self._crew))).results.values())

    def snapshot(self) -> Callable[[Path], None]:
        """Nothing was played ahead."""
        return void

    def restore(self, folder: Path) -> None:
        """Nothing was played ahead."""


class Environments(RolloutWorkers):
    """Rollout fragments without samplers of their own: they ask those of another team, which has the weights.

    A sampler that is lost while they play is replaced, and asked again by whoever waits for it.
    """

    def __init__(self, crew: ActorGroup, setup: Setup, keeper: ActorOwner, samplers: Team) -> None:
        self._samplers = samplers
        crew.meanwhile = self._see_to_samplers
        super().__init__(crew, setup, keeper)

    @property
    def loading(self) -> Sequence[Member]:
        """The samplers."""
        return self._samplers.members

    @property
    def readers(self) -> int:
        """The samplers' processes."""
        return self._samplers.readers

    def load(self, weights: Any, version: int) -> None:
        """Give the samplers the weights that a reference stands for, and play with them from now on."""
        self._learned()
        self._samplers.load(weights, version)
        self._introduce()
        self._tell("weights", lambda actor, _: actor.load.remote(version))

    def forget(self) -> None:
        """The samplers have the weights."""
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
        finally:  # whoever waits for a sampler that is gone would do so without end
            if self._samplers.actors != known:
                self._introduce()

    def _introduce(self) -> None:
        """Let every environment know the samplers as they are now."""
        for actor in self.actors:
            actor.meet.remote(self._samplers.actors)  # no answer is waited for: who is lost is noticed elsewhere


def _peaks(actor: Any, _: int) -> Any:
    return actor.peaks.remote()


def _table(actor: Any, _: int, step: int) -> Any:
    return actor.table.remote(step)


def _limit(actor: Any, _: int, tokens: int) -> Any:
    return actor.limit.remote(tokens)
