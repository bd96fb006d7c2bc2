"""What waits and what runs on some resources: capacity, rates, cells of devices, and durations learned on the way.

    ask(number, tool, now) ─▶ waiting ─▶ begin(now): schedule(), then a place for each ─▶ running ─▶ end(number, now)

Time is an argument: a simulator and a process with threads use the same queue.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from earl.actions.scheduler import Action, Begun, SpeedCurve, schedule
from earl.errors import EarlError

EXPECTED_SECONDS = 1.0
"""At least width, of a tool of which nothing was seen."""
EXPECTED_SERIAL = 0.05
"""Share of a call that more units are expected not to shorten, until calls of several widths were seen."""
EXPECTED_CALLS = 4.0
"""What that weighs, in calls × squared distance of 1/width from its mean."""
LOADED_FIRST = 2.0
"""Loads of a service by whose seconds a call goes later that has to wait for one: those that need none pass it."""
REMEMBERED = 512
"""Calls that count in a mean: what a tool is asked changes as the policy learns."""


class Durations:
    """The mean seconds of calls by tool and width, and the curve a + b/m that fits them best. Those that still run
    count with what they have taken: else, while the long ones run, the short ones that ended tell the mean."""

    def __init__(self) -> None:
        self._means: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)  # by tool and width: calls, seconds
        self._curves: dict[tuple[str, tuple[int, ...]], tuple[int, SpeedCurve]] = {}
        self._running: dict[str, dict[int, tuple[int, float]]] = defaultdict(dict)  # calls, the sum of their beginnings
        self._seen: dict[str, int] = defaultdict(int)

    def begin(self, tool: str, width: int, now: float) -> None:
        calls, began = self._running[tool].get(width, (0, 0.0))
        self._running[tool][width] = calls + 1, began + now

    def end(self, tool: str, width: int, began: float, now: float) -> None:
        calls, sum_began = self._running[tool][width]
        self._running[tool][width] = calls - 1, sum_began - began
        self.add(tool, width, now - began)

    def add(self, tool: str, width: int, seconds: float) -> None:
        calls, mean = self._means[tool].get(width, (0.0, 0.0))
        calls = min(calls + 1, REMEMBERED)
        self._means[tool][width] = calls, mean + (seconds - mean) / calls
        self._seen[tool] += 1

    def curve(self, tool: str, widths: tuple[int, ...], now: float = 0.0) -> SpeedCurve:
        """What is expected now; drawn anew whenever a tenth more calls were seen, so that many actions share one."""
        seen = self._seen[tool]
        drawn, curve = self._curves.get((tool, widths), (-1, None))
        if curve is None or seen > 1.1 * drawn:
            fixed, shared = self._fit(self._with_running(tool, now))
            curve = SpeedCurve(widths, tuple(fixed + shared / width for width in widths))
            self._curves[tool, widths] = seen, curve
        return curve

    def _with_running(self, tool: str, now: float) -> dict[int, tuple[float, float]]:
        running = self._running[tool]
        taken = {width: max(0.0, calls * now - began) for width, (calls, began) in running.items()}
        return {
            width: (calls, mean + taken.get(width, 0.0) / calls) for width, (calls, mean) in self._means[tool].items()
        }

    def _fit(self, means: Mapping[int, tuple[float, float]]) -> tuple[float, float]:
        if not means:
            return EXPECTED_SERIAL * EXPECTED_SECONDS, (1 - EXPECTED_SERIAL) * EXPECTED_SECONDS
        calls = sum(many for many, _ in means.values())
        mean = sum(many * seconds for many, seconds in means.values()) / calls
        part = sum(many / width for width, (many, _) in means.items()) / calls
        # Least squares, held to that shape by EXPECTED_CALLS: what few calls took says little of a curve.
        spread = sum(many * (1 / width - part) ** 2 for width, (many, _) in means.items())
        slope = sum(many * (1 / width - part) * (seconds - mean) for width, (many, seconds) in means.items())
        expected = mean * (1 - EXPECTED_SERIAL) / (EXPECTED_SERIAL + (1 - EXPECTED_SERIAL) * part)
        slope = (slope + EXPECTED_CALLS * expected) / (spread + EXPECTED_CALLS)
        shared = min(max(slope, 0.0), mean / part)
        return mean - shared * part, shared


@dataclass(frozen=True, slots=True)
class ToolCost:
    """What a call of a tool takes.

    Example:
        ToolCost("cores", (1, 2, 4), {"memory": 2.0})
        ToolCost("search slots", needs={"search rate": 1.0})
    """

    resource: str
    """Of which it takes one of `widths`."""
    widths: tuple[int, ...] = (1,)
    needs: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Rate:
    """A quota of so many a second; at most `burst` are saved up."""

    per_second: float
    burst: float = 1.0
    since: float = 0.0

    def refilled(self, left: float, now: float) -> float:
        left, self.since = min(self.burst, left + (now - self.since) * self.per_second), now
        return left


@dataclass(frozen=True, slots=True)
class Place:
    """The units that an action has, and the seconds that it takes to make them ready for it."""

    units: tuple[int, ...]
    ready_seconds: float = 0.0


class Places(Protocol):
    """Gives units of a resource by number."""

    def take(self, tool: str, curve: SpeedCurve, width: int) -> Place | None:
        """Units for a width, or fewer where that is better or all that there is; None: not even the least."""

    def give(self, place: Place) -> None:
        """Take them back."""

    def later(self, tool: str) -> float:
        """Seconds by which a call of it goes later than others, as its units would have to be made ready first."""


class Cores:
    """Cores by number; those next to each other share caches, so the lowest free ones are given."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._free = sorted(numbers)

    def take(self, tool: str, curve: SpeedCurve, width: int) -> Place | None:
        taken, self._free = self._free[:width], self._free[width:]
        return Place(tuple(taken))

    def give(self, place: Place) -> None:
        self._free = sorted([*self._free, *place.units])

    def later(self, tool: str) -> float:
        return 0.0


class Cells:
    """Devices that services with state are loaded onto, in cells: blocks of 1, 2, 4 or 8 neighbours.

    A device has memory for one service. On a cell of n a service takes an n-th of each, so that n services stay on the
    same devices, which one of them uses at a time. Where another needs the memory, the least recently used go first.
    """

    def __init__(self, devices: int, load_seconds: float, host: int = 8) -> None:
        """load_seconds: of a service onto one device, from host memory; n devices load at once."""
        self._devices, self._load_seconds, self._host = devices, load_seconds, host
        self.resident: list[tuple[str, tuple[int, ...]]] = []  # services on their cells, the least recently used first
        self._busy = set[int]()

    def take(self, tool: str, curve: SpeedCurve, width: int) -> Place | None:
        ways = [(curve.at(size), False, size) for size in curve.widths]
        ways += [(curve.at(size) + self._load_seconds / size, True, size) for size in curve.widths if size <= width]
        for _, load, size in sorted(ways):
            cells = [cell for cell in self._idle(size) if load or (tool, cell) in self.resident]
            if cells:
                break
        else:
            return None
        cell = min(cells, key=self._leaving) if load else cells[0]
        leaving = self._leaving(cell) if load else 0
        kept = [one for one in self.resident[:leaving] if not {*one[1]} & {*cell}] + self.resident[leaving:]
        self.resident = [one for one in kept if one != (tool, cell)] + [(tool, cell)]
        self._busy |= {*cell}
        return Place(cell, load * self._load_seconds / size)

    def give(self, place: Place) -> None:
        self._busy -= {*place.units}

    def later(self, tool: str) -> float:
        loaded = any(name == tool and not self._busy & {*cell} for name, cell in self.resident)
        return 0.0 if loaded else LOADED_FIRST * self._load_seconds

    def _idle(self, size: int) -> list[tuple[int, ...]]:
        return [
            cell
            for first in range(0, self._devices - size + 1)
            if first % self._host % size == 0
            and first // self._host == (first + size - 1) // self._host
            and not self._busy & {*(cell := tuple(range(first, first + size)))}
        ]

    def _leaving(self, cell: tuple[int, ...]) -> int:
        """How many of the least recently used services leave these devices for one more, as far as they are on them."""
        taken = dict.fromkeys(cell, 1 / len(cell))
        for number in range(len(self.resident), 0, -1):
            other = self.resident[number - 1][1]
            for device in {*cell} & {*other}:
                taken[device] += 1 / len(other)
                if taken[device] > 1:
                    return number
        return 0


@dataclass(frozen=True, slots=True)
class RunningAction(Begun):
    """An action that has begun."""

    action: Action
    place: Place


class ActionQueue:
    """Actions that share resources. `capacity` in units; a resource may have `rates` or `places` beside.

    Raises:
        EarlError: from `ask`, where a call takes more than there is.
    """

    def __init__(
        self,
        capacity: Mapping[str, float],
        costs: Mapping[str, ToolCost],
        rates: Mapping[str, Rate] | None = None,
        places: Mapping[str, Places] | None = None,
        durations: Durations | None = None,
    ) -> None:
        self.capacity, self.costs = dict(capacity), costs
        self.free, self.durations = dict(capacity), durations or Durations()
        self._rates = dict(rates or {})
        self.free |= {name: rate.burst for name, rate in self._rates.items()}
        self._places: dict[str, Places] = dict(places or {})
        self.waiting: list[Action] = []  # in their order
        self.running: dict[int, RunningAction] = {}

    def add(self, resource: str, units: float) -> None:
        """Share one more resource."""
        if resource not in self.capacity:
            self.capacity[resource] = self.free[resource] = units

    def add_rate(self, resource: str, rate: Rate) -> None:
        self._rates[resource], self.free[resource] = rate, rate.burst

    def ask(self, number: int, tool: str, now: float, since: float | None = None) -> None:
        """Let a call wait. Numbers rise. since: when its trajectory first asked; None: it does so now."""
        cost = self.costs[tool]
        widths = tuple(width for width in cost.widths if width <= self.capacity[cost.resource])
        lacking = [name for name, units in cost.needs.items() if units > self._most(name)]
        if lacking or not widths:
            name = lacking[0] if lacking else cost.resource
            raise EarlError(f"a call of {tool} takes more {name} than the {self._most(name):g} that there is")
        curve = self.durations.curve(tool, widths, now)
        action = Action(number, tool, cost.needs, cost.resource, curve, now, now if since is None else since)
        insort(self.waiting, action, key=attrgetter("order"))

    def _most(self, name: str) -> float:
        return self._rates[name].burst if name in self._rates else self.capacity.get(name, 0.0)

    def begin(self, now: float) -> list[RunningAction]:
        """Those that begin now."""
        if not self.waiting:
            return []
        for name, rate in self._rates.items():
            self.free[name] = rate.refilled(self.free[name], now)
        begun, full = [], set[str]()
        for grant in schedule(self._in_turn(), self.running.values(), self.free, self.capacity, now):
            if grant.action.elastic not in full:
                run = self._placed(grant.action, grant.width, now)
                begun += [run] if run else []
                full |= set() if run else {grant.action.elastic}
        return begun

    def _in_turn(self) -> list[Action]:
        """What waits, in its order, where it matters with what has to be loaded later."""
        tools = {(one.elastic, one.tool) for one in self.waiting}
        later = {tool: self._places[name].later(tool) for name, tool in tools if name in self._places}
        if not any(later.values()):
            return self.waiting
        return sorted(self.waiting, key=lambda one: (one.order[0] + later.get(one.tool, 0.0), one.number))

    def _placed(self, action: Action, width: int, now: float) -> RunningAction | None:
        places = self._places.get(action.elastic)
        place = places.take(action.tool, action.curve, width) if places else Place(tuple(range(width)))
        if place is None:
            return None
        del self.waiting[bisect_left(self.waiting, action.order, key=attrgetter("order"))]
        units = len(place.units)
        run = RunningAction(action.elastic, units, now, now + action.curve.at(units), action, place)
        self.running[action.number] = run
        self._change(run, -1)
        self.durations.begin(action.tool, units, now)
        return run

    def end(self, number: int, now: float) -> RunningAction:
        """Give back what an action held, and learn how long it took."""
        run = self.running.pop(number)
        if places := self._places.get(run.action.elastic):
            places.give(run.place)
        self._change(run, 1)
        self.durations.end(run.action.tool, run.units, run.began, now)
        return run

    def _change(self, run: RunningAction, sign: int) -> None:
        self.free[run.resource] += sign * run.units
        for name, units in run.action.needs.items():
            if sign < 0 or name not in self._rates:  # what a rate gave is spent
                self.free[name] += sign * units

    def wake(self) -> float | None:
        """When a rate next has what a waiting action takes of it; None: no action waits for one."""
        times = [
            rate.since + (action.needs[name] - self.free[name]) / rate.per_second
            for name, rate in self._rates.items()
            for action in [next((one for one in self.waiting if name in one.needs), None)]
            if action is not None and self.free[name] < action.needs[name]
        ]
        return min(times, default=None)
