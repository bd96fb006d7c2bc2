"""Simulates the trajectories of a step in time: they generate, call a tool, and generate again.

Calls go to an `ActionQueue`, the class that runs use. Where a trajectory holds resources, it waits for them before its
first call, releases them after its last, and its calls do not wait.
"""

import heapq
from collections.abc import Callable, Generator, Sequence
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


Course = Generator[float | tuple[ActionQueue, str, float], tuple[float, Action | None]]
"""A trajectory: it yields the time until which it generates or runs, or a queue, a tool and the time of its first call,
and is resumed then, or when the call begins, with that time and the running call."""


class _Simulation:
    def __init__(self, trajectories: Sequence[Sequence[SimulatedCall]], route: Route, held_width: int) -> None:
        self._trajectories, self._route, self._held_width = trajectories, route, held_width
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = 0
        self._asked: dict[int, Course] = {}
        self._touched: dict[int, ActionQueue] = {}
        self._woken: dict[int, float] = {}
        self.played = Played()

    def run(self) -> Played:
        for number, calls in enumerate(self._trajectories):
            course = self._course(number, calls)
            next(course)  # to its first yield, from which it is resumed
            self._at(0.0, partial(self._resume, course))
        while self._events:
            now, _, event = heapq.heappop(self._events)
            event(now)
            if not self._events or self._events[0][0] > now:
                self._decide(now)
        return self.played

    def _course(self, number: int, calls: Sequence[SimulatedCall]) -> Course:
        now, hold = yield 0.0
        first, holds = None, self._route(number, HOLD)
        if holds:
            first = now
            now, hold = yield holds, HOLD, first
        for call in calls:
            asked, _ = yield now + call.after
            queue, run, began = self._route(number, call.tool), None, asked
            if queue:
                first = asked if first is None else first
                began, run = yield queue, call.tool, first
            width = len(run.units) if run else self._held_width
            now, _ = yield began + (call.on(width) + (run.ready_seconds if run else 0.0))
            self._end(queue, run, now)
            self.played.done.append(Done(call.tool, asked, began, now, width * (now - began)))
        self.played.seconds = max(self.played.seconds, now)
        if hold:
            self._end(holds, hold, now)
            self.played.done.append(Done(HOLD, hold.asked, hold.began, now, 0.0))

    def _resume(self, course: Course, now: float, run: Action | None = None) -> None:
        try:
            wanted = course.send((now, run))
        except StopIteration:
            return
        if isinstance(wanted, float):
            self._at(wanted, partial(self._resume, course))
        else:
            queue, tool, first = wanted
            self._numbers += 1
            queue.ask(self._numbers, tool, now, first)
            self._asked[self._numbers] = course
            self._touched[id(queue)] = queue

    def _end(self, queue: ActionQueue | None, run: Action | None, now: float) -> None:
        if queue and run:
            queue.end(run.number, now)
            self._touched[id(queue)] = queue

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (time, self._numbers, event))

    def _decide(self, now: float) -> None:
        touched, self._touched = self._touched, {}
        for key, queue in touched.items():
            began = perf_counter()
            runs = queue.begin(now)
            self.played.decision_seconds += perf_counter() - began
            self.played.decisions += 1
            for run in runs:
                self._resume(self._asked.pop(run.number), now, run)
            if (wake := queue.wake()) is not None and not now < self._woken.get(key, 0.0) <= wake:
                self._woken[key] = wake = max(wake, now + 1e-6)
                self._at(wake, partial(self._touch, queue))

    def _touch(self, queue: ActionQueue, now: float) -> None:
        self._touched[id(queue)] = queue


def simulate(trajectories: Sequence[Sequence[SimulatedCall]], route: Route, held_width: int = 1) -> Played:
    """Simulate all trajectories from time 0 on. held_width: units that a trajectory holds."""
    return _Simulation(trajectories, route, held_width).run()
