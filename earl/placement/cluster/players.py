"""The rollout workers of a cluster, as the stages see them: whoever is lost is replaced, and its share played again."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from earl.batch import Rows
from earl.evaluate import Match
from earl.matches import MatchResult
from earl.placement.cluster.crew import Call, Crew, Keeper
from earl.placement.cluster.team import Team
from earl.placement.exchange import joined, rows_from_bytes
from earl.placement.players import in_order, share
from earl.rollout.tasks import Draw
from earl.runs.records import matches_from_bytes
from earl.runs.storage import void
from earl.runs.trajectories import from_bytes
from earl.trajectory import Group, Task


class Workers(Team):
    """Rollout fragments in processes of their own. An episode's draws follow from its seed, not from who plays it."""

    def play(self, draw: Draw) -> list[Group]:
        """The groups of a step, in order."""
        size, tasks, seed = len(self._crew), draw.tasks, draw.seed
        parts = self._all("rollout", lambda actor, number: actor.play.remote(share(tasks, number, size), seed))
        groups = [from_bytes(part)[1] for part in parts]
        return [groups[number % size][number // size] for number in range(len(tasks))]

    def demonstrate(self, tasks: Sequence[Task], seed: int, limit: int) -> Rows:
        """The teacher's episodes of the tasks, in order."""
        size = len(self._crew)
        parts = self._all(
            "demonstrations", lambda actor, number: actor.demonstrate.remote(share(tasks, number, size), seed, limit)
        )
        return joined([rows_from_bytes(part) for part in parts])

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        """The results of matches, by opponent and seat."""
        size = len(self._crew)
        parts = self._all(
            "evaluation", lambda actor, number: actor.evaluate.remote([*share(matches, number, size).values()])
        )
        return in_order(result for part in parts for result in matches_from_bytes(part))

    def limit(self, tokens: int) -> None:
        """Set the context limit of the episodes to come, in tokens."""
        self._tell("limit", partial(_limit, tokens=tokens))

    def snapshot(self) -> Callable[[Path], None]:
        """Nothing was played ahead."""
        return void

    def restore(self, folder: Path) -> None:
        """Nothing was played ahead."""


class Environments(Workers):
    """Rollout fragments without samplers of their own: they ask those of another team, which has the weights.

    A sampler that is lost while they play is replaced, and asked again by whoever waits for it.
    """

    def __init__(self, crew: Crew, setup: Call, keeper: Keeper, samplers: Team) -> None:
        self._samplers = samplers
        crew.meanwhile = self._see_to_samplers
        super().__init__(crew, setup, keeper)

    def load(self, weights: Any, version: int) -> None:
        """Give the samplers the weights that a reference stands for, and play with them from now on."""
        self._samplers.load(weights, version)
        self._introduce()
        self._tell("weights", lambda actor, _: actor.load.remote(version))

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


def _limit(actor: Any, _: int, tokens: int) -> Any:
    return actor.limit.remote(tokens)
