"""The rollout workers of a cluster, as the stages see them: whoever is lost is replaced, and its share played again."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from earl.batch import Rows
from earl.evaluate import Match
from earl.matches import MatchResult
from earl.placement.cluster.crew import Call, Crew, Keeper
from earl.placement.exchange import joined, rows_from_bytes
from earl.placement.players import in_order, share
from earl.rollout.tasks import Draw
from earl.runs.records import matches_from_bytes
from earl.runs.trajectories import from_bytes
from earl.trajectory import Group, Task


class Workers:
    """Rollout fragments in processes of their own. An episode's draws follow from its seed, not from who plays it.

    Args:
        setup: given an actor and its number, make it ready.
    """

    def __init__(self, crew: Crew, setup: Call, keeper: Keeper) -> None:
        self._crew, self._setup, self._keeper = crew, setup, keeper
        self._limit: int | None = None
        self._weights: tuple[Any, int] | None = None
        self._ready(range(len(crew)))

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
        self._limit = tokens
        self._all("limit", partial(_limit, tokens=tokens))

    def load(self, weights: Any, version: int) -> None:
        """Play with the weights that a reference stands for from now on."""
        self._weights = (weights, version)
        self._all("weights", partial(_load, given=self._weights))

    def save(self, folder: Path) -> None:
        """Nothing was played ahead."""

    def restore(self, folder: Path) -> None:
        """Nothing was played ahead."""

    def _all(self, stage: str, call: Call) -> list[Any]:
        """Every worker's answer, by number."""
        self._keeper.turn(self._crew)
        results: dict[int, Any] = {}
        while missing := [number for number in range(len(self._crew)) if number not in results]:
            answers = self._crew.ask(stage, call, missing)
            results |= answers.results
            self._replace(stage, answers.lost)
        return [results[number] for number in range(len(self._crew))]

    def _replace(self, stage: str, lost: Mapping[int, str]) -> None:
        """Put a new worker in the place of each that was lost, and bring it to where the others are."""
        if not lost:
            return
        began = time.perf_counter()
        for number, why in lost.items():
            self._keeper.failed(f"{why} during {stage}")
            self._crew.replace(number)
        self._ready([*lost])
        for why in lost.values():
            self._keeper.mended(f"{why} during {stage}: replaced in {time.perf_counter() - began:.1f} s")

    def _ready(self, numbers: Sequence[int]) -> None:
        """Make workers ready: fragment, context limit and weights as the others have them."""
        steps: list[Call] = [self._setup]
        if self._limit is not None:
            steps.append(partial(_limit, tokens=self._limit))
        if self._weights is not None:
            steps.append(partial(_load, given=self._weights))
        self._replace("start", self._crew.introduce())
        for step in steps:
            self._replace("start", self._crew.ask("start", step, numbers).lost)


def _limit(actor: Any, _: int, tokens: int) -> Any:
    return actor.limit.remote(tokens)


def _load(actor: Any, _: int, given: tuple[Any, int]) -> Any:
    (weights, probe), version = given
    return actor.load.remote(weights, probe, version)
