"""Rollout workers of a cluster: lost ones are replaced, get the same state as the others, and repeat their share."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from earl.config import Config
from earl.dispatch.rows import LABELLED, LEARNED, TAUGHT
from earl.dispatch.transports.rendezvous import Rendezvous
from earl.engine.local import Meeting
from earl.engine.sampler import Probe, StaleWeights
from earl.errors import EarlError
from earl.evaluation import Match
from earl.matches import MatchResult
from earl.placement import async_rollout
from earl.placement.async_rollout import Ahead, Ticket
from earl.placement.peers import WorkerLost
from earl.placement.pipeline import Players, in_order, most, share
from earl.placement.ray.actor_group import ActorGroup, Call, GroupOwner, Member, method
from earl.placement.ray.row_exchange import EpisodeTable, ExchangeFailed
from earl.placement.ray.weight_sync import LoadedWeights, WeightSender, WeightSource
from earl.rollout.synthetic import SyntheticEpisodes
from earl.rollout.tasks import Draw, draw
from earl.trajectory import Group, GroupOf, PlayedGroups, Task, TrajectorySummary

Setup = Callable[[Any, int, Meeting | None], Any]


class SamplerGroup:
    """Actors that all use the same weights. A copy of the model may be split over `tp` actors: the first plays, the
    others follow. setup: makes an actor ready, given its number and the meeting of its copy."""

    def __init__(self, group: ActorGroup, setup: Setup, owner: GroupOwner, tp: int = 1) -> None:
        self.group, self._setup, self._owner = group, setup, owner
        self.loading: SamplerGroup = self  # the actors that load weights, each its own part
        self._standing_calls: dict[str, Call] = {}  # by stage, those that replacements get as well
        self._meetings: dict[int, Rendezvous] = {}
        self._unready: set[int] = set()
        self.group.group_size = tp
        self._ready(range(len(group)))

    @property
    def tp(self) -> int:
        return self.group.group_size

    @property
    def parts(self) -> int:
        """Processes that the weights of a copy are split over, on their way."""
        return self.tp

    @property
    def copies(self) -> int:
        return len(self.group) // self.tp

    @property
    def actors(self) -> list[Any]:
        return [member.actor for member in self.members]

    @property
    def members(self) -> Sequence[Member]:
        """The first member of each copy; changes when actors are replaced."""
        return self.group.members[:: self.tp]

    def load(self, weights: tuple[WeightSource, Probe], version: int) -> Mapping[str, float]:
        """Load weights; the groups played so far have been learned from."""
        self._learned()
        source, probe = weights
        self._standing_calls["weights"] = call = method("load", source, probe, version)
        loaded = self._sent(weights, version) or self._each("weights", call).values()
        for said in chain.from_iterable(own.damaged for own in loaded):
            self._owner.note("dispatch", f"{said}: sent again")
        return source.metrics(tuple(member.node for member in self.members), loaded)

    def _sent(self, weights: tuple[WeightSource, Probe], version: int) -> Sequence[LoadedWeights]:
        """Have the ranks send the weights; returns what each sampler loaded, nothing where samplers read instead."""
        return ()

    def relayout(self, copies: int, tp: int) -> None:
        """Regroup the same processes into copies split over `tp`; they have no weights until the next `load`. Raises
        EarlError when `copies` × `tp` are not all processes, or a copy spans hosts."""
        if copies * tp != len(self.group):
            raise EarlError(
                f"{copies} copies of the sampler x sampler.tp {tp} are {copies * tp} processes, and there are "
                f"{len(self.group)}; choose a split of these"
            )
        for first in range(0, len(self.group), tp):
            if len({member.node for member in self.group.members[first : first + tp]}) > 1:
                raise EarlError(
                    f"sampler.tp {tp}: a copy of the sampler lies on one host, and processes {first} to "
                    f"{first + tp - 1} lie on several; choose a smaller one"
                )
        self.forget()
        self._owner.turn(self.group)
        self.group.group_size = tp
        self._ready(range(len(self.group)))

    def forget(self) -> None:
        """Do not give the present weights to replacements any more, until the next `load`; the step is played again."""
        self._learned()
        self._standing_calls.pop("weights", None)

    def _learned(self) -> None:
        """Replacements no longer need the step's rows."""
        self._standing_calls.pop("play", None)
        self._standing_calls.pop("rows", None)

    def _tell(self, stage: str, call: Call) -> list[Any]:
        """Call all actors, and later also their replacements."""
        self._standing_calls[stage] = call
        return self._all(stage, call)

    def _all(self, stage: str, call: Call, turn: bool = True) -> list[Any]:
        """Every copy's result, by number. call: gets an actor and its copy's number; turn: needs the device."""
        results = self._each(stage, call, turn)
        return [results[copy * self.tp] for copy in range(self.copies)]

    def _each(self, stage: str, call: Call, turn: bool = True) -> Mapping[int, Any]:
        """Every process's result, by number; arguments as in `_all`."""
        if turn:
            self._owner.turn(self.group)
        if self._unready:
            self._ready(sorted(self._unready))
        results: dict[int, Any] = {}
        while missing := [number for number in range(len(self.group)) if number not in results]:
            answers = self.group.ask(stage, self._by_copy(call), missing)
            replaced = self.replace(stage, answers.lost)
            results |= {number: own for number, own in answers.results.items() if number not in replaced}
        return results

    def _by_copy(self, call: Call) -> Call:
        return lambda actor, number: call(actor, number // self.tp)

    def replace(self, stage: str, lost: Mapping[int, str]) -> set[int]:
        """Replace lost actors and their copies' others, restoring the common state; returns all their numbers."""
        if not lost:
            return set()
        began = time.perf_counter()
        first = {number - number % self.tp: why for number, why in reversed([*lost.items()])}  # of each copy
        numbers = {mate for number in first for mate in self.group.mates(number)}
        for why in first.values():
            self._owner.failed(f"{why} during {stage}")
        for number in sorted(numbers):
            self.group.replace(number)
        self._ready(sorted(numbers))
        for why in first.values():
            self._owner.note("recovered", f"{why} during {stage}: replaced in {time.perf_counter() - began:.1f} s")
        return numbers

    def _ready(self, numbers: Sequence[int]) -> None:
        """Bring members, all of some copies, to the state of the others. If this is interrupted, since it depends on
        other processes, it is repeated before their next call."""
        self._unready |= {*numbers}
        left = {*numbers} - self.replace("start", self.group.introduce())
        if self.tp > 1:
            answers = self.group.ask("start", method("address"), sorted(n for n in left if n % self.tp == 0))
            self._meetings |= answers.results
            left -= self.replace("start", answers.lost)
        for step in (self._set_up, *map(self._by_copy, self._standing_calls.values())):
            try:
                left -= self.replace("start", self.group.ask("start", step, sorted(left)).lost)
            except StaleWeights as error:  # the learner has begun to update them
                raise WorkerLost(f"the weights of a lost process are gone: {error}") from error
        self._unready -= {*numbers}

    def _set_up(self, actor: Any, number: int) -> Any:
        if self.tp == 1:
            return self._setup(actor, number, None)
        first = self.group.mates(number).start
        return self._setup(actor, number, Meeting(number - first, self.tp, self._meetings[first]))


class RolloutWorkers(SamplerGroup, Players):
    """Rollout fragments in separate processes. An episode's draws follow from its seed, not from the worker."""

    costs: Mapping[str, float] = MappingProxyType({})
    _holders: Mapping[Ticket, int]
    """The worker that holds each of the step's groups, in order."""
    _columns: tuple[str, ...] = LEARNED  # of the step's rows

    def play(self, draw: Draw) -> list[GroupOf[TrajectorySummary]]:
        """The groups of a step, in order. Tokens stay with the workers; a lost worker's groups are played again."""
        played = self._hold("rollout", self._dealt("play", draw.slots, draw.step, draw.seed, draw.labelled))
        self._columns = LABELLED if draw.labelled else LEARNED
        holders = {ticket: worker for worker, (groups, _) in enumerate(played) for ticket in groups}
        self._holders = dict(sorted(holders.items()))
        outlines = {ticket: group for groups, _ in played for ticket, group in groups.items()}
        self.costs = most(costs for _, costs in played)
        return [outlines[ticket] for ticket in self._holders]

    def rows(self, groups: PlayedGroups) -> EpisodeTable:
        # Replacements play and pack again, until the rows are sent.
        tables = self._tell("rows", method("table", next(iter(self._holders)).step))
        return EpisodeTable.joined(tables, self._columns)

    def whole(self, groups: PlayedGroups) -> list[Group]:
        found = self._fetch(self._holders)
        return [found[ticket] for ticket in self._holders]

    def _fetch(self, holders: Mapping[Ticket, int]) -> dict[Ticket, Group]:
        """Groups from the workers that hold them. Those of a worker that is replaced meanwhile may be missing."""
        own = {worker: [t for t in holders if holders[t] == worker] for worker in range(self.copies)}
        parts = self._all("recording", lambda actor, worker: actor.whole.remote(own[worker]), turn=False)
        return {ticket: group for found in parts for ticket, group in found.items()}

    def demonstrate(self, tasks: Sequence[Task], seed: int, limit: int) -> EpisodeTable:
        tables = self._hold("demonstrations", self._dealt("demonstrate", tasks, seed, limit))
        return EpisodeTable.joined(tables, TAUGHT)

    def sample(self, shape: SyntheticEpisodes, count: int, seed: int) -> None:
        """Sample replies of `count` synthetic episodes, to measure the cost."""
        self._all("rollout", self._dealt("sample", range(count), shape, seed))

    def invent(self, shape: SyntheticEpisodes, count: int, seed: int) -> EpisodeTable:
        """Rows of `count` synthetic episodes, which stay with the workers in place of the step's."""
        tables = self._hold("rows", self._dealt("invent", range(count), shape, seed))
        return EpisodeTable.joined(tables, LEARNED)

    def _dealt(self, name: str, items: Sequence[Any], *arguments: Any) -> Call:
        """A call of a method with every copy's share of some items, by number."""
        size = self.copies
        return lambda actor, copy: getattr(actor, name).remote(share(items, copy, size), *arguments)

    def _hold(self, stage: str, call: Call) -> list[Any]:
        """Call all, and also replacements until the step is learned from."""
        self._learned()
        played = self._all(stage, call)
        self._standing_calls["play"] = call
        return played

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        parts = self._all("evaluation", self._dealt("evaluate", matches))
        return in_order(chain.from_iterable(parts))

    def limit(self, tokens: int) -> None:
        self._tell("limit", method("limit", tokens))

    def peaks(self) -> dict[str, float]:
        return most(self.group.ask("peaks", method("peaks"), range(len(self.group))).results.values())


class Environments(RolloutWorkers):
    """Rollout fragments without samplers: they call those of another team, which has the weights. A sampler that is
    lost during rollout is replaced, and unanswered prompts are sent again."""

    def __init__(self, group: ActorGroup, setup: Setup, owner: GroupOwner, samplers: SamplerGroup) -> None:
        super().__init__(group, setup, owner)
        self.loading = samplers
        group.meanwhile = self._see_to_samplers

    def load(self, weights: Any, version: int) -> Mapping[str, float]:
        self._learned()
        metrics = self.loading.load(weights, version)
        self._introduce()
        self._tell("weights", method("load", version))
        return metrics

    def forget(self) -> None:
        self.loading.forget()
        super().forget()

    def _see_to_samplers(self) -> None:
        known = self.loading.actors
        try:
            self.loading.replace("rollout", self.loading.group.watch())
        finally:  # waiting for a lost sampler would never end
            if self.loading.actors != known:
                self._introduce()

    def _introduce(self) -> None:
        """Tell every environment the current samplers."""
        for actor in self.actors:
            actor.meet.remote(self.loading.actors)  # result ignored: losses are noticed elsewhere


# Engines that split a copy by themselves, as vLLM does: another split needs another engine. 4 engines x tp 1 end, then
# 2 engines x tp 2 start, load weights, and are probed.


class EngineWorkers(RolloutWorkers):
    """Rollout fragments, each with an engine that holds a copy of the model. change: called with copies and devices per
    copy before their actors start. Raises EarlError where impossible. sender: of weights to the engines' workers; None:
    the actors read them."""

    def __init__(
        self,
        group: ActorGroup,
        setup: Setup,
        owner: GroupOwner,
        change: Callable[[int, int], None],
        sender: WeightSender | None,
    ) -> None:
        self._change, self._sender = change, sender
        super().__init__(group, setup, owner)

    @property
    def parts(self) -> int:
        return self._sender.tp if self._sender else 1

    def _sent(self, weights: tuple[WeightSource, Probe], version: int) -> Sequence[LoadedWeights]:
        if not self._sender:
            return ()
        try:
            return self._sender.send(self.group, weights, version)
        except ExchangeFailed as error:
            self._owner.note("dispatch", f"{error}: engines read the weights from object stores instead")
            return ()

    def relayout(self, copies: int, tp: int) -> None:
        """Change to `copies` engines, each over `tp` devices; see `SamplerGroup.relayout`."""
        self._change(copies, tp)
        if self._sender:
            self._sender.tp = tp
        self.forget()
        self._owner.turn(self.group)
        if copies != len(self.group):
            self.group.replace_all(copies)
            self._ready(range(copies))


# Asynchronous rollout: groups of later steps are played while the learner learns. `load` starts the groups that may
# start now and deals them to workers; `play` waits for the step's groups.

ASK_SECONDS = 1.0
"""How long a worker may wait for a step's groups before it answers with those that have ended."""


class AheadWorkers(RolloutWorkers):
    """Rollout workers whose episodes go on while the learner learns; `Ahead` decides when they start."""

    def __init__(self, group: ActorGroup, setup: Setup, owner: GroupOwner, config: Config) -> None:
        self._config = config
        first, rollout, staleness = config.warm_start.steps + 1, config.rollout, config.placement.max_staleness
        self._ahead = Ahead(first, config.total_steps, rollout.prompts, staleness)
        self._limit: int | None = None
        super().__init__(group, setup, owner)

    def play(self, draw: Draw) -> list[GroupOf[TrajectorySummary]]:
        ends = time.monotonic() + self._config.placement.stage_seconds
        while (groups := self._ahead.take(draw.step)) is None:
            missing = [ticket for ticket in self._ahead.playing if ticket.step == draw.step]
            self._collect(draw.step, ASK_SECONDS)
            if time.monotonic() > ends:
                late = {worker for ticket, worker in self._ahead.playing.items() if ticket in missing}
                self.replace("rollout", {one: f"rollout worker {one} has not ended its groups" for one in late})
                ends = time.monotonic() + self._config.placement.stage_seconds
        self._holders = self._ahead.taken
        return groups

    def limit(self, tokens: int) -> None:
        self._limit = tokens
        super().limit(tokens)

    def load(self, weights: Any, version: int) -> Mapping[str, float]:
        """Load these weights, and start the groups that may be played with them."""
        metrics = super().load(weights, version)
        assert self._limit is not None, "the limit is set before the first weights"
        starting = self._ahead.advance(version, self._limit)
        busy = Counter(self._ahead.playing.values())
        dealt: dict[Ticket, int] = {}
        for ticket in starting:
            dealt[ticket] = number = min(range(len(self.group)), key=lambda worker: busy[worker])
            busy[number] += 1
        self._start(dealt)
        return metrics

    def snapshot(self) -> Callable[[Path], None]:
        """Save the groups that wait for the learner; those still playing start again from their seeds."""
        self._collect(0, 0.0)
        found = self._fetch(self._ahead.ended)
        ended = {ticket: found[ticket] for ticket in self._ahead.ended}
        return partial(async_rollout.save, limits=dict(self._ahead.limits), ended=ended)

    def restore(self, folder: Path) -> None:
        limits, saved = async_rollout.load(folder)
        self._ahead.restore(limits)
        self._all("abandon", method("abandon"))
        ended = {t: saved[t] for t in self._ahead.playing if t in saved and self._ahead.recent(t, saved[t])}
        size = len(self.group)
        own = [{ticket: ended[ticket] for ticket in sorted(ended)[number::size]} for number in range(size)]
        held = self._all("start", lambda actor, number: actor.hold.remote(own[number]))
        for number, groups in enumerate(held):
            for ticket, group in groups.items():
                self._ahead.begin(ticket, number)
                self._ahead.end(ticket, number, group)

    def _collect(self, step: int, seconds: float) -> None:
        answers = self.group.ask("rollout", method("ended", step, seconds), range(len(self.group)))
        for number, groups in answers.results.items():
            for ticket, group in groups.items():
                self._ahead.end(ticket, number, group)
        self.replace("rollout", answers.lost)

    def _ready(self, numbers: Sequence[int]) -> None:
        """Make workers ready. Groups that their predecessors were playing or held start again."""
        gone = {ticket: number for number in numbers for ticket in self._ahead.lost(number)}
        super()._ready(numbers)
        taken = gone.keys() & self._ahead.taken.keys()
        self._start({ticket: number for ticket, number in gone.items() if ticket not in taken})
        if taken:
            raise WorkerLost(f"what was played for step {min(taken).step} is gone with the worker that had it")

    def _start(self, dealt: Mapping[Ticket, int]) -> None:
        """Let workers start groups."""
        drawn = {step: draw(self._config, step) for step in {ticket.step for ticket in dealt}}
        orders: dict[int, list[Any]] = {}
        for ticket, number in sorted(dealt.items()):
            self._ahead.begin(ticket, number)
            own, limit = drawn[ticket.step], self._ahead.limits[ticket.step]
            task = {ticket.number: own.tasks[ticket.number]}
            orders.setdefault(number, []).append((ticket.step, task, own.seed, limit))
        if orders:
            answers = self.group.ask("start", lambda actor, number: actor.start.remote(orders[number]), [*orders])
            self.replace("start", answers.lost)
