"""A crew of equals: whoever is lost is replaced, told what the others were told, and asked again."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from earl.placement.cluster.crew import Call, Crew, Keeper, Member


class Team:
    """Actors that all play with the same weights.

    Args:
        setup: given an actor and its number, make it ready.
    """

    def __init__(self, crew: Crew, setup: Call, keeper: Keeper) -> None:
        self._crew, self._setup, self._keeper = crew, setup, keeper
        self._told: dict[str, Call] = {}
        self._ready(range(len(crew)))

    @property
    def actors(self) -> list[Any]:
        """As they are now."""
        return [member.actor for member in self._crew.members]

    def load(self, weights: Any, version: int) -> None:
        """Play with the weights that a reference stands for from now on."""
        self._tell("weights", partial(_load, given=(weights, version)))

    def watch(self) -> None:
        """Replace whoever is lost while others work with them."""
        self._replace("rollout", self._crew.watch())

    def _tell(self, stage: str, call: Call) -> None:
        """Tell all, and whoever is replaced from now on."""
        self._told[stage] = call
        self._all(stage, call)

    @property
    def members(self) -> Sequence[Member]:
        """As they are now."""
        return self._crew.members

    def _all(self, stage: str, call: Call, turn: bool = True) -> list[Any]:
        """Everybody's answer, by number.

        Args:
            turn: whether they need the device for it, where it is shared.
        """
        if turn:
            self._keeper.turn(self._crew)
        results: dict[int, Any] = {}
        while missing := [number for number in range(len(self._crew)) if number not in results]:
            answers = self._crew.ask(stage, call, missing)
            results |= answers.results
            self._replace(stage, answers.lost)
        return [results[number] for number in range(len(self._crew))]

    def _replace(self, stage: str, lost: Mapping[int, str]) -> None:
        """Put a new one in the place of each that was lost, and bring it to where the others are."""
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
        """Bring members to where the others are."""
        self._replace("start", self._crew.introduce())
        for step in (self._setup, *self._told.values()):
            self._replace("start", self._crew.ask("start", step, numbers).lost)


def _load(actor: Any, _: int, given: tuple[Any, int]) -> Any:
    (weights, probe), version = given
    return actor.load.remote(weights, probe, version)
