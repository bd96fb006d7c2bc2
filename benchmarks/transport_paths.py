"""The transports of rows in a run, measured with a run's actors: by objects and by peers.

workers with random rows ─▶ RowDispatcher ─▶ learner ranks        every transport in turn
"""

import time
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Literal
from unittest.mock import Mock

import numpy as np
import ray

from earl.batch import Rows
from earl.benchmarks.layouts import batch
from earl.benchmarks.repeats import in_turns, interval
from earl.config import PlacementConfig
from earl.dispatch.rows import Work
from earl.parallel.layout import Layout
from earl.placement.episode_store import EpisodeStore, RowTable
from earl.placement.ray.actor_group import ActorGroup
from earl.placement.ray.coordinator import connected
from earl.placement.ray.learner import LearnerActor, LearnerGroup
from earl.placement.ray.memory_budget import Budget
from earl.placement.ray.rollout_actor import EpisodePlayer
from earl.placement.ray.rollout_workers import RolloutWorkers
from earl.placement.ray.row_exchange import LEARNED, EpisodeTable, RowDispatcher
from earl.rollout.pack import Learnable

TOKENS = (1_000, 10_000, 100_000, 1_000_000)
"""Of each worker."""
ROW_TOKENS = 500
WAYS: tuple[Literal["objects", "peers"], ...] = ("objects", "peers")
WARM = 3  # dispatches before the measured ones: the first makes connections and touches new memory


class MadeUpWorker(EpisodePlayer):
    def fill(self, tokens: int, seed: int) -> RowTable:
        count = max(1, tokens // ROW_TOKENS)
        lengths = np.random.default_rng(seed).integers(ROW_TOKENS // 2, ROW_TOKENS * 3 // 2, count)
        made = batch(lengths.tolist(), 1, seed)
        rows = Rows(**{column.name: getattr(made, column.name) for column in fields(Rows)})
        self._episodes, self._budget = EpisodeStore(Learnable()), Budget(None)
        return self._episodes.pack(rows, np.arange(count))


class Rank(LearnerActor):
    def ready(self) -> None:
        self._budget = Budget(None)


def run(workers: int, ranks: int, repeats: int, tokens: Sequence[int] = TOKENS) -> dict[str, Any]:
    """Measure all sizes. For the result see `earl bench ways --help`."""
    with connected(None, 1):
        bench = Bench(workers, ranks)
        return {"workers": workers, "ranks": ranks, "rows": [bench.measured(size, repeats) for size in tokens]}


class Bench:
    def __init__(self, workers: int, ranks: int) -> None:
        owner = Mock()  # recovers nothing: no failure is expected
        owner.failed.side_effect = RuntimeError("an actor of the benchmark failed")
        bounds = (60.0, 600.0)
        self._ranks = ActorGroup("learner rank", ranks, lambda _: _actor(Rank), *bounds, ranks)
        self._group = ActorGroup("rollout worker", workers, lambda _: _actor(MadeUpWorker), *bounds)
        assert not self._ranks.introduce(), "ranks answer"
        ray.get([member.actor.ready.remote() for member in self._ranks.members])
        players = RolloutWorkers(self._group, lambda actor, *_: actor.ping.remote(), owner)
        self._learners: dict[str, LearnerGroup] = {}
        for way in WAYS:
            settings, layout = PlacementConfig(transport=way), Layout(ranks)
            dispatcher = RowDispatcher(players, self._ranks, layout, Work(), settings, owner)
            self._learners[way] = LearnerGroup(self._ranks, owner, dispatcher)

    def measured(self, tokens: int, repeats: int) -> dict[str, Any]:
        filled = [member.actor.fill.remote(tokens, number) for number, member in enumerate(self._group.members)]
        table = EpisodeTable.joined(ray.get(filled), LEARNED)

        def dispatched(way: str, _: int) -> float:
            began = time.perf_counter()
            self._learners[way].take(table, seed=7, minibatches=1)
            return time.perf_counter() - began

        seconds = in_turns({way: partial(dispatched, way) for way in WAYS}, repeats, WARM)
        told = {way: interval(own) for way, own in seconds.items()}
        return {"tokens": tokens, "bytes": self._learners["peers"].costs["dispatch/bytes"], **told}


def _actor(kind: type) -> Any:
    return ray.remote(concurrency_groups={"health": 1, "saving": 1})(kind).options(num_cpus=0).remote()
