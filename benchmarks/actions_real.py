"""External calls on the cores of this machine, scheduled one by one and with a core or a slot held per trajectory.

training     steps of `earl train table`, embedded, whose episodes run Python in sandboxes
coding       commands, and tests that run on one core or two, in sandboxes: the simulated workload scaled down
search       requests to SQLite FTS5, with a quota
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import gcd
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

from earl.actions.pool import core_use, open_pool, own_cores, pool
from earl.benchmarks.repeats import in_turns
from earl.benchmarks.training import by_step, recipe, trained
from earl.config import ToolsConfig
from earl.envs.tools.kit import Passages
from earl.placement import fragment
from earl.rollout import drivers
from earl.rollout.drivers import BatchSampler, Playable
from earl.rollout.metrics import tool_metrics
from earl.runs import trajectories
from earl.runs.store import read_numbers
from earl.sandbox.local import LocalSandbox
from earl.trajectory import Trajectory

REPEATS = 3


def run(episodes: int, seed: int) -> dict[str, Any]:
    results = {
        "training": _training(episodes, seed),
        "coding": _coding(episodes, seed),
        "search": _search(episodes, seed),
    }
    waits = _overhead()
    took = results["training"]["tools"]["tool/python/run_seconds"]
    overhead = {"overhead_milliseconds": waits, "overhead": waits / 1000 / took}
    return {"episodes": episodes, "cores": len(own_cores()), **results, **overhead}


def _overhead(calls: int = 500) -> float:
    """Milliseconds of a call that does nothing and need not wait."""
    began = perf_counter()
    for _ in range(calls):
        with pool().action("nothing", (1,)):
            pass
    return 1000 * (perf_counter() - began) / calls


# Training. A sandbox held per episode: an episode begins when a core is free for its sandbox, and keeps it to its end.

SETTINGS = (
    *("warm_start.steps=6", "warm_start.episodes=128", "run.steps=5", "run.keep_trajectories_every=1"),
    *("run.checkpoint_every=100", "run.processes=1", "evaluate.every=100", "evaluate.patience=0"),
    *("evaluate.opponents=[]", "evaluate.episodes=1", "evaluate.final_episodes=1"),
)
"""Steps after a warm start that teaches the form of a call."""


def _held(episodes: Sequence[Playable], sampler: BatchSampler) -> list[Trajectory]:
    cores = len(pool().cores)
    parts = [episodes[first : first + cores] for first in range(0, len(episodes), cores)]
    return [trajectory for part in parts for trajectory in drivers.play(part, sampler)]


def _training(episodes: int, seed: int) -> dict[str, Any]:
    size = f"rollout.group_size={gcd(episodes, 16)}"
    config = recipe("table", [*SETTINGS, f"rollout.episodes={episodes}", size, f"run.seed={seed}"])
    seconds, kept = {}, {}
    for name, play in {"per_action": drivers.play, "per_trajectory": _held}.items():
        with tempfile.TemporaryDirectory() as root, patch.object(fragment, "play", play):
            folder = trained(Path(root), name, config)
            steps = by_step(read_numbers(folder.database).timings, config.warm_start.steps + 1, config.total_steps)
            kept[name] = [
                one
                for file in trajectories.files(folder.trajectories)
                for group in trajectories.read(file)[1]
                for one in group.trajectories
            ]
        seconds[name] = {
            "step_seconds": median(sum(stages.values()) for stages in steps),
            "rollout_seconds": median(stages["rollout"] for stages in steps),
        }
    calls = [call for one in kept["per_action"] for call in one.tools]
    held, free = seconds["per_trajectory"], seconds["per_action"]
    pairs = [*zip(*kept.values(), strict=True)]
    alike = [(one, other) for one, other in pairs if len(one.logprobs) == len(other.logprobs)]
    return {
        "steps": config.run.steps,
        **seconds,
        "step_ratio": held["step_seconds"] / free["step_seconds"],
        "rollout_ratio": held["rollout_seconds"] / free["rollout_seconds"],
        "trajectories": len(kept["per_action"]),
        "same_results": sum(_result(one) == _result(other) for one, other in pairs),
        "logprob_difference": max(float(abs(one.logprobs - other.logprobs).max()) for one, other in alike),
        "tools": {**tool_metrics(calls), **core_use(calls, len(own_cores()))},
    }


def _result(one: Trajectory) -> tuple[Any, ...]:
    """What is the same, whoever plays beside: all but times, and the last bits of a batch's arithmetic."""
    turns = [(turn.action, turn.reward) for turn in one.turns]
    return one.tokens.tolist(), turns, one.stop, one.outcome, [(call.tool, call.fault) for call in one.tools]


# Workloads scaled down: trajectories in threads, which sleep as long as they would generate.


@dataclass(frozen=True, slots=True)
class TimedCall:
    tool: str
    after: float
    """Seconds of generation before it."""
    act: Callable[[], str]


Step = tuple[float, float, list[list[str]]]
"""Seconds of it, mean seconds of a call, what the calls returned."""


@contextmanager
def _tools(limits: ToolsConfig) -> Iterator[None]:
    open_pool(own_cores(), limits, 1)
    try:
        yield
    finally:
        open_pool(own_cores(), ToolsConfig(), 1)


def _played(
    drawn: Sequence[Sequence[TimedCall]], widths: dict[str, tuple[int, ...]], hold: tuple[int, ...] | None
) -> Step:
    """widths: by tool, of its calls; a tool without does not wait. hold: the widths of an action that lasts as long as
    the trajectory; None: nothing is held."""

    def one(calls: Sequence[TimedCall]) -> tuple[float, list[str]]:
        waited, results, asked = 0.0, [], perf_counter()
        with pool().action("hold", hold) if hold is not None else nullcontext():
            waited += perf_counter() - asked if hold is not None else 0.0
            since = time.monotonic()
            for call in calls:
                time.sleep(call.after)
                asked = perf_counter()
                with pool().action(call.tool, widths[call.tool], since) if call.tool in widths else nullcontext():
                    results.append(call.act())
                waited += perf_counter() - asked
        return waited, results

    began = perf_counter()
    with ThreadPoolExecutor(len(drawn)) as threads:
        done = [*threads.map(one, drawn)]
    calls = sum(map(len, drawn))
    return perf_counter() - began, sum(waited for waited, _ in done) / calls, [results for _, results in done]


def _compared(ways: dict[str, Callable[[int], Step]]) -> dict[str, Any]:
    steps = in_turns(ways, REPEATS)
    seconds = {
        name: {"step_seconds": median(one[0] for one in own), "completion_seconds": median(one[1] for one in own)}
        for name, own in steps.items()
    }
    held, free = seconds["per_trajectory"], seconds["per_action"]
    return {
        **seconds,
        "completion_ratio": held["completion_seconds"] / free["completion_seconds"],
        "step_ratio": held["step_seconds"] / free["step_seconds"],
        "same_results": all(one[2] == steps["per_action"][0][2] for own in steps.values() for one in own),
    }


COMMANDS, COMMAND_GAP = 6, 0.05
COMMAND = "print(sum(i * i % {} for i in range(50_000)))"
TESTS = """
import os
cores = len(os.sched_getaffinity(0))
for number in range(cores):
    if not os.fork():
        for test in range(number, 8, cores):
            assert sum(i * i % {} for i in range(100_000))
        os._exit(0)
print(sum(os.wait()[1] for _ in range(cores)))
"""
"""Eight tests, on as many cores as there are."""


def _coding(episodes: int, seed: int) -> dict[str, Any]:
    rng = Random(f"real coding {seed}")
    sandboxes = [LocalSandbox() for _ in range(episodes)]

    def call(sandbox: LocalSandbox, tool: str, program: str) -> TimedCall:
        act = partial(sandbox.exec, ["python", "-c", program.format(rng.randint(5, 99))])
        return TimedCall(tool, rng.expovariate(1 / COMMAND_GAP), lambda: act().text)

    drawn = [
        [*(call(one, "command", COMMAND) for _ in range(COMMANDS)), call(one, "tests", TESTS)] for one in sandboxes
    ]
    for one in sandboxes:
        one.exec(["true"])  # they are made ahead
    cores = tuple(width for width in (1, 2, 4, 8) if width <= len(own_cores()))
    try:
        with _tools(ToolsConfig()):
            return _compared(
                {
                    "per_action": lambda _: _played(drawn, {"command": (1,), "tests": cores}, None),
                    "per_trajectory": lambda _: _played(drawn, {}, (1,)),
                }
            )
    finally:
        for one in sandboxes:
            one.terminate()


SLOTS, RATE, REQUESTS, REQUEST_GAP = 13, 190.0, 6, 0.2
"""Requests at a time and a second; of a trajectory, and the seconds of generation before each. A twentieth of the
simulated workload's trajectories and slots, fifteen times as fast."""
PASSAGES, WORDS = 5_000, 2_000


def _search(episodes: int, seed: int) -> dict[str, Any]:
    rng = Random(f"real search {seed}")
    texts = (" ".join(f"w{int(WORDS * rng.random() ** 2)}" for _ in range(40)) for _ in range(PASSAGES))
    passages = Passages(texts)

    def call() -> TimedCall:
        query = " ".join(f"w{int(WORDS * rng.random() ** 2)}" for _ in range(4))
        return TimedCall("search", rng.expovariate(1 / REQUEST_GAP), lambda: "\n".join(passages.search(query)))

    drawn = [[call() for _ in range(REQUESTS)] for _ in range(episodes)]
    arms: dict[str, Callable[[int], Step]] = {}
    for name, limited in (("per_action", "search"), ("per_trajectory", "hold")):
        limits = ToolsConfig(at_once={limited: SLOTS}, per_second={"search": RATE})

        def played(_: int, limits: ToolsConfig = limits) -> Step:
            with _tools(limits):
                return _played(drawn, {"search": ()}, () if "hold" in limits.at_once else None)

        arms[name] = played
    return _compared(arms)
