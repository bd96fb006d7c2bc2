"""Who watches over actors: every call has an end, and whoever is dead or hangs is named within seconds.

Two threads may ask at a time. None may while members are replaced.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ray

from earl.errors import OutOfMemory
from earl.placement.cluster.answers import LEFT, Answers, take
from earl.placement.cluster.pulse import Member, Pulse, silent_of
from earl.placement.cluster.roster import Roster

POLL_SECONDS = 0.5
Call = Callable[[Any, int], Any]
Asked = Callable[[str, Sequence[Member]], None]


class Crew(Roster):
    """The actors of one fragment.

    Args:
        make: starts actor number i.
        patience: seconds without a sign of life after which a process is taken for dead.
        longest: seconds that a call may take.
        group: how many neighbours work on a call together and wait for each other, so that one lost is a call of all of
            them lost. May be changed between two calls.
        asked: is told of every call once it was made: the stage, and the members.

    Attributes:
        meanwhile: done again and again while members work, to see to those that they work with.
    """

    def __init__(
        self,
        name: str,
        size: int,
        make: Callable[[int], Any],
        patience: float,
        longest: float,
        group: int = 1,
        asked: Asked | None = None,
    ) -> None:
        super().__init__(name, size, make, patience)
        self.group, self._asked, self._longest = group, asked, longest
        self.meanwhile: Callable[[], None] = lambda: None

    def ask(self, stage: str, call: Call, numbers: Iterable[int], bound: bool = False) -> Answers:
        """Call members; wait until each has answered or is lost.

        Args:
            stage: what it is for, to be said when it fails.
            call: given an actor and its number, make the remote call.
            numbers: whom to ask.
            bound: whether they wait for each other in this call, whatever they do in others.

        Raises:
            OutOfMemory: when one has no memory left for it, once the others have answered or lost it.
            Exception: what a member's own code raised, unless it says that it lost another.
        """
        short: list[OutOfMemory] = []
        waiting = {call(self.members[number].actor, number): number for number in numbers}
        results: dict[int, Any] = {}
        lost: dict[int, str] = {}
        ends = time.monotonic() + self._longest
        pulses = {number: Pulse() for number in waiting.values()}
        if self._asked and waiting:
            self._asked(stage, [self.members[number] for number in waiting.values()])
        while waiting and not lost:
            done, _ = ray.wait([*waiting], num_returns=len(waiting), timeout=POLL_SECONDS)
            for reference in done:
                self._take(reference, waiting.pop(reference), results, lost, short)
            lost |= self._silent({number: pulses[number] for number in waiting.values()})
            self.meanwhile()
            if waiting and time.monotonic() > ends:
                late = min(waiting.values())
                lost.setdefault(late, f"has not finished {stage} within {self._longest:.0f} s")
        if lost:
            stuck = self._collect(waiting, pulses, results, lost, len(self) if bound else self.group, short)
            if short:
                raise OutOfMemory(stage, short[0].who, short[0].said, stuck)
        if set(lost.values()) > {LEFT}:  # who only lost another is not to blame
            lost = {number: why for number, why in lost.items() if why != LEFT}
        return Answers(results, self._named(lost))

    def mates(self, number: int, group: int | None = None) -> range:
        """Who works together with a member, and itself; `group` in place of the crew's own."""
        size = group or self.group
        first = number - number % size
        return range(first, first + size)

    def watch(self) -> Mapping[int, str]:
        """Members that have died or say nothing, and why; nothing is asked of them."""
        return self._named(self._silent({number: member.pulse for number, member in enumerate(self.members)}))

    def _named(self, lost: Mapping[int, str]) -> dict[int, str]:
        return {number: f"{self.members[number].name} {why}" for number, why in lost.items()}

    def _collect(
        self,
        waiting: Mapping[Any, int],
        pulses: Mapping[int, Pulse],
        results: dict[int, Any],
        lost: dict[int, str],
        group: int,
        short: list[OutOfMemory],
    ) -> bool:
        """Let those finish that can, so that only the work of the lost is repeated. Whether others still wait.

        Those who wait for one that is lost have a moment to say so, which shows who was the first.
        """
        rest = {reference: number for reference, number in waiting.items() if number not in lost}
        stuck = False
        bounds = (POLL_SECONDS * 4, self._patience, self._longest)
        soon, patient, ends = (time.monotonic() + seconds for seconds in bounds)
        while rest and time.monotonic() < ends:
            done, _ = ray.wait([*rest], num_returns=len(rest), timeout=POLL_SECONDS)
            for reference in done:
                self._take(reference, rest.pop(reference), results, lost, short)
            lost |= self._silent({number: pulses[number] for number in rest.values() if number not in lost})
            self.meanwhile()
            late = time.monotonic() > (patient if short else soon)
            struck = {mate for number in lost for mate in self.mates(number, group)} if late else lost
            stuck |= bool({*rest.values()} & {*struck} - lost.keys())
            rest = {reference: number for reference, number in rest.items() if number not in struck}
        return stuck or bool(rest)

    def _take(
        self, reference: Any, number: int, results: dict[int, Any], lost: dict[int, str], short: list[OutOfMemory]
    ) -> None:
        take(reference, number, self.members[number].name, results, lost, short)

    def _silent(self, pulses: Mapping[int, Pulse]) -> dict[int, str]:
        return silent_of(self.members, pulses, self._patience)
