"""Actions that share external resources, against trajectories and tasks that hold them: simulated here, in
actions_real.py on the cores of this machine.

The simulated workloads are fitted to what ARL-Tangram (arXiv 2603.13019) published of its own system, not to how much
it gained; the rest is assumed, as each says. Sizes are the paper's: 15 hosts of 256 cores, 40 devices on hosts of 8.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from statistics import median
from time import thread_time
from typing import Any

from earl.actions.queue import ActionQueue, Cells, Durations, Rate, ToolCost
from earl.actions.scheduler import Action, SpeedCurve, schedule
from earl.actions.simulator import HOLD, Route, SimulatedCall, simulate
from earl.benchmarks import actions_real

HOSTS, CORES = 15, 256
WIDTHS = (1, 2, 4, 8, 16)
TARGETS = {"completion_ratio": 4.3, "resources_saved": 0.712, "step_ratio": 1.5}
"""Published: the largest of each."""

Trajectories = list[list[SimulatedCall]]
Arm = Callable[[float], tuple[Route, int]]
"""How calls take resources, of a share of them: where calls wait, and the width of what a trajectory holds."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload, and the ways to share its resources; `elastic` is the scheduler's."""

    batches: tuple[int, ...]
    draw: Callable[[int, int], Trajectories]
    """Of a batch and a seed."""
    arms: Mapping[str, Arm]
    units: int
    """Of the resource that can be saved."""
    baseline: str
    """The arm that resources are saved against."""
    held: int
    """Units that this arm has."""
    parts: int
    """Into which the resource is divided to find how many are enough."""
    widest: int
    work: Callable[[SimulatedCall], float]
    """The least seconds of a call in which it alone takes all that there is."""


def _lognormal(rng: Random, mean: float, sigma: float) -> float:
    return mean * rng.lognormvariate(-sigma * sigma / 2, sigma)


# Coding: short commands in a sandbox, and at the end tests, which run wide.

COMMAND_SECONDS, TEST_SECONDS, TEST_SERIAL = 0.24, 120.0, 0.06
"""Fitted to the published seconds of running and waiting a call, 0.975 + 0.015 at 1,280 trajectories and 1.206 + 0.428
at 1,536, with 8 … 32 commands (assumed) before one run of tests: a quarter of the seconds are of commands, three
quarters of tests."""
COMMAND_GAP = 2.15
"""Seconds of generation before a call, so that sandboxes of 4 cores held by trajectories are used 47 % of their time,
as published."""
HELD_CORES = 4
"""Assumed: what a trajectory's sandbox holds."""


def _coding(batch: int, seed: int) -> Trajectories:
    rng = Random(f"coding {batch} {seed}")
    drawn = []
    for _ in range(batch):
        calls = [
            SimulatedCall("command", _lognormal(rng, COMMAND_GAP, 1.0), _lognormal(rng, COMMAND_SECONDS, 1.0))
            for _ in range(rng.randint(8, 32))
        ]
        tests = SimulatedCall(
            "tests", _lognormal(rng, COMMAND_GAP, 1.0), _lognormal(rng, TEST_SECONDS, 0.8), TEST_SERIAL
        )
        drawn.append([*calls, tests])
    return drawn


def _per_host(share: float, costs: Mapping[str, ToolCost]) -> list[ActionQueue]:
    cores, durations = {"cores": max(1, round(share * CORES))}, Durations()
    return [ActionQueue(cores, costs, durations=durations) for _ in range(HOSTS)]


def _on_hosts(widths: tuple[int, ...]) -> Arm:
    """Every call waits for cores of the host that its trajectory's sandbox is on."""

    def arm(share: float) -> tuple[Route, int]:
        hosts = _per_host(share, {"command": ToolCost("cores"), "tests": ToolCost("cores", widths)})
        return lambda number, tool: None if tool == HOLD else hosts[number % HOSTS], 1

    return arm


def _held_on_hosts(share: float) -> tuple[Route, int]:
    hosts = _per_host(share, {HOLD: ToolCost("cores", (HELD_CORES,))})
    return lambda number, tool: hosts[number % HOSTS] if tool == HOLD else None, HELD_CORES


def _split_on_hosts(share: float) -> tuple[Route, int]:
    """Cores for commands and cores for tests of 4, in the ratio of their work."""
    test = TEST_SECONDS * (TEST_SERIAL + (1 - TEST_SERIAL) / HELD_CORES) * HELD_CORES
    command = COMMAND_SECONDS * 20
    hosts = {
        "command": _per_host(share * command / (command + test), {"command": ToolCost("cores")}),
        "tests": _per_host(share * test / (command + test), {"tests": ToolCost("cores", (HELD_CORES,))}),
    }
    return lambda number, tool: None if tool == HOLD else hosts[tool][number % HOSTS], 1


# Search: a service with a quota, shared by two tasks.

SEARCH_SLOTS, SEARCH_RATE = 256, 250.0
"""Assumed: requests at a time, and a second."""


def _search(batch: int, seed: int) -> Trajectories:
    """Assumed: 4 … 20 requests of 0.7 s, 3 s of generation before each; a third is of the second task."""
    rng = Random(f"search {batch} {seed}")
    return [
        [
            SimulatedCall("search", _lognormal(rng, 3.0, 0.8), _lognormal(rng, 0.7, 0.8))
            for _ in range(rng.randint(4, 20))
        ]
        for _ in range(batch)
    ]


def _quota(share: float, tool: str = "search") -> ActionQueue:
    needs = {"rate": 1.0} if tool == "search" else {}
    rate = Rate(SEARCH_RATE * share, max(1.0, 25 * share))
    return ActionQueue(
        {"slots": max(1, round(SEARCH_SLOTS * share))}, {tool: ToolCost("slots", (1,), needs)}, {"rate": rate}
    )


def _shared_quota(share: float) -> tuple[Route, int]:
    quota = _quota(share)
    return lambda _, tool: None if tool == HOLD else quota, 1


def _held_quota(share: float) -> tuple[Route, int]:
    """A trajectory holds a slot; its requests wait for the rate alone, of which there are more slots than it fills."""
    slots, rate = _quota(share, HOLD), _quota(share)
    return lambda _, tool: slots if tool == HOLD else rate, 1


def _split_quota(share: float) -> tuple[Route, int]:
    """Half of it for each task."""
    quotas = _quota(share / 2), _quota(share / 2)
    return lambda number, tool: None if tool == HOLD else quotas[number % 3 == 2], 1


# Nine teachers, each of which scores the trajectories of its domain.

TEACHERS, DEVICES = 9, 40
SCORE_SECONDS, SCORE_SERIAL = 1.9, 0.1
"""Assumed, so that a score takes 0.62 s on four devices, as published."""
LOAD_SECONDS = 1.3
"""Assumed: 64 GB of weights onto one device, from host memory at 50 GB/s. A device of 80 GB has room for one teacher,
or for parts of several that are spread over more devices."""
ROLLOUT_SECONDS, ROLLOUT_SPREAD = 800.0, 0.8
"""Of what comes before, mean and sigma. Fitted, with LRU and first come first served, to a call's published 0.90 s at
2,048 trajectories and 16.0 s at 3,072, on the 10 devices that were published to be enough; and so that teachers of four
devices are busy under 3 % of a step, as published."""


def _teachers(batch: int, seed: int) -> Trajectories:
    rng = Random(f"teachers {batch} {seed}")
    return [
        [
            SimulatedCall(
                f"teacher {rng.randrange(TEACHERS)}",
                _lognormal(rng, ROLLOUT_SECONDS, ROLLOUT_SPREAD),
                _lognormal(rng, SCORE_SECONDS, 0.3),
                SCORE_SERIAL,
            )
        ]
        for _ in range(batch)
    ]


def _on_cells(widths: tuple[int, ...]) -> Arm:
    def arm(share: float) -> tuple[Route, int]:
        devices = max(1, round(DEVICES * share))
        costs = {f"teacher {number}": ToolCost("devices", widths) for number in range(TEACHERS)}
        cells = ActionQueue({"devices": devices}, costs, places={"devices": Cells(devices, LOAD_SECONDS)})
        return lambda _, tool: None if tool == HOLD else cells, 1

    return arm


def _own_cells(_share: float) -> tuple[Route, int]:
    """Every teacher has four devices."""
    own = {
        f"teacher {number}": ActionQueue({"devices": 4}, {f"teacher {number}": ToolCost("devices", (4,))})
        for number in range(TEACHERS)
    }
    return lambda _, tool: None if tool == HOLD else own[tool], 1


CASES = {
    "coding": Scenario(
        (1280, 1536, 3072),
        _coding,
        {
            "per_trajectory": _held_on_hosts,
            "per_task": _split_on_hosts,
            "fixed_4": _on_hosts((4,)),
            "fixed_16": _on_hosts((16,)),
            "elastic": _on_hosts(WIDTHS),
        },
        HOSTS * CORES,
        "per_trajectory",
        HOSTS * CORES,
        32,
        max(WIDTHS),
        lambda call: call.seconds / (HOSTS * CORES),
    ),
    "search": Scenario(
        (1280, 2048, 3072),
        _search,
        {"per_trajectory": _held_quota, "per_task": _split_quota, "elastic": _shared_quota},
        SEARCH_SLOTS,
        "per_trajectory",
        SEARCH_SLOTS,
        32,
        1,
        lambda _: 1 / SEARCH_RATE,
    ),
    "teachers": Scenario(
        (2048, 3072),
        _teachers,
        {"per_task": _own_cells, "fixed_4": _on_cells((4,)), "elastic": _on_cells((1, 2, 4, 8))},
        DEVICES,
        "per_task",
        4 * TEACHERS,
        DEVICES,
        8,
        lambda call: call.seconds / DEVICES,
    ),
}


def run(workload: Sequence[str] = (), batch: int | None = None, episodes: int = 64, seed: int = 0) -> dict[str, Any]:
    simulated = [
        row
        for name in workload or CASES
        for size in ([batch] if batch else CASES[name].batches)
        for row in _case(name, size, seed)
    ]
    return {
        "targets": TARGETS,
        "simulated": simulated,
        "decisions": _decisions(),
        "real": actions_real.run(episodes, seed),
    }


def _case(name: str, batch: int, seed: int) -> list[dict[str, Any]]:
    case = CASES[name]
    drawn = case.draw(batch, seed)
    played = {arm: simulate(drawn, *make(1.0)) for arm, make in case.arms.items()}
    elastic = played["elastic"]
    wanted = played[case.baseline].completion
    saved = _saved(case, lambda share: simulate(drawn, *case.arms["elastic"](share)).completion <= wanted)
    best, step = _bound(case, drawn, 1.0)
    bounds = {
        "completion_seconds": best,
        "step_seconds": step,
        "resources_saved": _saved(case, lambda share: _bound(case, drawn, share)[0] <= wanted),
    }
    return [
        {
            "workload": name,
            "batch": batch,
            "arm": arm,
            "completion_seconds": one.completion,
            "queue_seconds": one.queue,
            "step_seconds": one.seconds,
            "use": one.busy / one.seconds / case.units,
            "completion_ratio": one.completion / elastic.completion,
            "step_ratio": one.seconds / elastic.seconds,
            "resources_saved": saved if arm == case.baseline else None,
            "bounds": bounds if arm == "elastic" else None,
            "overhead": one.decision_seconds / sum(call.ended - call.began for call in one.done),
        }
        for arm, one in played.items()
    ]


def _bound(case: Scenario, drawn: Trajectories, share: float) -> tuple[float, float]:
    """Mean completion and step seconds that no order and no widths can beat on a share of the resources, but for what a
    rate has saved up: a trajectory takes its own time at full width, and those that end first the least work of so
    many."""
    paths = sorted(sum(call.after + call.on(case.widest) for call in calls) for calls in drawn)
    work = sorted(sum(map(case.work, calls)) for calls in drawn)
    ends = [max(own, others / share) for own, others in zip(paths, accumulate(work), strict=True)]
    after = sum(call.after for calls in drawn for call in calls)
    return (sum(ends) - after) / sum(map(len, drawn)), ends[-1]


def _saved(case: Scenario, enough_with: Callable[[float], bool]) -> float:
    """The share of the baseline's resources that can go; enough_with: whether a share of the workload's is enough."""
    parts = bisect_left(range(1, case.parts), True, key=lambda parts: enough_with(parts / case.parts)) + 1
    return 1 - parts / case.parts * case.units / case.held


def _decisions(waiting: int = 3072, repeats: int = 9) -> list[dict[str, float]]:
    """Milliseconds of processor time of a decision where so many wait, half of them elastic, by the cores that are
    free."""
    rng = Random("decisions")
    curve = SpeedCurve(WIDTHS, tuple(TEST_SECONDS * (TEST_SERIAL + (1 - TEST_SERIAL) / width) for width in WIDTHS))
    kinds = curve, SpeedCurve((1,), (COMMAND_SECONDS,))
    queue = [Action(number, "call", {"memory": 1.0}, "cores", rng.choice(kinds)) for number in range(waiting)]
    rows = []
    for free in (1, 16, CORES, HOSTS * CORES):
        ends = [rng.uniform(0, 10) for _ in range((HOSTS * CORES - free) // 4)]
        running = [Action(0, "call", {}, "cores", curve, units=(0, 1, 2, 3), ends=at) for at in ends]
        times = []
        for _ in range(repeats):
            began = thread_time()
            schedule(queue, running, {"cores": free, "memory": 1e9}, {"cores": HOSTS * CORES}, 0.0)
            times.append(1000 * (thread_time() - began))
        rows.append({"waiting": waiting, "free": free, "milliseconds": median(times), "most": max(times)})
    return rows
