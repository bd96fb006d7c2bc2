"""Rows straight from process to process: one group of all who hold rows and all who learn, kept from step to step.

    driver ── enter ──▶ ranks, workers: one group of torch.distributed, made anew when one of them was replaced
    driver ── exchange, with the manifest ──▶ all at once: pack ─▶ send and receive ─▶ unpack

Whoever is lost in the middle is named and ended, so that the others need not wait for it; nobody keeps anything of an
exchange that did not come to its end.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from earl.dispatch.transports.estimate import Link
from earl.errors import EarlError
from earl.placement.cluster.answers import Answers
from earl.placement.cluster.crew import Crew
from earl.placement.cluster.manifest import Moved
from earl.placement.cluster.meeting import Said
from earl.placement.cluster.players import Workers
from earl.placement.holdings import Counts
from earl.placement.peers import Lost

STAGE = "dispatch"


class Torn(EarlError):
    """An exchange failed, and everybody is there, by now."""


class Circle:
    """Ranks of a learner, then workers: the processes of a manifest, joined.

    Args:
        seconds: how long one message may take.

    Attributes:
        link: what joins the hosts, measured when the group was made.
    """

    def __init__(self, workers: Workers, ranks: Crew, seconds: float) -> None:
        self._workers, self._ranks, self._seconds = workers, ranks, seconds
        self._met: tuple[tuple[str, int], ...] = ()
        self.link = Link(float("inf"), 0.0)

    def hosts(self) -> Counts:
        """[P], the host of each process."""
        nodes = [member.node for member in (*self._ranks.members, *self._workers.members)]
        return np.unique(nodes, return_inverse=True)[1].astype(np.int32)

    def join(self) -> None:
        """Make the group, unless it is there. Raises what `exchange` does."""
        members = (*self._ranks.members, *self._workers.members)
        present = tuple((member.node, member.process) for member in members)
        if self._met == present:
            return
        where = self._ask(self._ranks, lambda actor, _: actor.invite.remote(), 0, [0])
        if where.lost:
            raise Lost(f"{'; '.join(where.lost.values())} during {STAGE}")
        hosts, seconds = self.hosts(), self._seconds
        links = self._together(lambda actor, process: actor.enter.remote(where.results[0], process, hosts, seconds))
        self._met = present
        self.link = min(links, key=lambda link: link.bytes_per_second)

    def exchange(self, manifest: Any, checksums: bool) -> Moved:
        """Let every rank take its rows from those who have them.

        Raises:
            Lost: when a rank is gone.
            Torn: when the exchange failed for another reason. Workers that were lost have been replaced, and have
                their rows again.
        """
        results = self._together(lambda actor, process: actor.exchange.remote(manifest, process, checksums))
        moved: Moved = results[0]
        return moved

    def _together(self, call: Callable[[Any, int], Any]) -> list[Any]:
        """Every process's result, by number; all of them are asked at once, for they wait for each other."""
        first, met, self._met = len(self._ranks), self._met, ()
        with ThreadPoolExecutor(2) as pool:
            asked = [
                pool.submit(self._ask, crew, call, begin, numbers)
                for crew, begin, numbers in (
                    (self._ranks, 0, range(first)),
                    (self._workers.crew, first, self._workers.numbers),
                )
            ]
            ranks, workers = (one.result() for one in asked)
        if ranks.lost:
            raise Lost(f"{'; '.join(ranks.lost.values())} during {STAGE}")
        if workers.lost:
            self._workers.mend(STAGE, workers.lost)
            raise Torn(f"{'; '.join(workers.lost.values())} during {STAGE}")
        said: list[Said] = [crew.results[number] for crew in (ranks, workers) for number in sorted(crew.results)]
        if faults := sorted({own.fault for own in said if own.fault}):
            raise Torn(f"{faults[0]} (during {STAGE})")
        self._met = met  # after anything else, some may have left the group
        return [own.result for own in said]

    def _ask(self, crew: Crew, call: Callable[[Any, int], Any], begin: int, numbers: Sequence[int]) -> Answers:
        process = {number: begin + place for place, number in enumerate(numbers)}
        answers = crew.ask(STAGE, lambda actor, number: call(actor, process[number]), numbers, bound=True)
        for number in answers.lost:  # its connections break, and nobody waits for it any longer
            crew.end(crew.members[number])
        return answers
