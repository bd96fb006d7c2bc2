"""Every system call by which a run of 6 steps changes its folder fails once, or the process dies there.

One process imports all once; each case is a child of it: `earl train` with one fault (see trap.c), which ends well, or
says what is wrong with exit code 2, or is killed; then what a user does next, `earl train --resume` or the same command
again, which ends as if nothing had happened. `make faults` tries every point, `make test` a sample.
"""

import argparse
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

from earl.cli.main import run
from earl.runs.checkpoint import all_steps
from earl.runs.folder import RunFolder
from tests.train.conftest import remains

RECIPE = """
[env]
name = "tictactoe"
opponents = {random = 1.0, "perfect@0.5" = 1.0}
[agent]
retries = 1
[model]
hidden = 16
layers = 1
heads = 2
head_dim = 8
intermediate = 24
[warm_start]
steps = 2
teacher = "expert"
episodes = 24
learning_rate = 0.02
[rollout]
episodes = 8
group_size = 4
[learner]
minibatches = 1
learning_rate = 0.01
[evaluate]
every = 2
opponents = ["random"]
episodes = 2
final_episodes = 2
[run]
steps = 4
seed = 5
processes = 1
checkpoint_every = 2
keep_trajectories_every = 1
"""
"""2 steps of imitation and 4 of RL, in half a second; the rewards differ, and the best weights are the last."""

SECONDS = 300
"""After which a run hangs."""

SEQUENCES = ("main", "background", "reads")
WRITE, SYNC, NAME, READ = 1, 2, 3, 4
T = TypeVar("T")
MODES = {"kill": 1, "torn": 2, "eio": 3, "full": 4, "short": 5}
"""kill: before the call. torn: after half of a write. eio: the call fails once, nothing is done. full: half of a write
is done, and from then on every call that needs space fails. short: half of a write is done, and nothing is wrong."""


class Event(ctypes.Structure):
    """As in trap.c."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("sequence", "kind", "grows", "failed")),
        ("call", ctypes.c_char * 16),
        ("path", ctypes.c_char * 232),
    ]


@dataclass(frozen=True)
class Point:
    """The n-th call of a sequence, and what it was in the undisturbed run."""

    sequence: int
    number: int
    kind: int
    grows: bool
    call: str
    path: str

    def modes(self) -> list[str]:
        """How it can go wrong."""
        if self.kind == READ:
            return ["eio"]
        return ["kill", "eio", *["torn", "short"] * (self.kind == WRITE), *["full"] * self.grows]


@dataclass(frozen=True)
class Case:
    """What came of one fault."""

    point: Point
    mode: str
    outcome: str
    detail: str
    seconds: float


def compiled(folder: Path) -> ctypes.CDLL:
    """The trap, as a library."""
    library, source = folder / "trap.so", Path(__file__).with_name("trap.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    trap = ctypes.CDLL(str(library))
    trap.events.restype = ctypes.POINTER(Event)
    return trap


def forked(call: Callable[[], int], said: Path, seconds: int = SECONDS) -> int:
    """Do it in a child, as a process of its own would; its exit code, or minus its signal."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        signal.alarm(seconds)
        output = os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = call()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Campaign:
    """One recipe, its undisturbed run, and the cases."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.trap = folder, compiled(folder)
        self.recipe, self.killed = folder / "recipe.toml", folder / "killed"
        self.recipe.write_text(RECIPE)
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            assert self.train(folder / "warm") == 0  # imports all, so that the children need not
        self.expected = remains(RunFolder(folder / "warm" / "run"))
        self.listing = listing(folder / "warm")

    def train(self, root: Path) -> int:
        """What a user begins with."""
        return run(["train", "tictactoe", "--config", str(self.recipe), "--runs", str(root), "--name", "run"])

    def resume(self, root: Path) -> int:
        """What a user does after that: again, where nothing is left."""
        return run(["train", "--resume", "run", "--runs", str(root)]) if (root / "run").exists() else self.train(root)

    def points(self, reads: bool) -> list[Point]:
        """Every call that changes the folder of a run, or those that read when a killed one goes on."""
        root = self.folder / ("read" if reads else "watched")
        if reads:
            shutil.copytree(self.killed, root)
        self.trap.watch(bytes(root))
        go = self.resume if reads else self.train
        assert forked(lambda: self.trap.arm(-1, -1, 0) or go(root), self.folder / "said.txt") == 0
        counts, points = Counter[int](), []
        for event in self.events():
            number = counts[event.sequence]
            counts[event.sequence] += 1
            if (event.kind == READ) == reads:
                call, path = event.call.decode(), event.path.decode().lstrip("/")
                points.append(Point(event.sequence, number, event.kind, bool(event.grows), call, path))
        assert remains(RunFolder(root / "run")) == self.expected
        return points

    def kill_half_done(self, writes: Sequence[Point]) -> None:
        """Make a run that was killed between two checkpoints."""
        point = next(p for p in writes if p.call == "rename" and p.path.endswith("step-000005.parquet"))
        assert self.armed(self.train, self.killed, point, "kill") == -signal.SIGKILL

    def armed(self, go: Callable[[Path], int], root: Path, point: Point, mode: str) -> int:
        """Run the command in a child that suffers the fault."""
        self.trap.watch(bytes(root))
        arm = partial(self.trap.arm, point.sequence, point.number, MODES[mode])
        return forked(lambda: arm() or go(root), root.with_suffix(".txt"))

    def events(self) -> list[Event]:
        """What the trap has noted."""
        return self.trap.events()[: self.trap.length()]

    def case(self, point: Point, mode: str) -> Case:
        """Try one fault."""
        began = time.perf_counter()
        folder = Path(tempfile.mkdtemp(prefix=f"{point.sequence}-{point.number}-{mode}-", dir=self.folder))
        outcome, detail = self.judged(folder, point, mode)
        if not outcome.startswith("BAD"):
            shutil.rmtree(folder)
        return Case(point, mode, outcome, detail, time.perf_counter() - began)

    def judged(self, folder: Path, point: Point, mode: str) -> tuple[str, str]:
        """What came of it, and the words for it."""
        root, first, then = folder / "runs", folder / "runs.txt", folder / "then.txt"
        if point.kind == READ:
            shutil.copytree(self.killed, root)
        code = self.armed(self.resume if point.kind == READ else self.train, root, point, mode)
        if not self.trap.fired():
            return "BAD: never reached", f"exit {code}: {last_line(first)}"
        if fault := broken(code, first, -signal.SIGKILL if mode in ("kill", "torn") else None):
            return f"BAD: {fault}", last_line(first)
        words = "" if code <= 0 else last_line(first)
        saved = {step for event in self.events() if (step := saved_step(event)) is not None}
        present = set(all_steps(root / "run" / "checkpoints"))
        if saved and not present:
            return "BAD: its checkpoints are gone", words
        if code == 0 and (difference := self.difference(root)):
            return f"BAD: success, but {difference}", words
        code = forked(lambda: self.resume(root), then)
        if fault := broken(code, then, None):
            return f"BAD: afterwards {fault}", f"{words} | {last_line(then)}"
        if code == 2:
            return "BAD: cannot be continued", f"{words} | {last_line(then)}"
        if difference := self.difference(root):
            return f"BAD: afterwards {difference}", words
        return ("clear error, then the same" if words else "the same"), words

    def difference(self, root: Path) -> str:
        """How a finished run differs from the undisturbed one; empty when it does not."""
        try:
            found = remains(RunFolder(root / "run"))
        except Exception as error:
            return f"what it left cannot be read: {error!r}"
        if different := [name for name, value in self.expected.items() if found[name] != value]:
            return f"{', '.join(different)} differ"
        if files := listing(root) ^ self.listing:
            return f"files differ: {', '.join(sorted(files))}"
        if not (root / "run" / "report.html").read_text().rstrip().endswith("</html>"):
            return "the report is cut"
        return ""


def listing(root: Path) -> set[str]:
    """All files below, but for those that SQLite makes and removes as it sees fit."""
    names = {path.relative_to(root).as_posix() for path in root.rglob("*")}
    return {name for name in names if not name.endswith(("-wal", "-shm"))}


def saved_step(event: Event) -> str | None:
    """The checkpoint that a call put in its place."""
    _, _, name = event.path.decode().rpartition("/checkpoints/")
    return name if event.call == b"rename" and not event.failed and name.startswith("step-") else None


def broken(code: int, said: Path, wanted: int | None) -> str:
    """What is wrong with how a command ended: it may end well, with a sentence, or by the signal that was sent."""
    text = said.read_text(errors="replace")
    if "Traceback" in text:
        return "traceback"
    if wanted is not None:
        return "" if code == wanted else f"exit {code}"
    if code == -signal.SIGALRM:
        return f"hang of {SECONDS} s"
    if code not in (0, 2):
        return f"exit {code}"
    return "an error without its sentence" if code == 2 and not last_line(said).startswith("error: ") else ""


def last_line(said: Path) -> str:
    """The last that a command said."""
    return (said.read_text(errors="replace").strip().splitlines() or [""])[-1]


def spread(cases: Sequence[T], number: int) -> list[T]:
    """So many of them, evenly; 0: all."""
    if not 0 < number < len(cases):
        return list(cases)
    return [cases[round((index + 0.5) * len(cases) / number - 0.5)] for index in range(number)]


def each(cases: Sequence[tuple[Point, str]], number: int) -> list[tuple[Point, str]]:
    """So many of each call to a kind of file and mode, evenly; 0: all."""
    kinds = defaultdict(list)
    for point, mode in cases:
        kinds[point.call, re.sub(r"[0-9a-f]{16}|tmp\w{6}$|\d+", "#", point.path), mode].append((point, mode))
    return [case for alike in kinds.values() for case in spread(alike, number)]


def in_parallel(campaign: Campaign, cases: Sequence[tuple[Point, str]], jobs: int, log: Path) -> list[Case]:
    """Each case in a process of its own, so many at a time."""
    results: list[Case] = []
    left, running = list(reversed(cases)), {}
    while left or running:
        while left and len(running) < jobs:
            point, mode = left.pop()
            read, write = os.pipe()
            child = os.fork()
            if not child:
                os.close(read)
                found = campaign.case(point, mode)
                os.write(write, json.dumps([found.outcome, found.detail[:2000], found.seconds]).encode())
                os._exit(0)
            os.close(write)
            running[child] = read, point, mode
        child, _ = os.wait()
        read, point, mode = running.pop(child)
        with os.fdopen(read, "rb") as pipe:
            results.append(Case(point, mode, *json.loads(pipe.read())))
        tell(results[-1], len(results), len(cases), log)
    return results


def tell(case: Case, done: int, total: int, log: Path) -> None:
    """A line for what is wrong, a moving one for the rest, all in the log."""
    point = case.point
    where = f"{SEQUENCES[point.sequence]} {point.number} {point.call} {point.path}"
    with log.open("a") as file:
        file.write(f"{case.outcome}\t{case.mode}\t{where}\t{case.seconds:.1f}\t{case.detail}\n")
    if case.outcome.startswith("BAD"):
        print(f"{case.mode} at {where}: {case.outcome}: {case.detail}", flush=True)
    if done % 100 == 0 or done == total:
        print(f"{done} of {total} cases", flush=True)


def summary(points: Sequence[Point], results: Sequence[Case]) -> str:
    """Tables: the points by call, the cases by mode and outcome."""
    lines = [f"{len(points)} fault points:"]
    lines += [f"  {count:5} {call}" for call, count in Counter(point.call for point in points).most_common()]
    modes = [mode for mode in MODES if any(case.mode == mode for case in results)]
    lines += [f"{len(results)} cases:", "  " + "".join(f"{mode:>7}" for mode in modes)]
    for outcome in sorted({case.outcome for case in results}):
        counts = Counter(case.mode for case in results if case.outcome == outcome)
        lines.append("  " + "".join(f"{counts[mode]:7}" for mode in modes) + f"  {outcome}")
    return "\n".join(lines)


def main() -> int:
    """Try the faults; 1 when one came through."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=0, help="so many cases, evenly spread; 0: all")
    parser.add_argument("--each", type=int, default=0, help="so many cases of each call to a kind of file; 0: all")
    parser.add_argument("--weights", type=int, default=0, help="so many more, of weights whose disk fails once")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--sequences", nargs="+", choices=SEQUENCES, default=list(SEQUENCES), help="calls of which")
    parser.add_argument("--only", default="", help="points whose call or path holds this")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="a line for each case")
    options = parser.parse_args()
    began = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="earl-faults-"))
    campaign = Campaign(folder)
    writes = campaign.points(reads=False)
    campaign.kill_half_done(writes)
    points = [*writes, *campaign.points(reads=True)]
    weights = each([(point, "eio") for point in points if ".safetensors" in point.path], 1)
    points = [point for point in points if SEQUENCES[point.sequence] in options.sequences]
    points = [point for point in points if options.only in f"{point.call} {point.path}"]
    cases = [(point, mode) for point in points for mode in point.modes() if mode in options.modes]
    cases = spread(each(cases, options.each), options.sample) + spread(weights, options.weights)[: options.weights]
    results = in_parallel(campaign, cases, options.jobs, options.log)
    print(f"{summary(points, results)}\n{time.perf_counter() - began:.0f} s")
    bad = any(case.outcome.startswith("BAD") for case in results)
    if bad:
        print(f"what they left lies in {folder}")
    else:
        shutil.rmtree(folder)
    return bad


if __name__ == "__main__":
    sys.exit(main())
