"""The `Players` protocol between a step and its rollout fragments, and its embedded implementation."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from earl.batch import Rows
from earl.evaluation import Match
from earl.group import Group, PlayedGroups
from earl.matches import MatchResult
from earl.placement.episode_store import RowTable
from earl.placement.fragment import RolloutFragment
from earl.placement.peers import Peers
from earl.rollout.pack import pack, trajectories_of
from earl.rollout.tasks import Draw
from earl.runs.trajectories import from_bytes, matches_from_bytes, matches_to_bytes, to_bytes
from earl.trajectory import Task


def rows_to_bytes(rows: Rows, order: NDArray[np.int64]) -> bytes:
    """Rows, and the index of each row's episode [N] over all processes, without pickle."""
    buffer = io.BytesIO()
    np.savez(buffer, order=order, **{field.name: getattr(rows, field.name) for field in fields(Rows)})
    return buffer.getvalue()


def rows_from_bytes(data: bytes) -> tuple[Rows, NDArray[np.int64]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return Rows(**{field.name: arrays[field.name] for field in fields(Rows)}), arrays["order"]


def joined(shares: Sequence[tuple[Rows, NDArray[np.int64]]]) -> Rows:
    """Rows of all processes in the order of their episodes; the result does not depend on the number of processes."""
    order = np.argsort(np.concatenate([order for _, order in shares]), kind="stable")
    parts, first = [], 0
    for rows, _ in shares:
        parts.append(replace(rows, turns=np.where(rows.turns >= 0, rows.turns + first, -1).astype(np.int32)))
        first += rows.num_turns
    return Rows.joined(parts).select(order)


Item = TypeVar("Item")


StoredTrajectories = Rows | RowTable
"""Rows, or counts of those that stay with the workers."""


class Players(Protocol):
    """All rollout fragments of a run, as one. Those of a cluster can be laid out anew, and play synthetic episodes: see
    `RolloutWorkers`."""

    costs: Mapping[str, float]  # costs of the last step's groups, by metric name

    def play(self, draw: Draw) -> PlayedGroups:
        """The groups of a step, in order; their tokens may stay with the workers."""

    def rows(self, groups: PlayedGroups) -> StoredTrajectories:
        """The rows to learn from of a step's groups, as the learner of the same placement takes them."""

    def whole(self, groups: PlayedGroups) -> list[Group]:
        """Groups of the step with their tokens."""

    def demonstrate(self, tasks: Sequence[Task], seed: int, limit: int) -> StoredTrajectories:
        """The teacher's episodes of the tasks, under a context limit of `limit` tokens, in order."""

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        """The results of matches, by opponent and seat."""

    def limit(self, tokens: int) -> None:
        """Set the context limit of later episodes, in tokens."""

    def peaks(self) -> Mapping[str, float]:
        """Peak memory of any process by stage, in bytes, since this was last asked; empty where it is not measured, as
        where the learner uses memory of the same processes."""
        return {}

    def load(self, weights: Any, version: int) -> None:
        """Load the `weights` of a learner of the same placement."""

    def snapshot(self) -> Callable[[Path], None]:
        """Copy the groups played ahead for later steps; the result writes them into a folder. Here there are none."""
        return lambda _: None

    def restore(self, folder: Path) -> None:
        """Continue from a snapshot; all other groups are dropped. Here there are none."""
        del folder


class PeerPlayers(Players):
    """One fragment in each of the processes of an embedded run; every process gets all groups."""

    def __init__(self, fragment: RolloutFragment, peers: Peers) -> None:
        self.fragment, self._peers, self._place = fragment, peers, (peers.rank, peers.size)
        self.costs: Mapping[str, float] = {}

    def play(self, draw: Draw) -> list[Group]:
        groups = self.fragment.play(draw.step, share(draw.tasks, *self._place), draw.seed)
        self.costs = self.fragment.costs
        parts = [from_bytes(data)[1] for data in self._peers.gather(to_bytes(groups, 0))]
        return [parts[number % self._peers.size][number // self._peers.size] for number in range(len(draw.tasks))]

    def rows(self, groups: PlayedGroups) -> Rows:
        return pack(trajectories_of(self.whole(groups)))

    def whole(self, groups: PlayedGroups) -> list[Group]:
        return [group for group in groups if isinstance(group, Group)]

    def demonstrate(self, tasks: Sequence[Task], seed: int, limit: int) -> Rows:
        rows, order = self.fragment.demonstrate(share(tasks, *self._place), seed, limit)
        return joined([rows_from_bytes(data) for data in self._peers.gather(rows_to_bytes(rows, order))])

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        results = self.fragment.evaluate([*share(matches, *self._place).values()])
        return in_order(
            result for data in self._peers.gather(matches_to_bytes(results)) for result in matches_from_bytes(data)
        )

    def limit(self, tokens: int) -> None:
        self.fragment.limit(tokens)

    def load(self, weights: Any, version: int) -> None:
        self.fragment.sampler.load(weights, version)


def share(items: Sequence[Item], rank: int, size: int) -> dict[int, Item]:
    """Every `size`-th item, by its number: share("abcde", 1, 2) gives {1: 'b', 3: 'd'}."""
    return {number: items[number] for number in range(len(items))[rank::size]}


def in_order(results: Iterable[MatchResult]) -> list[MatchResult]:
    return sorted(results, key=lambda result: (result.opponent, result.seat))


def most(costs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in (item for own in costs for item in own.items()):
        found[name] = max(value, found.get(name, value))
    return found
