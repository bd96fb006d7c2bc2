"""The rollout workers of a cluster, as the stages see them: whoever is lost is replaced, and its share played again."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from earl.errors import EarlError
from earl.evaluate import Match
from earl.group import Group, GroupOf, PlayedGroups
from earl.matches import MatchResult
from earl.outline import Outline
from earl.placement.ahead import Ticket
from earl.placement.cluster.crew import Call, Crew
from earl.placement.cluster.keeper import Keeper
from earl.placement.cluster.manifest import LEARNED, TAUGHT, Table
from earl.placement.cluster.pulse import Member
from earl.placement.cluster.team import Setup, Team
from earl.placement.players import in_order, most, share
from earl.rollout.invented import Invention
from earl.rollout.tasks import Draw
from earl.runs.records import matches_from_bytes
from earl.runs.storage import void
from earl.runs.trajectories import from_bytes
from earl.trajectory import Task


class Workers(Team):
    """Rollout fragments in processes of their own. An episode's draws follow from its seed, not from who plays it."""

    costs: Mapping[str, float] = MappingProxyType({})
    _holders: Mapping[Ticket, int]
    """Of the step's groups, in order, the worker that has each."""

    def play(self, draw: Draw) -> list[GroupOf[Outline]]:
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

    def rows(self, groups: PlayedGroups) -> Table:  # noqa: ARG002
        """The rows of the step's groups, of those that are learned from."""
        counted = partial(_table, step=next(iter(self._holders)).step)
        tables = self._all("rows", counted)
        self._told["rows"] = counted  # whoever is replaced before they are sent plays, and packs, again
        return Table.joined(tables, LEARNED)

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

    def demonstrate(self, tasks: Sequence[Task], seed: int, limit: int) -> Table:
        """The teacher's episodes of the tasks, in order."""
        size = self.copies
        tables = self._hold(
            "demonstrations", lambda actor, number: actor.demonstrate.remote(share(tasks, number, size), seed, limit)
        )
        return Table.joined(tables, TAUGHT)

    def sample(self, invention: Invention, count: int, seed: int) -> None:
        """Sample the replies of so many episodes that nobody plays."""
        size = self.copies
        self._all("rollout", lambda actor, n: actor.sample.remote(invention, [*share(range(count), n, size)], seed))

    def invent(self, invention: Invention, count: int, seed: int) -> Table:
        """Rows of so many episodes that nobody played, which stay with the workers in place of the step's."""
        size = self.copies
        tables = self._hold(
            "rows", lambda actor, number: actor.invent.remote(invention, [*share(range(count), number, size)], seed)
        )
        return Table.joined(tables, LEARNED)

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


class Environments(Workers):
    """Rollout fragments without samplers of their own: they ask those of another team, which has the weights.

    A sampler that is lost while they play is replaced, and asked again by whoever waits for it.
    """

    def __init__(self, crew: Crew, setup: Setup, keeper: Keeper, samplers: Team) -> None:
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
