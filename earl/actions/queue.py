"""The queue of waiting and running actions: capacities, rates, cells of devices, and durations learned on the way.

    ask(number, tool, now) ─▶ waiting ─▶ begin(now): schedule(), then a place for each ─▶ running ─▶ end(number, now)

Time is an argument, so the simulator and the threads of a process use the same queue.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from earl.actions.scheduler import Action, SpeedCurve, schedule
from earl.errors import EarlError

EXPECTED_SECONDS = 1.0
"""Expected seconds at the least width of a tool that was never called."""
EXPECTED_SERIAL = 0.05
"""Expected share of a call that more units do not shorten, until calls of several widths were measured."""
EXPECTED_CALLS = 4.0
"""Weight of that expectation, in calls × squared distance of 1/width from its mean."""
LOADED_FIRST = 2.0
"""A call whose service has to be loaded is ordered later by this many times the load's seconds, so others pass it."""
REMEMBERED = 512
"""Number of recent calls that a mean covers, since calls change as the policy learns."""


class Durations:
    """Mean seconds of calls by tool and width, and the best fitting curve a + b/m. Running calls count with the seconds
    they have taken so far; otherwise short calls, which end first, would bias the mean."""

    def __init__(self) -> None:
        self._means: dict[str, dict[int, tuple[float, float]]] = defaultdict(
            dict
        )  # by tool, width: calls, mean seconds
        self._curves: dict[tuple[str, tuple[int, ...]], tuple[int, SpeedCurve]] = {}
        self._running: dict[str, dict[int, tuple[int, float]]] = defaultdict(dict)  # (calls, sum of their begin times)
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
        """The expected curve; refitted after every tenth more calls, so that many actions share one."""
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
        # Least squares with the expected shape as a prior of weight EXPECTED_CALLS: few calls say little about a curve.
        spread = sum(many * (1 / width - part) ** 2 for width, (many, _) in means.items())
        slope = sum(many * (1 / width - part) * (seconds - mean) for width, (many, seconds) in means.items())
        expected = mean * (1 - EXPECTED_SERIAL) / (EXPECTED_SERIAL + (1 - EXPECTED_SERIAL) * part)
        slope = (slope + EXPECTED_CALLS * expected) / (spread + EXPECTED_CALLS)
        shared = min(max(slope, 0.0), mean / part)
        return mean - shared * part, shared


@dataclass(frozen=True, slots=True)
class ToolCost:
    """The resources of a tool's call.

    Example:
        ToolCost("cores", (1, 2, 4), {"memory": 2.0})
        ToolCost("search slots", needs={"search rate": 1.0})
    """

    resource: str
    """The elastic resource, of which a call holds one of `widths`."""
    widths: tuple[int, ...] = (1,)
    needs: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Rate:
    """A quota of calls per second; at most `burst` accumulate."""

    per_second: float
    burst: float = 1.0
    since: float = 0.0

    def refilled(self, left: float, now: float) -> float:
        left, self.since = min(self.burst, left + (now - self.since) * self.per_second), now
        return left


class Places(Protocol):
    """Assigns numbered units of a resource."""

    def take(self, tool: str, curve: SpeedCurve, width: int) -> tuple[tuple[int, ...], float] | None:
        """Assign units for a width, or fewer if that is faster or all that is free, with the seconds to prepare them;
        None: not even the least width."""

    def give(self, units: tuple[int, ...]) -> None:
        """Release the units."""

    def later(self, tool: str) -> float:
        """Seconds by which a call is ordered later because its units would have to be prepared first."""


class Cores:
    """Numbered cores; the lowest free ones are assigned, since neighbours share caches."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._free = sorted(numbers)

    def take(self, tool: str, curve: SpeedCurve, width: int) -> tuple[tuple[int, ...], float] | None:
        taken, self._free = self._free[:width], self._free[width:]
        return tuple(taken), 0.0

    def give(self, units: tuple[int, ...]) -> None:
        self._free = sorted([*self._free, *units])

    def later(self, tool: str) -> float:
        return 0.0


class Cells:
    """Devices onto which stateful services are loaded, in cells: blocks of 1, 2, 4 or 8 neighbouring devices.

    A device has memory for one service. On a cell of n devices a service takes an n-th of each, so n services can be
    resident on the same devices, and one of them runs at a time. The least recently used services are evicted.
    """

    def __init__(self, devices: int, load_seconds: float, host: int = 8) -> None:
        """load_seconds: time to load a service from host memory onto one device; n devices load in parallel."""
        self._devices, self._load_seconds, self._host = devices, load_seconds, host
        self.resident: list[tuple[str, tuple[int, ...]]] = []  # services with cells, least recently used first
        self._busy = set[int]()

    def take(self, tool: str, curve: SpeedCurve, width: int) -> tuple[tuple[int, ...], float] | None:
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
        return cell, load * self._load_seconds / size

    def give(self, units: tuple[int, ...]) -> None:
        self._busy -= {*units}

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
        """Of the least recently used services, how many have to be considered for eviction from this cell."""
        taken = dict.fromkeys(cell, 1 / len(cell))
        for number in range(len(self.resident), 0, -1):
            other = self.resident[number - 1][1]
            for device in {*cell} & {*other}:
                taken[device] += 1 / len(other)
                if taken[device] > 1:
                    return number
        return 0


class ActionQueue:
    """Actions that share resources. capacity: units by resource; rates, places: of resources that have them.

    Raises:
        EarlError: from `ask`, if a call needs more than the capacity.
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
        self.waiting: list[Action] = []  # in order
        self.running: dict[int, Action] = {}

    def add(self, resource: str, units: float) -> None:
        """Add a resource."""
        if resource not in self.capacity:
            self.capacity[resource] = self.free[resource] = units

    def add_rate(self, resource: str, rate: Rate) -> None:
        self._rates[resource], self.free[resource] = rate, rate.burst

    def ask(self, number: int, tool: str, now: float, since: float | None = None) -> None:
        """Enqueue a call. number: ascending; since: when its trajectory first asked for a call, None: now."""
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

    def begin(self, now: float) -> list[Action]:
        """The actions that begin now."""
        if not self.waiting:
            return []
        for name, rate in self._rates.items():
            self.free[name] = rate.refilled(self.free[name], now)
        begun, full = [], set[str]()
        for action, width in schedule(self._in_turn(), self.running.values(), self.free, self.capacity, now):
            if action.elastic not in full and self._placed(action, width, now):
                begun.append(action)
            else:
                full.add(action.elastic)
        return begun

    def _in_turn(self) -> list[Action]:
        """The waiting actions in order; calls whose service has to be loaded go later."""
        tools = {(one.elastic, one.tool) for one in self.waiting}
        later = {tool: self._places[name].later(tool) for name, tool in tools if name in self._places}
        if not any(later.values()):
            return self.waiting
        return sorted(self.waiting, key=lambda one: (one.order[0] + later.get(one.tool, 0.0), one.number))

    def _placed(self, action: Action, width: int, now: float) -> bool:
        """Whether there are units for an action, which then has them."""
        places = self._places.get(action.elastic)
        place = places.take(action.tool, action.curve, width) if places else (tuple(range(width)), 0.0)
        if place is None:
            return False
        del self.waiting[bisect_left(self.waiting, action.order, key=attrgetter("order"))]
        action.units, action.ready_seconds = place
        action.began, action.ends = now, now + action.curve.at(len(action.units))
        self.running[action.number] = action
        self._change(action, -1)
        self.durations.begin(action.tool, len(action.units), now)
        return True

    def end(self, number: int, now: float) -> None:
        """Release the units of an action, and record its duration."""
        action = self.running.pop(number)
        if places := self._places.get(action.elastic):
            places.give(action.units)
        self._change(action, 1)
        self.durations.end(action.tool, len(action.units), action.began, now)

    def _change(self, action: Action, sign: int) -> None:
        self.free[action.elastic] += sign * len(action.units)
        for name, units in action.needs.items():
            if sign < 0 or name not in self._rates:  # a quota is consumed, not returned
                self.free[name] += sign * units

    def wake(self) -> float | None:
        """When a rate next allows a waiting action; None: no action waits for a rate."""
        times = [
            rate.since + (action.needs[name] - self.free[name]) / rate.per_second
            for name, rate in self._rates.items()
            for action in [next((one for one in self.waiting if name in one.needs), None)]
            if action is not None and self.free[name] < action.needs[name]
        ]
        return min(times, default=None)
