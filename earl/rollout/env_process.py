"""Environments in processes of their own (`env.processes`): one that hangs, crashes, forks or fills memory is ended.

IsolatedEnv ─▶ EnvProcess ─▶ one line of JSON ─▶ this file as a program: reset, rule, step, close ─▶ one line of JSON

A process serves many episodes. When one of them ends it, the others are made again in the next process and brought to
where they were by their own actions, as their seeds determine them.
"""

import atexit
import contextlib
import io
import itertools
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from earl.actions.pool import ActionPool, open_pool, part_of, pool
from earl.agents.scripted.registry import player
from earl.config import OneEnvConfig, ToolsConfig
from earl.envs import registry
from earl.envs.base import Info, TextEnv, checked_reset, checked_step, checked_text
from earl.errors import EarlError, boundary
from earl.trajectory import ToolCall

LONGEST = 1 << 22
"""Characters of a text that a process passes on; the context limit allows fewer."""
IMPORT_SECONDS = 60.0
"""What making an environment may take beside the time of a step: the first in a process imports its package."""
MEMORY_MB = 4096
POLL_SECONDS = 0.2
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Isolation:
    """How environments are kept apart, from the recipe's [env]."""

    processes: int
    """Of each process that plays."""
    seconds: float | None
    """Limit of a call; None: none."""
    memory_bytes: int
    """Of a process's data; kept on Linux."""


def isolation(env: OneEnvConfig) -> Isolation | None:
    memory = (env.memory_mb or MEMORY_MB) << 20
    return Isolation(env.processes, env.step_timeout_seconds, memory) if env.processes else None


class EnvProcess:
    """A process of environments, started when it is first asked, and again after its end. One call at a time."""

    def __init__(self, memory_bytes: int, number: int = 0, count: int = 1) -> None:
        """number: among the `count` that share what this process has of cores, and of the limits of tools."""
        self.lock = threading.RLock()
        self.started = 0
        """How often it was started: environments of an earlier process are gone."""
        self._memory_bytes, self._place = memory_bytes, (number, count)
        self._pool: ActionPool | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it unless it runs, with its part of the present pool."""
        own, (number, count) = pool(), self._place
        if self._process is not None and self._process.poll() is None and self._pool is own:
            return
        self.end()
        self.started, self._pool = self.started + 1, own
        part = json.dumps([part_of(own.cores, number, count), own.limits.model_dump(), own.size * count])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(self._memory_bytes), part],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for who plays
        )

    def ask(self, request: Mapping[str, Any], seconds: float | None) -> Any:
        """What a method returned. Raises EarlError with what it raised, or why its process is gone."""
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        method = request["method"]
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        if not self._wait(seconds):
            self.end()
            limit = f"env.step_timeout_seconds = {seconds:g}"
            raise EarlError(f"{method}() took longer than {limit}; its process was ended")
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EarlError(f"{method}() ended its process ({self.end()})")
        answer = json.loads(line)
        if "fault" in answer:
            raise EarlError(answer["fault"])
        return answer["value"]

    def _wait(self, seconds: float | None) -> bool:
        """Wait for a line or the end of the process; False: neither came in time."""
        assert self._process is not None and self._process.stdout is not None
        until = time.monotonic() + (seconds or float("inf"))
        while (left := until - time.monotonic()) > 0:
            if select.select([self._process.stdout], [], [], min(POLL_SECONDS, left))[0]:
                return True
            if self._process.poll() is not None:  # what it forked may hold the pipe open
                self._process.stdout = io.BytesIO()
                return True
        return False

    def end(self) -> str:
        """End it and all that it started; says how it had ended by itself."""
        process, self._process = self._process, None
        if process is None:
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS if process.poll() is None else 0)
        code = process.poll()
        _end_tree(process.pid)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close() if pipe is not None else None
        if code is None:
            return "it was ended"
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


class IsolatedEnv(TextEnv):
    """An environment that lives in an EnvProcess.

    Raises:
        EarlError: from every method: what the environment raised, that it took too long, or how its process ended.
    """

    _numbers = itertools.count()

    def __init__(self, process: EnvProcess, seconds: float | None, made: Mapping[str, Any]) -> None:
        self._process, self._seconds, self._number = process, seconds, next(self._numbers)
        self._calls: list[tuple[dict[str, Any], Any]] = []  # calls and their answers
        self._lives_in = 0
        self.instructions, self.max_turns, self.charges_truncation, random = self._call("make", **made)
        if random:
            self.random_action = lambda rng: self._call("random_action", seed=rng.getrandbits(64))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:  # type: ignore[override]
        turn: tuple[str, Info] = self._call("reset", seed=seed, options=options)
        return turn

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:  # type: ignore[override]
        turn: tuple[str, float, bool, bool, Info] = self._call("step", action=action)
        return turn

    def rule(self, action: str) -> str | None:
        rule: str | None = self._call("rule", action=action)
        return rule

    def close(self) -> None:
        with self._process.lock:
            if self._lives_in == self._process.started:
                self._call("close")

    def _call(self, method: str, **arguments: Any) -> Any:
        request = {"number": self._number, "method": method, "arguments": arguments}
        with self._process.lock:
            self._process.start()
            if self._lives_in != self._process.started:
                self._replay()
            value = self._ask(request)
        self._calls.append((request, value))
        return value

    def _replay(self) -> None:
        """Come to where it was, in a new process."""
        self._lives_in = self._process.started
        for request, value in self._calls:
            if self._ask(request) != value:
                fault = "another episode ended its process, and played again from its seed it goes otherwise"
                raise EarlError(f"{fault}; take what chance decides from the seed that reset() is given")

    def _ask(self, request: Mapping[str, Any]) -> Any:
        """What a method returned, with the tuples that JSON has no word for."""
        method, seconds = request["method"], self._seconds
        value = self._process.ask(request, seconds and seconds + IMPORT_SECONDS * (method == "make"))
        if method not in ("reset", "step"):
            return value
        *rest, info = value
        if "legal_actions" in info:
            info["legal_actions"] = tuple(info["legal_actions"])
        if "tool_calls" in info:
            info["tool_calls"] = tuple(ToolCall(*call) for call in info["tool_calls"])
        return (*rest, info)


def make(name: str, options: Mapping[str, Any], isolation: Isolation | None, **seat: Any) -> TextEnv:
    """An environment, in a process of its own kind if there are any. seat: `seat`, and `opponent` by name."""
    if isolation is None:
        if "opponent" in seat:
            seat["opponent"] = player(seat["opponent"], name)
        return registry.make(name, **seat, **options)
    processes = _processes(isolation.processes, isolation.memory_bytes)
    made = {"name": name, "target": registry.target(name), "options": {**options}, **seat}
    return IsolatedEnv(next(processes), isolation.seconds, made)


@cache
def _processes(count: int, memory_bytes: int) -> Iterator[EnvProcess]:
    """The processes of this one, in turns."""
    processes = [EnvProcess(memory_bytes, number, count) for number in range(count)]
    for process in processes:
        atexit.register(process.end)
    return itertools.cycle(processes)


def _end_tree(root: int) -> None:
    """End a process and all that descend from it; what one of them left behind became its own (a subreaper's) child."""
    if not Path("/proc/self/stat").exists():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(root, signal.SIGKILL)
        return
    _signal(root, signal.SIGSTOP)
    for _ in range(100):
        others = _descendants(root)
        for other in others:
            _signal(other, signal.SIGKILL)
        if not others:
            break
        time.sleep(0.01)
    _signal(root, signal.SIGKILL)


def _signal(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, *_ = path.read_text(errors="replace").rpartition(")")[2].split()
            if state != "Z":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    found: list[int] = []
    left = [root]
    while left:
        own = children.get(left.pop(), [])
        found += own
        left += own
    return found


# The program: a process of environments.


def _serve() -> None:
    """Answer what the standard input asks, until it ends. The environments' own output goes to standard error."""
    requests: queue.Queue[bytes] = queue.Queue()
    asked, answers, own = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"), os.getpid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    if sys.platform == "linux":
        import ctypes
        import resource

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]),) * 2)
    threading.Thread(target=_listen, args=(asked, requests), daemon=True).start()
    cores, limits, size = json.loads(sys.argv[2])
    open_pool(cores, ToolsConfig(**limits), size)
    made: dict[int, TextEnv] = {}
    while True:
        answer = _answer(made, json.loads(requests.get()))
        if os.getpid() != own:
            os._exit(0)  # an environment forked
        answers.write(answer + b"\n")
        answers.flush()


def _listen(asked: Any, requests: "queue.Queue[bytes]") -> None:
    for line in asked:
        requests.put(line)
    for other in _descendants(os.getpid()):
        _signal(other, signal.SIGKILL)
    os._exit(0)


def _answer(made: dict[int, TextEnv], request: dict[str, Any]) -> bytes:
    answer = b""
    with boundary() as fault:
        answer = json.dumps({"value": _call_method(made, **request)}).encode()
    return json.dumps({"fault": fault.message}).encode() if fault.message else answer


def _call_method(made: dict[int, TextEnv], number: int, method: str, arguments: dict[str, Any]) -> Any:
    if method == "make":
        env = made[number] = _make_registered(**arguments)
        return [env.instructions, env.max_turns, env.charges_truncation, hasattr(env, "random_action")]
    if method == "close":
        return made.pop(number).close()
    if method == "random_action":
        arguments = {"rng": Random(arguments["seed"])}
    returned = getattr(made[number], method)(**arguments)
    if method in {"rule", "random_action"}:
        return None if returned is None else checked_text(f"{method}()", returned, LONGEST)
    *rest, info = checked_reset(returned, LONGEST) if method == "reset" else checked_step(returned, LONGEST)
    calls = {"tool_calls": [astuple(call) for call in info["tool_calls"]]} if "tool_calls" in info else {}
    return [*rest, {key: value for key, value in info.items() if key in Info.__annotations__} | calls]


def _make_registered(name: str, target: str | None, options: dict[str, Any], **seat: Any) -> TextEnv:
    if target is not None:
        registry.register(name, target, again=True)
    registry.allow(name, *filter(None, [seat.get("opponent")]))
    return make(name, options, None, **seat)


if __name__ == "__main__":
    _serve()
