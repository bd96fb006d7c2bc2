"""Which waiting actions begin now, and on how many units: a pure function of what waits, runs and is free.

    waiting, first come first ─▶ longest prefix that fits at least width ─▶ by elastic resource: evict the last
    elastic ones while the sum of completion times falls ─▶ Grants

That sum is exact for actions that begin, whose units `divided` finds, and estimated for those that go on to wait: a
heap of completion times says when units become free. After ARL-Tangram (arXiv 2603.13019), whose heap has no published
formula. An elastic action may wait for a better width while others pass it, for as long as it takes at least width;
then first come first served holds on every resource, and where nothing runs the first begins: none starves.
"""

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

EXACT = 4096
"""Actions × units × widths up to which units are divided by dynamic programming; above it by the largest gain of a
unit, which is the same where gains fall with width and the units go round."""
DEPTH = 16
"""Waiting actions whose beginning is estimated one by one; those after them share all units evenly."""


@dataclass(frozen=True, slots=True, eq=False)
class SpeedCurve:
    """Expected seconds of an action by its width, which rises: T/(E(m)·m) at m units. Actions that are alike share one.

    Example:
        SpeedCurve((1, 2, 4), (8.0, 4.4, 2.6))
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    steps: tuple[tuple[float, int, int], ...] = field(init=False)
    """(gain in seconds of a unit, units, the width come to), along the lower hull: gains fall."""

    def __post_init__(self) -> None:
        hull: list[int] = []
        for point in range(len(self.widths)):
            while len(hull) > 1 and self._gain(hull[-2], hull[-1]) <= self._gain(hull[-1], point):
                hull.pop()
            hull.append(point)
        steps = [
            (self._gain(one, two), self.widths[two] - self.widths[one], self.widths[two])
            for one, two in pairwise(hull)
            if self._gain(one, two) > 0
        ]
        object.__setattr__(self, "steps", tuple(steps))

    def _gain(self, narrow: int, wide: int) -> float:
        return (self.seconds[narrow] - self.seconds[wide]) / (self.widths[wide] - self.widths[narrow])

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

    def begins(self, now: float) -> bool:
        """Whether it begins where it fits: it has one width, or has waited for more as long as it takes at least
        width. Such a one is not postponed, so none starves."""
        return len(self.curve.widths) == 1 or now - self.asked >= self.curve.seconds[0]


@dataclass(frozen=True, slots=True)
class Begun:
    """An action that runs: what it holds of a resource, and when it is expected to end."""

    resource: str
    units: int
    ends: float


@dataclass(frozen=True, slots=True)
class Grant:
    action: Action
    width: int


def schedule(
    waiting: Collection[Action], running: Iterable[Begun], free: Mapping[str, float], now: float
) -> list[Grant]:
    """The actions that begin now, in the order in which they came. `waiting` is in that order, and `free` names every
    resource."""
    first, rest, late = _longest_prefix(waiting, free)
    if not first:
        return []
    held: dict[str, list[Begun]] = defaultdict(list)
    grants: list[Grant] = []
    for resource, own in first.items():
        units = int(free[resource])
        if all(len(action.curve.widths) == 1 for action in own):
            grants += [Grant(action, action.curve.least) for action in own]
            continue
        for one in running if not held else ():
            held[one.resource].append(one)
        own.sort(key=lambda action: not action.begins(now))
        fewest = sum(action.begins(now) for action in own)
        grants += _Division(own + rest[resource], len(own), held[resource], units, now, late).best(fewest)
    return sorted(grants, key=lambda grant: grant.action.number)


def _longest_prefix(
    waiting: Collection[Action], free: Mapping[str, float]
) -> tuple[dict[str, list[Action]], dict[str, list[Action]], int]:
    """Who fits at least width, and who does not, by elastic resource; and how many were not looked at, for none of
    them can begin. One that does not fit keeps all its resources from those after it."""
    left, blocked, elastic = dict(free), set[str](), set[str]()
    first: dict[str, list[Action]] = {}
    rest: dict[str, list[Action]] = defaultdict(list)
    seen = 0
    for seen, action in enumerate(waiting, 1):  # noqa: B007
        key, least, needs = action.elastic, action.curve.widths[0], action.needs
        fits = key not in blocked and left[key] >= least
        for name, units in needs.items():
            fits = fits and name not in blocked and left[name] >= units
        if not fits:
            blocked.add(key)
            blocked.update(needs)
            rest[key].append(action)
            if len(blocked) == len(free) and (not elastic or len(rest[key]) > 2 * DEPTH):
                break
            continue
        left[key] -= least
        for name, units in needs.items():
            left[name] -= units
        first.setdefault(key, []).append(action)
        if len(action.curve.widths) > 1:
            elastic.add(key)
    return first, rest, len(waiting) - seen


class _Division:
    """How many of the candidates for one resource begin, and how wide."""

    def __init__(
        self, actions: list[Action], candidates: int, held: Sequence[Begun], units: int, now: float, late: int
    ) -> None:
        self._actions, self._candidates, self._units, self._late = actions, candidates, units, late
        self._curves = [action.curve for action in actions]
        self._total = max(1, units + sum(one.units for one in held))
        self._held = heapq.nsmallest(2 * DEPTH, ((max(0.0, one.ends - now), one.units) for one in held))
        self._alike: dict[SpeedCurve, list[int]] = defaultdict(list)
        for number, curve in enumerate(self._curves[:candidates]):
            self._alike[curve].append(number)
        self._tail_from = self._tails()

    def _tails(self) -> NDArray[np.float64]:
        """Of the actions from each on, [actions + 1]: the sum of completion times where each has the width that is best
        for itself and for those after it, which wait while its work is done."""
        curves = [*dict.fromkeys(self._curves)]
        number = {curve: place for place, curve in enumerate(curves)}
        which = np.fromiter((number[curve] for curve in self._curves), np.int64, len(self._curves))
        after = np.arange(len(which), 0, -1)
        costs = np.empty((len(curves), len(which)))
        for place, curve in enumerate(curves):
            seconds, work = np.array(curve.seconds), np.multiply(curve.widths, curve.seconds) / self._total
            costs[place] = (np.outer(after, work) + seconds).min(axis=1)
        own = costs[which, np.arange(len(which))]
        return np.append(own[::-1].cumsum()[::-1], 0.0)

    def best(self, fewest: int) -> list[Grant]:
        """Evict from the last on, but for the first `fewest`, while that helps: of thousands of trials, those at
        distances 0, 1, 2, 4, …, then around the best. All wait where units that run become free soon enough."""
        fewest, most = max(fewest, 0 if self._held else 1), self._candidates
        tried: dict[int, tuple[Shares, float]] = {}

        def cost(number: int) -> float:
            if number not in tried:
                tried[number] = self._tried(number)
            return tried[number][1]

        distances = (0, *(1 << power for power in range(most.bit_length())))
        chosen = min((max(fewest, most - distance) for distance in distances), key=cost)
        step = (most - chosen) // 2
        while step:
            chosen = min((chosen, max(fewest, chosen - step), min(most, chosen + step)), key=cost)
            step //= 2
        return self._grants(tried[chosen][0])

    def _grants(self, shares: "Shares") -> list[Grant]:
        grants = []
        for curve, own in shares.items():
            widths = [width for width, many in own for _ in range(many)]
            grants += [Grant(self._actions[at], width) for at, width in zip(self._alike[curve], widths, strict=False)]
        return grants

    def _tried(self, number: int) -> tuple["Shares", float]:
        """The widths of the first so many, and the sum of the completion times of all."""
        shares = divided(
            {curve: many for curve, own in self._alike.items() if (many := bisect_left(own, number))}, self._units
        )
        heap, total, free = [*self._held], 0.0, self._units
        for curve, own in shares.items():
            for width, many in own:
                seconds = curve.at(width)
                heap.append((seconds, width * many))
                total += seconds * many
                free -= width * many
        return shares, total + self._tail(number, heap, free)

    def _tail(self, start: int, heap: list[tuple[float, int]], free: int) -> float:
        """The sum of completion times of those that go on to wait, until something ends at the earliest. Each takes
        the width that ends it first, for which it may wait longer than for the least."""
        heapq.heapify(heap)
        now, units = heapq.heappop(heap) if heap else (0.0, 0)
        free, total = free + units, 0.0
        after = min(len(self._curves), start + DEPTH)
        for curve in self._curves[start:after]:
            best, popped = (float("inf"), now, 0, free, 0), list[tuple[float, int]]()
            for width, seconds in zip(curve.widths, curve.seconds, strict=True):
                while heap and free < width:
                    popped.append(heapq.heappop(heap))
                    now, free = max(now, popped[-1][0]), free + popped[-1][1]
                if free < width and best[2]:
                    break
                best = min(best, (now + seconds, now, width, free, len(popped)))
            ends, now, width, free, kept = best
            for one in popped[kept:]:
                heapq.heappush(heap, one)
            heapq.heappush(heap, (ends, width))
            free, total = free - width, total + ends
        rest = len(self._curves) - after + self._late
        return total + rest * now + float(self._tail_from[after])


Shares = dict[SpeedCurve, list[tuple[int, int]]]
"""(width, how many) of the actions of each curve, in the order in which they came."""


def divided(numbers: Mapping[SpeedCurve, int], units: int) -> Shares:
    """The widths of so many actions of each curve, within `units` together, for the least sum of seconds. The least
    widths have to fit."""
    most = max((len(curve.widths) for curve in numbers), default=0)
    exact = sum(numbers.values()) * units * most <= EXACT
    return _by_dynamic_programming(numbers, units) if exact else _by_gain(numbers, units)


def _by_dynamic_programming(numbers: Mapping[SpeedCurve, int], units: int) -> Shares:
    """best[u]: the least sum so far within u units; chosen[action][u]: the width of the last action there."""
    curves = [curve for curve, many in numbers.items() for _ in range(many)]
    best: list[float] = [0.0] * (units + 1)
    chosen: list[list[int]] = []
    for curve in curves:
        sums, widths = [float("inf")] * (units + 1), [curve.least] * (units + 1)
        for width, seconds in zip(curve.widths, curve.seconds, strict=True):
            for left in range(units - width + 1):
                if (trial := best[left] + seconds) < sums[left + width]:
                    sums[left + width], widths[left + width] = trial, width
        best = sums
        chosen.append(widths)
    found: dict[SpeedCurve, list[int]] = {curve: [] for curve in numbers}
    for curve, widths in zip(reversed(curves), reversed(chosen), strict=True):
        found[curve].append(widths[units])
        units -= widths[units]
    return {curve: [(width, 1) for width in sorted(own, reverse=True)] for curve, own in found.items()}


def _by_gain(numbers: Mapping[SpeedCurve, int], units: int) -> Shares:
    """Widen where a unit gains most; of equal curves the first come first."""
    shares = {curve: [(curve.least, many)] for curve, many in numbers.items()}
    left = units - sum(curve.least * many for curve, many in numbers.items())
    for (_, size, width), curve in sorted(((step, c) for c in numbers for step in c.steps), key=lambda one: -one[0][0]):
        before, many = shares[curve][0]
        if before + size == width and (wider := min(many, left // size)):  # else an earlier step was open to none
            left -= size * wider
            shares[curve][:1] = [(width, wider), (before, many - wider)]
    return shares
