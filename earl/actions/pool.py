"""The actions of this process: a tool's call waits here for its cores and quota, and is recorded.

with pool().action("python", cores=(1,)): …      # the thread waits, and `granted()` are its cores until the end
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from statistics import fmean

from earl.actions.queue import ActionQueue, Cores, Rate, RunningAction, ToolCost
from earl.config import ToolsConfig

UNLIMITED = 1 << 30
_granted: ContextVar[tuple[int, ...]] = ContextVar("granted", default=())


def granted() -> tuple[int, ...]:
    """The cores of the action that the caller is part of; none: it has no cores of its own."""
    return _granted.get()


@dataclass(frozen=True, slots=True)
class Recorded:
    """A call that has ended, in seconds since the pool was made."""

    tool: str
    asked: float
    began: float
    ended: float
    cores: int


def cores_of(rank: int, size: int) -> list[int]:
    """Those of this machine that one of `size` processes may use."""
    here = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
    return here[rank::size] or [here[rank % len(here)]]


class ActionPool:
    """Shares cores among the calls of threads, and keeps to the tools' limits, of which `size` processes have a part
    each."""

    def __init__(self, cores: Sequence[int], tools: ToolsConfig | None = None, size: int = 1) -> None:
        self.cores, self._limits, self._size = [*cores], tools or ToolsConfig(), size
        self._lock, self._began = threading.Lock(), time.monotonic()
        self._costs: dict[str, ToolCost] = {}
        self._queue = ActionQueue({"cores": len(self.cores)}, self._costs, places={"cores": Cores(self.cores)})
        self._numbers = 0
        self._waiting: dict[int, threading.Event] = {}
        self.recorded: list[Recorded] = []

    @contextmanager
    def action(self, tool: str, cores: tuple[int, ...] = ()) -> Iterator[None]:
        """Wait until a call may begin. cores: the widths that it can use, unless the recipe says; none: it takes no
        core."""
        asked = time.monotonic()
        run = self._wait(tool, cores)
        own = run.place.units if run is not None and run.action.elastic == "cores" else ()
        began, token = time.monotonic(), _granted.set(own)
        try:
            yield
        finally:
            _granted.reset(token)
            with self._lock:
                ended = time.monotonic()
                if run is not None:
                    self._queue.end(run.action.number, ended)
                    self._begin(ended)
                since = self._began
                self.recorded.append(Recorded(tool, asked - since, began - since, ended - since, len(own)))

    def take(self) -> list[Recorded]:
        """What was recorded since the last time."""
        with self._lock:
            taken, self.recorded = self.recorded, []
        return taken

    def _wait(self, tool: str, cores: tuple[int, ...]) -> RunningAction | None:
        with self._lock:
            if tool not in self._costs:
                self._costs[tool] = self._cost(tool, cores)
            if not self._costs[tool].resource:
                return None
            self._numbers += 1
            number, begun = self._numbers, threading.Event()
            self._waiting[number] = begun
            self._queue.ask(number, tool)
            self._begin(time.monotonic())
            wake = self._queue.wake()
        while not begun.wait(None if wake is None else max(0.0, wake - time.monotonic())):
            with self._lock:
                self._begin(time.monotonic())
                wake = self._queue.wake()
        return self._queue.running[number]

    def _begin(self, now: float) -> None:
        for run in self._queue.begin(now):
            self._waiting.pop(run.action.number).set()

    def _cost(self, tool: str, cores: tuple[int, ...]) -> ToolCost:
        """What a call of a tool takes; resource "": nothing."""
        limits, needs = self._limits, dict[str, float]()
        most = limits.at_once.get(tool)
        if tool in limits.cores:
            cores = tuple(width for width in (1 << power for power in range(10)) if width <= limits.cores[tool])
        if tool in limits.per_second:
            needs[f"{tool} rate"] = 1.0
            self._queue.add_rate(f"{tool} rate", Rate(limits.per_second[tool] / self._size, since=time.monotonic()))
        calls = f"{tool} calls"
        if most is not None or needs:
            self._queue.add(calls, UNLIMITED if most is None else most // self._size)
        if cores:
            return ToolCost("cores", cores, {**needs, calls: 1.0} if most is not None else needs)
        return ToolCost(calls if most is not None or needs else "", (1,), needs)


_pool: ActionPool | None = None
_pool_lock = threading.Lock()


def pool() -> ActionPool:
    """That of this process; unless `open_pool` was called it has all cores and no limits."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ActionPool(cores_of(0, 1))
        return _pool


def open_pool(tools: ToolsConfig, rank: int = 0, size: int = 1) -> ActionPool:
    """Begin a pool for one of `size` processes of this machine."""
    global _pool
    with _pool_lock:
        _pool = ActionPool(cores_of(rank, size), tools, size)
        return _pool


def action_metrics(recorded: Sequence[Recorded], cores: int) -> dict[str, float]:
    """Of each tool the mean seconds that a call waited and ran; of the cores the share that was used from
    the first call to the last."""
    by_tool: dict[str, list[Recorded]] = defaultdict(list)
    for one in recorded:
        by_tool[one.tool].append(one)
    metrics = {}
    for tool, own in sorted(by_tool.items()):
        metrics[f"tool/{tool}/queue_seconds"] = fmean(one.began - one.asked for one in own)
        metrics[f"tool/{tool}/seconds"] = fmean(one.ended - one.began for one in own)
    if busy := sum(one.cores * (one.ended - one.began) for one in recorded):
        took = max(one.ended for one in recorded) - min(one.asked for one in recorded)
        metrics["tool_core_use"] = busy / (cores * took)
    return metrics
