"""Which waiting actions begin now, and on how many units: a pure function of what waits, runs and is free.

    waiting, in order ─▶ each in turn: the width of least cost ─▶ it begins, lets others pass, or keeps its resources

Where each action takes the width of least cost, the sum of completion times is small: the wait for so many units, its
seconds on them, and what they cost the others, each of which the action delays by units × seconds / all units: those
that wait, and those to come where they find no unit free, which is unlikely until most units are in use. What runs
comes back, and as many trajectories as wait and run generate now (published: calls are 47 % of their time); that these
count twice was found by trying.
How long units are waited for is told by the completion times of what runs. After ARL-Tangram (arXiv 2603.13019), which
evicts the last candidates while that sum falls; a price says so of one action at a time, and knows of calls to come.

An action that waits for width lets others pass for as long as it is to run. After that their order holds on every
resource, and where nothing runs the first begins: none starves.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

LETS_PASS = 0.1
"""An action goes as much later as this share of the seconds it is to take, so that short ones pass long ones."""


@dataclass(frozen=True, slots=True, eq=False)
class SpeedCurve:
    """Expected seconds of an action by its width, which rises: T/(E(m)·m) at m units. Actions that are alike share one.

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


@dataclass(frozen=True, slots=True)
class Action:
    """A call that waits.

    Example:
        Action(7, "tests", {"memory": 2.0}, "cores", SpeedCurve((1, 2), (8.0, 4.4)))
    """

    number: int
    tool: str
    needs: Mapping[str, float]
    """Units of every resource that it takes, apart from the elastic one."""
    elastic: str
    """The resource of which it takes a width of its curve."""
    curve: SpeedCurve
    asked: float = 0.0
    since: float = 0.0
    """When the first call of its trajectory was asked."""

    @property
    def order(self) -> tuple[float, int]:
        """First come first served, by trajectory: calls wait least where trajectories end one after the other. One that
        takes longer goes a little later."""
        return self.since + LETS_PASS * self.curve.seconds[-1], self.number


@dataclass(frozen=True, slots=True)
class Begun:
    """An action that runs: what it holds of a resource, when it began, and when it was expected to end."""

    resource: str
    units: int
    began: float
    ends: float

    def expected_end(self, now: float) -> float:
        """One that runs longer than expected takes half as long again: durations have long tails."""
        return max(self.ends, now + (now - self.began) / 2)


@dataclass(frozen=True, slots=True)
class Grant:
    action: Action
    width: int


def schedule(
    waiting: Collection[Action],
    running: Collection[Begun],
    free: Mapping[str, float],
    capacity: Mapping[str, float],
    now: float,
) -> list[Grant]:
    """The actions that begin now, in their order. `waiting` is in that order, `free` names every resource, and
    `capacity` those that actions take a width of."""
    left, blocked = dict(free), set[str]()
    grants: list[Grant] = []
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
            grants.append(Grant(action, width))
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
    """The width of least cost."""

    running: Collection[Begun]
    capacity: Mapping[str, float]
    waiting: int
    """Other actions that wait."""
    now: float
    _ends: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """Of what runs, by resource: when it ends, and its units; the first first."""

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
        """Seconds until so many units are free."""
        if lacking <= 0:
            return 0.0
        if key not in self._ends:
            own = [one for one in self.running if one.resource == key]
            self._ends[key] = sorted((one.expected_end(self.now), one.units) for one in own)
        for ends, units in self._ends[key]:
            lacking -= units
            if lacking <= 0:
                return ends - self.now
        return float("inf")
