"""The action pool of this process: a tool's call waits here for its cores and quotas.

with pool().action("python", cores=(1,)): …      # the thread waits, and `granted()` are its cores until the end
"""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from earl.actions.queue import ActionQueue, Cores, Rate, ToolCost
from earl.actions.scheduler import Action
from earl.config import ToolsConfig
from earl.trajectory import ToolCall

UNLIMITED = 1 << 30
_granted: ContextVar[tuple[int, ...]] = ContextVar("granted", default=())


def granted() -> tuple[int, ...]:
    """The cores of the action that runs the caller; empty: it has no cores of its own."""
    return _granted.get()


@dataclass(slots=True)
class Admitted:
    """A call that may run; it keeps its cores until the block ends, which sets `run_seconds`."""

    tool: str
    asked: float  # seconds since the epoch
    queue_seconds: float
    cores: tuple[int, ...]
    run_seconds: float = 0.0

    def record(self, fault: str = "") -> ToolCall:
        return ToolCall(self.tool, self.asked, self.queue_seconds, self.run_seconds, len(self.cores), fault)


def own_cores() -> list[int]:
    """The cores of this machine that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]


def part_of(cores: Sequence[int], rank: int, size: int) -> list[int]:
    """The part of `cores` for one of `size` processes; with fewer cores than processes, a core is shared."""
    return [*cores[rank::size]] or [cores[rank % len(cores)]]


class ActionPool:
    """Shares cores among the calls of threads and enforces the tools' limits; each of `size` processes has an equal
    part of a limit."""

    def __init__(self, cores: Sequence[int], tools: ToolsConfig | None = None, size: int = 1) -> None:
        self.cores, self.limits, self.size = [*cores], tools or ToolsConfig(), size
        self._lock = threading.Lock()
        self._costs: dict[str, ToolCost] = {}
        self._queue = ActionQueue({"cores": len(self.cores)}, self._costs, places={"cores": Cores(self.cores)})
        self._numbers = 0
        self._waiting: dict[int, threading.Event] = {}

    @contextmanager
    def action(self, tool: str, cores: tuple[int, ...] = (), since: float | None = None) -> Iterator[Admitted]:
        """Wait until a call may begin. cores: the widths it can use, unless the recipe sets them; empty: it takes no
        core. since: monotonic time of its episode's begin, since earlier episodes go first; None: now."""
        asked, clock = time.monotonic(), time.time()
        run = self._wait(tool, cores, since)
        own = run.units if run is not None and run.elastic == "cores" else ()
        began, token = time.monotonic(), _granted.set(own)
        admitted = Admitted(tool, clock, began - asked, own)
        try:
            yield admitted
        finally:
            _granted.reset(token)
            ended = time.monotonic()
            admitted.run_seconds = ended - began
            if run is not None:
                with self._lock:
                    self._queue.end(run.number, ended)
                    self._begin(ended)

    def _wait(self, tool: str, cores: tuple[int, ...], since: float | None) -> Action | None:
        with self._lock:
            if tool not in self._costs:
                self._costs[tool] = self._cost(tool, cores)
            if not self._costs[tool].resource:
                return None
            self._numbers += 1
            number, begun = self._numbers, threading.Event()
            self._waiting[number] = begun
            now = time.monotonic()
            self._queue.ask(number, tool, now, since)
            self._begin(now)
            wake = self._queue.wake()
        while not begun.wait(None if wake is None else max(0.0, wake - time.monotonic())):
            with self._lock:
                self._begin(time.monotonic())
                wake = self._queue.wake()
        return self._queue.running[number]

    def _begin(self, now: float) -> None:
        for run in self._queue.begin(now):
            self._waiting.pop(run.number).set()

    def _cost(self, tool: str, cores: tuple[int, ...]) -> ToolCost:
        """The resources of a tool's call; resource "": none."""
        limits, needs = self.limits, dict[str, float]()
        most = limits.at_once.get(tool)
        if tool in limits.cores:
            cores = tuple(width for width in (1 << power for power in range(10)) if width <= limits.cores[tool])
        if tool in limits.per_second:
            needs[f"{tool} rate"] = 1.0
            self._queue.add_rate(f"{tool} rate", Rate(limits.per_second[tool] / self.size, since=time.monotonic()))
        calls = f"{tool} calls"
        if most is not None or needs:
            self._queue.add(calls, UNLIMITED if most is None else most // self.size)
        if cores:
            return ToolCost("cores", cores, {**needs, calls: 1.0} if most is not None else needs)
        return ToolCost(calls if most is not None or needs else "", (1,), needs)


_pool: ActionPool | None = None
_pool_lock = threading.Lock()


def pool() -> ActionPool:
    """The pool of this process; without a call of `open_pool` it has all cores and no limits."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ActionPool(own_cores())
        return _pool


def open_pool(cores: Sequence[int], tools: ToolsConfig, size: int) -> None:
    """Open the pool of this process, with these cores and 1/size of the limits."""
    global _pool
    with _pool_lock:
        _pool = ActionPool(cores, tools, size)


def core_use(calls: Sequence[ToolCall], cores: int) -> dict[str, float]:
    """Utilisation of `cores` from the first call to the end of the last; {}: no call took a core."""
    busy = [(one.asked, one.asked + one.queue_seconds + one.run_seconds) for one in calls if one.cores]
    if not busy:
        return {}
    took = max(ended for _, ended in busy) - min(asked for asked, _ in busy)
    return {"tool_core_use": sum(one.cores * one.run_seconds for one in calls) / max(cores * took, 1e-9)}
