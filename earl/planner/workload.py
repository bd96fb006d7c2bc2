"""How many cores, and calls at a time, a recorded workload of tools needs: its calls are played again by the scheduler.

An episode's call comes so long after the end of the one before as it did; its first call when it came.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, groupby
from pathlib import Path
from statistics import fmean

from earl.actions.queue import ActionQueue, Durations, ToolCost
from earl.actions.simulator import SimulatedCall, simulate
from earl.errors import EarlError
from earl.trajectory import ToolCall

CORES = "cores"
NEEDED = ("arrival", "duration", "width")
MOST_UNITS = 1 << 20
MOST_SECONDS = 1e10


@dataclass(frozen=True, slots=True)
class TracedCall:
    """Example: TracedCall("12", "python", 3.5, 3.5, 0.04, 1)"""

    episode: str
    tool: str
    arrival: float  # seconds
    began: float
    duration: float
    width: int  # cores; 0: it takes none


@dataclass(frozen=True, slots=True)
class Needed:
    """Times and use of a resource of some size under the recorded calls."""

    resource: str  # `CORES`, or the tool whose calls run at the same time
    units: int
    completion_seconds: float  # mean, from asking to the end
    queue_seconds: float
    use: float  # share of the units over the time from the first call to the last


def read_calls(path: Path) -> list[TracedCall]:
    """The calls in a CSV file with `NEEDED`, and perhaps `tool` and `episode`. Raises EarlError."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EarlError(f"{path} cannot be read as CSV ({error}); give a table with {', '.join(NEEDED)}") from None
    return [_checked(partial(_of_row, row, number), f"{path}, row {number}") for number, row in enumerate(rows, 1)]


def _of_row(row: dict[str, str], number: int) -> TracedCall:
    arrival, duration, width = (float(row[name]) for name in NEEDED)
    if not width.is_integer():
        raise ValueError(f"a width of {width}")
    episode, tool = row.get("episode") or str(-number), row.get("tool") or "call"
    return TracedCall(episode, tool, arrival, arrival, duration, int(width))


def recorded_call(episode: str, call: ToolCall) -> TracedCall:
    """A call that a run recorded. Raises EarlError."""
    began = call.asked + call.queue_seconds
    made = partial(TracedCall, episode, call.tool, call.asked, began, call.run_seconds, call.cores)
    return _checked(made, f"episode {episode}")


def _checked(made: Callable[[], TracedCall], where: str) -> TracedCall:
    try:
        call = made()
        sound = all(0 <= time < MOST_SECONDS for time in (call.arrival, call.duration)) and call.began >= call.arrival
        if not sound:
            raise ValueError("a time that no clock shows")
        if not 0 <= call.width < MOST_UNITS:
            raise ValueError(f"a width of {call.width}")
    except (KeyError, TypeError, ValueError) as error:
        raise EarlError(
            f"{where}: {error} is not a call; it has {', '.join(NEEDED)}: seconds, seconds, and cores (0 for none)"
        ) from None
    return call


def sizes(calls: Sequence[TracedCall], wanted: float | None) -> list[Needed]:
    """By resource: powers of two up to the least size at which hardly a call waits, or with `wanted` mean seconds of
    completion the least size for them. Raises EarlError where no size is enough."""
    if not calls:
        raise EarlError("no call is recorded; runs keep those of the steps in run.keep_trajectories_every")
    resources = {call.tool if not call.width else CORES: call.width for call in calls}
    return [one for resource in resources for one in _sizes(calls, resource, wanted)]


def _sizes(calls: Sequence[TracedCall], resource: str, wanted: float | None) -> list[Needed]:
    own = [call for call in calls if resource == (CORES if call.width else call.tool)]
    widths, serial = _fitted(own)
    least = max(1, *(call.width for call in own))
    free = fmean(_alone(call, serial).on(widths[call.tool][-1]) for call in own)  # where none waits
    if wanted is not None and wanted < free:
        raise EarlError(
            f"a mean completion of {wanted:g} s cannot be had: calls of {resource} run for {free:.3g} s; give more"
        )
    enough = max(1.02 * free, free + 1e-3) if wanted is None else wanted
    tried = []
    for power in count():
        tried.append(_replay(calls, own, resource, least << power))
        if tried[-1].completion_seconds <= enough or least << power > MOST_UNITS:
            break
    if wanted is None:
        return tried
    low, high = (tried[-2].units if len(tried) > 1 else least - 1), tried[-1]
    while high.units - low > 1:
        middle = _replay(calls, own, resource, (low + high.units) // 2)
        low, high = (low, middle) if middle.completion_seconds <= wanted else (middle.units, high)
    return [high]


def _replay(calls: Sequence[TracedCall], own: Sequence[TracedCall], resource: str, units: int) -> Needed:
    widths, serial = _fitted(own)
    queue = ActionQueue({resource: units}, {tool: ToolCost(resource, able) for tool, able in widths.items()})
    first = min(call.arrival for call in calls)
    by_episode = groupby(sorted(calls, key=lambda call: (call.episode, call.arrival)), key=lambda call: call.episode)
    drawn = [_episode([*group], first, serial) for _, group in by_episode]
    played = simulate(drawn, lambda _, tool: queue if tool in widths else None)
    done = [one for one in played.done if one.tool in widths]
    completion, waited = fmean(one.ended - one.asked for one in done), fmean(one.began - one.asked for one in done)
    took = max(one.ended for one in done) - min(one.asked for one in done)
    return Needed(resource, units, completion, waited, sum(one.busy for one in done) / max(units * took, 1e-9))


def _fitted(own: Sequence[TracedCall]) -> tuple[dict[str, tuple[int, ...]], dict[str, float]]:
    """By tool the widths that were seen, and the share of a call that more cores do not shorten. A tool of which one
    width was seen keeps it."""
    durations, seen = Durations(), dict[str, set[int]]()
    for call in own:
        durations.add(call.tool, max(1, call.width), call.duration)
        seen.setdefault(call.tool, set()).add(max(1, call.width))
    widths, serial = {tool: tuple(sorted(able)) for tool, able in seen.items()}, dict[str, float]()
    for tool, able in widths.items():
        one, many = durations.curve(tool, (1, MOST_UNITS)).seconds
        serial[tool] = 1.0 if len(able) == 1 else many / max(one, 1e-9)
    return widths, serial


def _alone(call: TracedCall, serial: Mapping[str, float], after: float = 0.0) -> SimulatedCall:
    """A call with what it would take on one core."""
    fixed = serial.get(call.tool, 1.0)
    return SimulatedCall(call.tool, after, call.duration / (fixed + (1 - fixed) / max(1, call.width)), fixed)


def _episode(calls: Sequence[TracedCall], first: float, serial: Mapping[str, float]) -> list[SimulatedCall]:
    ended, drawn = first, []
    for call in calls:
        drawn.append(_alone(call, serial, max(0.0, call.arrival - ended)))
        ended = call.began + call.duration
    return drawn
