"""Decides which waiting actions begin now, and on how many units: a pure function of waiting and running actions.

    waiting, in order ─▶ each in turn: the width of least cost ─▶ it begins, or others may pass it, or it blocks them

The goal is a small sum of completion times. The cost of a width is the wait for its units, the seconds on them, and the
delay of other actions: each is delayed by units × seconds / all units. The others are the waiting actions, and future
ones to the extent that they find no unit free, which is unlikely until most units are in use. Future actions are
estimated from the running ones, which return, and from the trajectories that generate now, as many as wait and run
(published: calls are 47 % of their time); counting these twice was found by trial. The wait for units follows from the
expected ends of running actions. ARL-Tangram (arXiv 2603.13019) evicts the last candidates while the sum falls; a price
per unit does the same for one action at a time and accounts for future calls.

An action that waits for more width lets others pass for at most its own expected duration. After that it blocks later
actions on its resources, and if nothing runs, the first action begins: no action starves.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

LETS_PASS = 0.1
"""Share of an action's expected seconds by which it is ordered later, so that short actions pass long ones."""


@dataclass(frozen=True, slots=True, eq=False)
class SpeedCurve:
    """Expected seconds of an action by width, in ascending order: T/(E(m)·m) at m units. Similar actions share a curve.

    Example:
        SpeedCurve((1, 2, 4), (8.0, 4.4, 2.6))
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def least(self) -> int:
        return self.widths[0]

    def at(self, width: int) -> float:
        return self.seconds[self.widths.index(width)]


@dataclass(slots=True, eq=False)
class Action:
    """A waiting or running call.

    Example:
        Action(7, "tests", {"memory": 2.0}, "cores", SpeedCurve((1, 2), (8.0, 4.4)))
    """

    number: int
    tool: str
    needs: Mapping[str, float]
    """Units of each resource that it holds, besides the elastic one."""
    elastic: str
    """The resource of which it holds one of the widths of its curve."""
    curve: SpeedCurve
    asked: float = 0.0
    since: float = 0.0
    """When the first call of its trajectory was asked."""
    units: tuple[int, ...] = ()
    """Of the elastic resource, once it runs."""
    ready_seconds: float = 0.0
    """The time to prepare these units for it."""
    began: float = 0.0
    ends: float = 0.0
    """When it was expected to end."""

    @property
    def order(self) -> tuple[float, int]:
        """First come first served by trajectory, since calls wait least when trajectories end one after the other; long
        calls go a little later."""
        return self.since + LETS_PASS * self.curve.seconds[-1], self.number

    def expected_end(self, now: float) -> float:
        """An action that is overdue is expected to take half as long again, since durations have long tails."""
        return max(self.ends, now + (now - self.began) / 2)


def schedule(
    waiting: Collection[Action],
    running: Collection[Action],
    free: Mapping[str, float],
    capacity: Mapping[str, float],
    now: float,
) -> list[tuple[Action, int]]:
    """The actions that begin now, with their widths. waiting: in order; free: units of every resource; capacity: of the
    elastic ones."""
    left, blocked = dict(free), set[str]()
    grants: list[tuple[Action, int]] = []
    widths = _Widths(running, capacity, len(waiting) - 1, now)
    for action in waiting:
        key, needs, curve = action.elastic, action.needs, action.curve
        width = curve.widths[0]
        fits = key not in blocked and left[key] >= width
        for name, units in needs.items():
            fits = fits and name not in blocked and left[name] >= units
        if fits and len(curve.widths) > 1:
            width = widths.best(key, curve, left[key])
            fits = left[key] >= width
            if not fits and now - action.asked < curve.at(width):
                continue
        if fits:
            grants.append((action, width))
            left[key] -= width
            for name, units in needs.items():
                left[name] -= units
        else:
            blocked.add(key)
            blocked.update(needs)
            if len(blocked) == len(free):
                break
    return grants


@dataclass(slots=True)
class _Widths:
    """Finds the width of least cost."""

    running: Collection[Action]
    capacity: Mapping[str, float]
    waiting: int
    """Number of other waiting actions."""
    now: float
    _ends: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """By resource, the expected ends of running actions with their units, in ascending order."""

    def best(self, key: str, curve: SpeedCurve, free: float) -> int:
        units = self.capacity[key]
        to_come = 3 * len(self.running) + 2 * self.waiting
        price = (self.waiting + to_come * (1 - free / units) ** 8) / units
        costs = [seconds * (1 + price * width) for width, seconds in zip(curve.widths, curve.seconds, strict=True)]
        width = curve.widths[costs.index(min(costs))]
        if width <= free:
            return width
        return min(
            (self._wait(key, width - free) + cost, width) for width, cost in zip(curve.widths, costs, strict=True)
        )[1]

    def _wait(self, key: str, lacking: float) -> float:
        """Expected seconds until this many more units are free."""
        if lacking <= 0:
            return 0.0
        if key not in self._ends:
            own = [one for one in self.running if one.elastic == key]
            self._ends[key] = sorted((one.expected_end(self.now), len(one.units)) for one in own)
        for ends, units in self._ends[key]:
            lacking -= units
            if lacking <= 0:
                return ends - self.now
        return float("inf")
