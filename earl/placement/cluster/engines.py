"""Rollout workers with engines that split their copy by themselves, as vLLM does: another split is another engine.

4 engines x tp 1 ─▶ asleep, or ended ─▶ 2 engines x tp 2 ─▶ weights, probe
"""

import time
from collections.abc import Callable
from typing import Any

from earl.placement.cluster.crew import Crew
from earl.placement.cluster.keeper import Keeper
from earl.placement.cluster.players import Workers
from earl.placement.cluster.team import Setup


class EngineWorkers(Workers):
    """Rollout fragments, each with an engine that holds a copy of the model.

    Args:
        change: is told copies and devices of each, before actors are started for them. Raises EarlError where they
            cannot be.
        pooled: whether engines of another split sleep while they are not wanted; else they end. They can where they
            have devices whose memory they give back and that nobody counts: GPUs that they take turns on. Never run on
            a GPU yet.
    """

    def __init__(
        self, crew: Crew, setup: Setup, keeper: Keeper, change: Callable[[int, int], None], pooled: bool
    ) -> None:
        self._change, self._pooled = change, pooled
        super().__init__(crew, setup, keeper)

    def relayout(self, copies: int, tp: int) -> float:
        """Play with other engines from now on: `copies`, each over `tp` devices; see `Team.relayout`."""
        began = time.perf_counter()
        self._learned()
        self._change(copies, tp)
        self._told.pop("weights", None)
        self._keeper.turn(self._crew)
        if copies == len(self._crew):
            return time.perf_counter() - began
        if self._pooled:
            self._replace("rest", self._crew.ask("rest", _rest, range(len(self._crew))).lost)
        if self._crew.resize(copies, self._pooled):
            self._replace("wake", self._crew.ask("wake", _wake, range(copies)).lost)
            for stage, call in self._told.items():
                self._all(stage, call)
        else:
            self._ready(range(copies))
        return time.perf_counter() - began


def _rest(actor: Any, _: int) -> Any:
    return actor.rest.remote()


def _wake(actor: Any, _: int) -> Any:
    return actor.wake.remote()
