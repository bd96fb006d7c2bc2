"""Who plays: the seam between a step and its rollout fragments, wherever these run."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from earl.batch import Rows, offsets_of
from earl.errors import EarlError
from earl.evaluate import Match
from earl.group import Group, PlayedGroups
from earl.matches import MatchResult
from earl.placement.fragment import RolloutFragment
from earl.placement.peers import Peers
from earl.rollout.invented import Invention
from earl.rollout.pack import pack, trajectories_of
from earl.rollout.tasks import Draw
from earl.runs.storage import void
from earl.runs.trajectories import from_bytes, matches_from_bytes, matches_to_bytes, to_bytes
from earl.trajectory import Task

# Rows between processes: bytes without pickle, and one order for all, however many processes there are.


def rows_to_bytes(rows: Rows, order: NDArray[np.int64]) -> bytes:
    """Rows, and the place of each row's episode [N] among those of all processes."""
    buffer = io.BytesIO()
    np.savez(buffer, order=order, **{field.name: getattr(rows, field.name) for field in fields(Rows)})
    return buffer.getvalue()


def rows_from_bytes(data: bytes) -> tuple[Rows, NDArray[np.int64]]:
    """What `rows_to_bytes` wrote."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return Rows(**{field.name: arrays[field.name] for field in fields(Rows)}), arrays["order"]


def joined(shares: Sequence[tuple[Rows, NDArray[np.int64]]]) -> Rows:
    """Rows of all processes in the order of their episodes, however many processes there are."""
    parts = [rows for rows, _ in shares]
    order = np.argsort(np.concatenate([order for _, order in shares]), kind="stable")
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(Rows)
        if field.name not in ("offsets", "turns")
    }
    turns, first = [], 0
    for part in parts:
        turns.append(np.where(part.turns >= 0, part.turns + first, -1).astype(np.int32))
        first += int(part.turns.max(initial=-1)) + 1
    lengths = np.concatenate([part.lengths for part in parts])
    return Rows(offsets=offsets_of(lengths), turns=np.concatenate(turns), **columns).select(order)


Item = TypeVar("Item")


class StoredTrajectories(Protocol):
    """Rows of a step, here or elsewhere."""

    @property
    def lengths(self) -> NDArray[np.integer[Any]]:
        """Tokens per row, [N]."""

    @property
    def num_turns(self) -> int:
        """K, over all rows."""


class Players(Protocol):
    """All rollout fragments of a run, as one."""

    costs: Mapping[str, float]
    """What it took to play the groups of the last step, by the names that are recorded."""

    def play(self, draw: Draw) -> PlayedGroups:
        """The groups of a step, in order; their tokens may stay where they were played."""

    def rows(self, groups: PlayedGroups) -> StoredTrajectories:
        """The rows of groups of the step: of those that are learned from, as a learner of the same placement takes."""

    def whole(self, groups: PlayedGroups) -> list[Group]:
        """Groups of the step with their tokens."""

    def demonstrate(self, tasks: Sequence[Task], seed: int, limit: int) -> StoredTrajectories:
        """The teacher's episodes of the tasks, under a context limit of `limit` tokens, in order."""

    def sample(self, invention: Invention, count: int, seed: int) -> None:
        """Sample the replies of so many episodes that nobody plays, to see what that takes."""

    def invent(self, invention: Invention, count: int, seed: int) -> StoredTrajectories:
        """Rows of so many episodes that nobody played, in place of the step's."""

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        """The results of matches, by opponent and seat."""

    def limit(self, tokens: int) -> None:
        """Set the context limit of the episodes to come, in tokens."""

    def relayout(self, copies: int, tp: int) -> float:
        """Let the same processes be `copies` copies of the sampler, each split over `tp`, between two steps.

        They have no weights until the next `load`.

        Returns:
            the seconds that it took.

        Raises:
            EarlError: where that cannot be.
        """

    def peaks(self) -> Mapping[str, float]:
        """The most memory that any of them took by stage, in bytes, since this was last asked, where it is counted."""

    def load(self, weights: Any, version: int) -> None:
        """Play with what a learner's `weights` gave from now on."""

    def snapshot(self) -> Callable[[Path], None]:
        """What was played for steps that have not come yet, as it is now; called with a folder, it is written there."""

    def restore(self, folder: Path) -> None:
        """Continue from what a snapshot wrote; whatever else was played is forgotten."""


class PeerPlayers:
    """One fragment in each of the processes of an embedded run; every process is told all that was played."""

    def __init__(self, fragment: RolloutFragment, peers: Peers) -> None:
        self.fragment, self._peers = fragment, peers
        self.costs: Mapping[str, float] = {}

    def play(self, draw: Draw) -> list[Group]:
        """The step's groups, all processes' together."""
        groups = self.fragment.play(draw.step, self._share(draw.tasks), draw.seed)
        self.costs = self.fragment.costs
        parts = [from_bytes(data)[1] for data in self._peers.gather(to_bytes(groups, 0))]
        return [parts[number % self._peers.size][number // self._peers.size] for number in range(len(draw.tasks))]

    def rows(self, groups: PlayedGroups) -> Rows:
        """Packed."""
        return pack(trajectories_of(self.whole(groups)))

    def whole(self, groups: PlayedGroups) -> list[Group]:
        """Nothing lies elsewhere."""
        return [group for group in groups if isinstance(group, Group)]

    def demonstrate(self, tasks: Sequence[Task], seed: int, limit: int) -> Rows:
        """The teacher's rows, all processes' together."""
        rows, order = self.fragment.demonstrate(self._share(tasks), seed, limit)
        return joined([rows_from_bytes(data) for data in self._peers.gather(rows_to_bytes(rows, order))])

    def sample(self, invention: Invention, count: int, seed: int) -> None:
        """Each process its share."""
        self.fragment.sample(invention, [*self._share(range(count))], seed)
        self._peers.gather(b"")

    def invent(self, invention: Invention, count: int, seed: int) -> Rows:
        """All of them in every process."""
        return self.fragment.invent(invention, range(count), seed)[0]

    def evaluate(self, matches: Sequence[Match]) -> list[MatchResult]:
        """Each process measures its share of the matches."""
        results = self.fragment.evaluate([*self._share(matches).values()])
        return in_order(
            result for data in self._peers.gather(matches_to_bytes(results)) for result in matches_from_bytes(data)
        )

    def peaks(self) -> Mapping[str, float]:
        """Not counted: the learner takes of the same processes."""
        return {}

    def limit(self, tokens: int) -> None:
        """Set the context limit of the episodes to come, in tokens."""
        self.fragment.limit(tokens)

    def relayout(self, copies: int, tp: int) -> float:
        """Raises EarlError."""
        raise EarlError(
            f"{copies} copies of the sampler x sampler.tp {tp}: in the embedded placement every process has a copy of "
            "its own; set placement.kind to colocated or disaggregated"
        )

    def load(self, weights: Any, version: int) -> None:
        """Play with these weights from now on."""
        self.fragment.load(weights, version)

    def snapshot(self) -> Callable[[Path], None]:
        """Nothing was played ahead."""
        return void

    def restore(self, folder: Path) -> None:
        """Nothing was played ahead."""

    def _share(self, items: Sequence[Item]) -> dict[int, Item]:
        return share(items, self._peers.rank, self._peers.size)


def share(items: Sequence[Item], rank: int, size: int) -> dict[int, Item]:
    """Every `size`-th item, by its number.

    Example:
        >>> share("abcde", 1, 2)
        {1: 'b', 3: 'd'}
    """
    return {number: items[number] for number in range(len(items))[rank::size]}


def in_order(results: Iterable[MatchResult]) -> list[MatchResult]:
    """Match results by opponent and seat."""
    return sorted(results, key=lambda result: (result.opponent, result.seat))


def most(costs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The largest number of each name.

    Example:
        >>> most([{"sampler/waves": 1.0}, {"sampler/waves": 3.0}])
        {'sampler/waves': 3.0}
    """
    found: dict[str, float] = {}
    for name, value in (item for own in costs for item in own.items()):
        found[name] = max(value, found.get(name, value))
    return found
