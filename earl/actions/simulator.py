"""Simulates the trajectories of a step in time: they generate, call a tool, and generate again.

Calls go to an `ActionQueue`, the class that runs use. Where a trajectory holds resources, it waits for them before its
first call, releases them after its last, and its calls do not wait.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from earl.actions.queue import ActionQueue
from earl.actions.scheduler import Action

HOLD = "hold"
"""A tool whose call lasts as long as its trajectory."""


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """Example: SimulatedCall("tests", 1.7, 60.0, 0.02)"""

    tool: str
    after: float
    """Seconds of generation before the call."""
    seconds: float
    """Seconds of the call on one unit."""
    serial: float = 1.0
    """Share of the seconds that more units do not shorten."""

    def on(self, width: int) -> float:
        return self.seconds * (self.serial + (1 - self.serial) / width)


@dataclass(frozen=True, slots=True)
class Done:
    """Times of a call's request, begin and end; `busy` in units × seconds."""

    tool: str
    asked: float
    began: float
    ended: float
    busy: float


@dataclass(slots=True)
class Played:
    """The result of a simulation."""

    done: list[Done] = field(default_factory=list)
    seconds: float = 0.0
    """Time of the last trajectory's end."""
    decisions: int = 0
    decision_seconds: float = 0.0
    """Wall-clock seconds."""

    @property
    def completion(self) -> float:
        """Mean seconds of a call from its request to its end; waits for held resources are spread over the calls."""
        calls = sum(one.tool != HOLD for one in self.done)
        return sum((one.began if one.tool == HOLD else one.ended) - one.asked for one in self.done) / calls

    @property
    def queue(self) -> float:
        return sum(one.began - one.asked for one in self.done) / sum(one.tool != HOLD for one in self.done)

    @property
    def busy(self) -> float:
        """Units × seconds of running calls."""
        return sum(one.busy for one in self.done)


Route = Callable[[int, str], ActionQueue | None]
"""The queue of a trajectory's calls of a tool, or of `HOLD`; None: they do not wait."""


class _Simulation:
    def __init__(self, trajectories: Sequence[Sequence[SimulatedCall]], route: Route, held_width: int) -> None:
        self._trajectories, self._route, self._held_width = trajectories, route, held_width
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = 0
        self._since: dict[int, float] = {}  # time of a trajectory's first request
        self._asked: dict[int, tuple[float, Callable[[float, Action], None]]] = {}
        self._touched: dict[int, ActionQueue] = {}
        self._woken: dict[int, float] = {}
        self.played = Played()

    def run(self) -> Played:
        for number in range(len(self._trajectories)):
            self._at(0.0, partial(self._open, number))
        while self._events:
            now, _, event = heapq.heappop(self._events)
            event(now)
            if not self._events or self._events[0][0] > now:
                self._decide(now)
        return self.played

    def _at(self, time: float, event: Callable[[float], None]) -> int:
        self._numbers += 1
        heapq.heappush(self._events, (time, self._numbers, event))
        return self._numbers

    def _ask(
        self, queue: ActionQueue, number: int, tool: str, now: float, begun: Callable[[float, Action], None]
    ) -> None:
        self._numbers += 1
        queue.ask(self._numbers, tool, now, self._since.setdefault(number, now))
        self._asked[self._numbers] = now, begun
        self._touched[id(queue)] = queue

    def _decide(self, now: float) -> None:
        touched, self._touched = self._touched, {}
        for key, queue in touched.items():
            began = perf_counter()
            runs = queue.begin(now)
            self.played.decision_seconds += perf_counter() - began
            self.played.decisions += 1
            for run in runs:
                self._asked.pop(run.number)[1](now, run)
            if (wake := queue.wake()) is not None and not now < self._woken.get(key, 0.0) <= wake:
                self._woken[key] = wake = max(wake, now + 1e-6)
                self._at(wake, partial(self._touch, queue))

    def _touch(self, queue: ActionQueue, now: float) -> None:
        self._touched[id(queue)] = queue

    def _open(self, number: int, now: float) -> None:
        holds = self._route(number, HOLD)
        if holds is None:
            return self._generate(number, 0, now, None)

        def begun(began: float, run: Action) -> None:
            def release(ended: float) -> None:
                holds.end(run.number, ended)
                self._touched[id(holds)] = holds
                self.played.done.append(Done(HOLD, now, began, ended, 0.0))

            self._generate(number, 0, began, release)

        return self._ask(holds, number, HOLD, now, begun)

    def _generate(self, number: int, index: int, now: float, release: Callable[[float], None] | None) -> None:
        if index < len(self._trajectories[number]):
            after = self._trajectories[number][index].after
            self._at(now + after, lambda asked: self._call(number, index, asked, release))
        else:
            self.played.seconds = max(self.played.seconds, now)
            if release:
                release(now)

    def _call(self, number: int, index: int, asked: float, release: Callable[[float], None] | None) -> None:
        call = self._trajectories[number][index]
        queue = self._route(number, call.tool)

        def begun(began: float, run: Action | None) -> None:
            width = len(run.units) if run else self._held_width
            seconds = call.on(width) + (run.ready_seconds if run else 0.0)
            self._at(began + seconds, lambda ended: over(began, ended, width, run))

        def over(began: float, ended: float, width: int, run: Action | None) -> None:
            if queue is not None and run is not None:
                queue.end(run.number, ended)
                self._touched[id(queue)] = queue
            self.played.done.append(Done(call.tool, asked, began, ended, width * (ended - began)))
            self._generate(number, index + 1, ended, release)

        if queue is None:
            begun(asked, None)
        else:
            self._ask(queue, number, call.tool, asked, begun)


def simulate(trajectories: Sequence[Sequence[SimulatedCall]], route: Route, held_width: int = 1) -> Played:
    """Simulate all trajectories from time 0 on. held_width: units that a trajectory holds."""
    return _Simulation(trajectories, route, held_width).run()
