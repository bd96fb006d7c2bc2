"""A crew of equals: whoever is lost is replaced, told what the others were told, and asked again."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from earl.dispatch.transports.rendezvous import Rendezvous
from earl.engine.sharding.band import Meeting
from earl.errors import EarlError
from earl.placement.cluster.crew import Call, Crew
from earl.placement.cluster.keeper import Keeper
from earl.placement.cluster.pulse import Member

Setup = Callable[[Any, int, Meeting | None], Any]


class Team:
    """Actors that all play with the same weights. A copy of the model may be split over several: the first of them
    plays, the others compute with it.

    Args:
        setup: given an actor, its number and where the processes of its copy meet, make it ready.
        tp: processes of one copy.
    """

    def __init__(self, crew: Crew, setup: Setup, keeper: Keeper, tp: int = 1) -> None:
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
    def crew(self) -> Crew:
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
