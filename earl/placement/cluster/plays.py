"""What an actor does that plays episodes and keeps them, whether its sampler is with it or elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Any

from earl.dispatch.shard import Shard
from earl.dispatch.transports import objects
from earl.engine.split import SplitSampler
from earl.evaluate import Match
from earl.group import GroupOf
from earl.outline import Outline
from earl.placement.ahead import Ticket
from earl.placement.cluster.guarded import Alive, bounded, together
from earl.placement.cluster.manifest import Manifest
from earl.placement.cluster.meeting import Meets, Said
from earl.placement.fragment import RolloutFragment
from earl.placement.holdings import Holdings, RowTable
from earl.rollout.invented import Invention
from earl.runs.records import matches_to_bytes
from earl.runs.trajectories import to_bytes
from earl.trajectory import Task


class Plays(Meets, Alive):
    """An actor that holds a rollout fragment, and what was played with it until it has been learned from."""

    _fragment: RolloutFragment
    _holdings: Holdings

    _split: SplitSampler | None = None
    """Where its copy of the sampler is split over several actors, its part."""

    def limit(self, tokens: int) -> None:
        """Set the context limit of the episodes to come."""
        self._fragment.limit(tokens)

    @together("rollout")
    def play(
        self, step: int, tasks: Mapping[int, Task], seed: int
    ) -> tuple[dict[Ticket, GroupOf[Outline]], Mapping[str, float]]:
        """Play groups of a step, and keep them in place of those that were played of it before; and what it took, see
        `RolloutFragment.costs`."""
        self._holdings.forget(step)
        played = zip(tasks, self._fragment.play(step, tasks, seed), strict=True)
        kept = self._holdings.keep({Ticket(step, number): group for number, group in played})
        return kept, self._fragment.costs

    @together("demonstrations")
    def demonstrate(self, tasks: Mapping[int, Task], seed: int, limit: int) -> RowTable:
        """Play the teacher's episodes, and keep their rows."""
        return self._holdings.pack(*self._fragment.demonstrate(tasks, seed, limit))

    @together("rollout")
    def sample(self, invention: Invention, numbers: Sequence[int], seed: int) -> None:
        """Sample the replies of episodes that nobody plays."""
        self._fragment.sample(invention, numbers, seed)

    @together("rows")
    def invent(self, invention: Invention, numbers: Sequence[int], seed: int) -> RowTable:
        """Keep rows that nobody has played."""
        return self._holdings.pack(*self._fragment.invent(invention, numbers, seed))

    @together("rows")
    def table(self, step: int) -> RowTable:
        """The rows of what is learned from of a step, in numbers."""
        return self._holdings.table(step)

    @together("dispatch")
    def offer(self, manifest: Manifest, worker: int, checksums: bool) -> dict[int, Any]:
        """The rows of the last table, put into the object store once for every host that needs some; by host."""
        return objects.offer(manifest.plan(), manifest.layout.size + worker, self._shards(manifest, worker), checksums)

    @bounded("dispatch")
    def exchange(self, manifest: Manifest, process: int, checksums: bool) -> Said:
        """Give the rows of the last table to the ranks who need them."""
        shards = self._shards(manifest, process - manifest.layout.size)
        return Said(self.exchanged(manifest.plan(), process, shards, checksums).fault)

    def _shards(self, manifest: Manifest, worker: int) -> list[Shard]:
        return [self._holdings.shard(manifest.numbers(worker), manifest.table.columns)]

    @together("recording")
    def whole(self, tickets: Sequence[Ticket]) -> tuple[list[Ticket], bytes]:
        """Which of some groups are here, and these with their tokens; see `earl.runs.trajectories.to_bytes`."""
        found = self._holdings.whole(tickets)
        return [*found], to_bytes([*found.values()], 0)

    @together("evaluation")
    def evaluate(self, matches: Sequence[Match]) -> bytes:
        """Measure matches."""
        return matches_to_bytes(self._fragment.evaluate(matches))
