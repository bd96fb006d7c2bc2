"""How long a program in a sandbox takes, beside a bare interpreter."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any

from earl.benchmarks.repeats import in_turns
from earl.sandbox import inside, local

PROGRAM = ["-c", "print(2+2)"]


def run(repeats: int = 100, executions: int = 0) -> dict[str, Any]:
    ready = local.LocalSandbox()
    _play(ready)
    ways = {"bare": _bare, "warm": lambda: _play(ready), "new": _new}
    percentiles = {name: _percentiles(times) for name, times in _timed(ways, repeats).items()}
    before = _held()
    for _ in range(executions):
        _play(ready)
    leaked = {name: many - before[name] for name, many in _held().items()}
    ready.terminate()
    local.stop_server()
    ways = {"bare": _bare, "cold": _new}
    beside = {name: _percentiles(times) for name, times in _timed(ways, repeats, local.stop_server).items()}
    ratio = beside["cold"]["p50"] / beside["bare"]["p50"]
    return {"milliseconds": {**percentiles, "cold": beside["cold"]}, "cold_over_bare": ratio, "leaked": leaked}


def _bare() -> None:
    assert subprocess.run([sys.executable, *PROGRAM], capture_output=True, check=True).stdout == b"4\n"


def _play(sandbox: local.LocalSandbox) -> None:
    assert sandbox.exec(["python", *PROGRAM]).stdout == b"4\n"


def _new() -> None:
    sandbox = local.LocalSandbox()
    _play(sandbox)
    sandbox.terminate()


def _timed(
    ways: dict[str, Callable[[], None]], repeats: int, after: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    def timed(way: Callable[[], None]) -> Callable[[int], float]:
        def once(_: int) -> float:
            began = perf_counter()
            way()
            taken = 1000 * (perf_counter() - began)
            after()
            return taken

        return once

    return in_turns({name: timed(way) for name, way in ways.items()}, repeats, warm=2)


def _percentiles(times: list[float]) -> dict[str, float]:
    cuts = quantiles(times, n=100, method="inclusive")
    return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}


def _held() -> dict[str, int]:
    """What could leak: open descriptors and descendants of this process, mounts and cgroups of the machine."""
    descriptors = len([*Path("/proc/self/fd").iterdir()])
    return {
        "descriptors": descriptors,
        "processes": _descendants("self"),
        "mounts": len(mounts()),
        "cgroups": len(cgroups()),
    }


def mounts() -> list[str]:
    """Those of this machine but network namespaces and podman's images, which others make meanwhile."""
    listed = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return [line for line in listed if "/netns" not in line and "/containers/storage" not in line]


def cgroups() -> list[str]:
    """Those that sandboxes of this process have, by the server that makes them."""
    found = [path for parent in inside.cgroup_parents() for path in Path(parent).glob("earl-*")]
    return [str(path) for path in found if path.name.split("-")[1] in _children("self")]


def _children(process: str) -> list[str]:
    listed = [path.read_text(encoding="utf-8").split() for path in Path(f"/proc/{process}/task").glob("*/children")]
    return [child for own in listed for child in own]


def _descendants(process: str) -> int:
    return sum(1 + _descendants(child) for child in _children(process))
