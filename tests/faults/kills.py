"""Runs that are killed at random moments, and continued until they end: each as its undisturbed twin, and nothing left.

Embedded runs of one process are forked from this one, which has imported all, or started by the command; those of two
processes and those on Ray are started by the command. Killed is the driver alone, all processes of the run at once, or
one of the others, which the driver has to survive or to report. `make kills` prints a table.
"""

import argparse
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from earl.benchmarks.placements import TAKEN
from earl.cli.main import run
from earl.errors import EarlError
from earl.runs.folder import RunFolder, lock
from tests.faults.injected import RECIPE, broken, last_line
from tests.train.conftest import remains

MARK = "EARL_KILLED_RUN"
"""In the environment of every process of a run that is started by the command."""
MOST_KILLS = 6
"""Of one run; then it goes on to its end."""
PATIENCE = 1200.0
"""Seconds after which a command hangs."""
GRACE = 60.0
"""Seconds in which what belonged to a killed process has to be gone."""
RAY = ("placement.dp=2", "placement.samplers=2")


@dataclass(frozen=True)
class Kind:
    """A way to run the recipe."""

    name: str
    settings: tuple[str, ...] = ()
    forked: bool = False

    @property
    def alone(self) -> bool:
        """Whether the driver is the only process."""
        return not self.settings


KINDS = (
    Kind("forked", forked=True),
    Kind("command"),
    Kind("two", ("run.processes=2",)),
    Kind("colocated", ("placement.kind=colocated", *RAY)),
    Kind("disaggregated", ("placement.kind=disaggregated", *RAY)),
)


@dataclass
class Tally:
    """What came of the kills of one kind."""

    whom: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    equal: int = 0
    """Runs that ended as if nothing had happened, to the bit."""
    orphans: int = 0
    files: int = 0
    """Shared memory that is still there at the end, and temporary files that an undisturbed run does not leave."""
    namespaces: int = 0
    worst: float = 0.0
    """Seconds from a kill until the last process of the run was gone."""
    bad: list[str] = field(default_factory=list)


class Trial:
    """One run, from its beginning over its kills to its end."""

    def __init__(self, kind: Kind, root: Path, recipe: Path) -> None:
        self.kind, self.root, self.recipe = kind, root, recipe
        self.folder = RunFolder(root / "runs" / "run")
        self.said, self.temporary = root / "said.txt", root / "t"
        self.temporary.mkdir(parents=True)
        self.traces: set[str] = set()
        self.began = 0.0

    def command(self) -> list[str]:
        """What a user says: begin, or go on where something is left."""
        where = ["--runs", str(self.folder.path.parent)]
        if self.folder.path.exists():
            return ["train", "--resume", "run", *where]
        settings = [part for setting in self.kind.settings for part in ("--set", setting)]
        return ["train", "tictactoe", "--config", str(self.recipe), "--name", "run", *where, *settings]

    def train(self) -> int:
        """The same in this process."""
        return run(self.command())

    def start(self) -> int:
        """Begin the run, or go on with it; the driver's process, in a session of its own."""
        self.began = time.monotonic()
        if child := os.fork():
            return child
        try:
            os.setsid()
            output = os.open(self.said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(output, stream)
            if self.kind.forked:
                os._exit(self.train())
            environment = {**os.environ, MARK: str(self.root), "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
            os.execve(sys.executable, [sys.executable, "-m", "earl.cli.main", *self.command()], environment)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def members(self, driver: int) -> list[int]:
        """The living processes of the run, however they were started: by session or by environment."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                    marked = f"{MARK}={self.root}".encode() in (entry / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if state not in "ZX" and (marked or int(session) == driver):
                    found.append(int(entry.name))
        return found

    def note_traces(self, members: Sequence[int]) -> None:
        """Remember which shared memory the processes of the run use."""
        for member in members:
            with suppress(OSError):
                maps = Path(f"/proc/{member}/maps").read_text().splitlines()
                paths = {line.split(maxsplit=5)[5] for line in maps if " /dev/shm/" in line}
                self.traces |= {path for path in paths if not path.endswith("(deleted)")}

    def leftovers(self) -> set[str]:
        """What lies in its temporary folder; Ray leaves a folder of logs for each start."""
        return {path.name for path in self.temporary.iterdir()}

    def wait(self, driver: int, seconds: float) -> int | None:
        """How the driver ended, as `os.waitstatus_to_exitcode` has it; None: it has not."""
        deadline = time.monotonic() + seconds
        while True:
            ended, status = os.waitpid(driver, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.005)

    def finish(self) -> tuple[float, float]:
        """Let it go to its end; the seconds until its database was there, and until the end."""
        driver, begun = self.start(), 0.0
        while (code := self.wait(driver, 0.01)) is None:
            if not begun and self.folder.database.exists():
                begun = time.monotonic() - self.began
            if time.monotonic() > self.began + PATIENCE:
                end([driver])
                raise AssertionError(f"hangs: {last_line(self.said)}")
        if (fault := broken(code, self.said, None)) or code:
            raise AssertionError(f"{fault or 'refused'}: {last_line(self.said)}")
        return begun, time.monotonic() - self.began

    def kill(self, driver: int, rng: random.Random, tally: Tally) -> int | None:
        """Kill one way or the other; how the driver ended, None: it hangs."""
        members = self.members(driver)
        self.note_traces(members)
        others = [member for member in members if member != driver]
        whom = "driver" if self.kind.alone else rng.choice(["driver", "all", "other"])
        if whom == "other" and not others:
            whom = "driver"  # they have not been started
        tally.whom[whom] += 1
        end({"driver": [driver], "all": [driver, *others], "other": others and [rng.choice(others)]}[whom])
        killed = time.monotonic()
        code = self.wait(driver, PATIENCE)
        if whom == "other" and code is not None and (fault := broken(code, self.said, None)):
            tally.bad.append(f"{self.root.name}: after another's death: {fault}: {last_line(self.said)}")
        while (left := self.members(driver)) and time.monotonic() < killed + GRACE:
            time.sleep(0.05)
        tally.worst = max(tally.worst, time.monotonic() - killed)
        if left and code is not None:
            tally.orphans += len(left)
            names = Counter(command_of(member) for member in left)
            tally.bad.append(f"{self.root.name}: orphans after the death of {whom}: {dict(names)}")
        end(left)
        return code


def end(processes: Sequence[int]) -> None:
    """Kill processes of a trial."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def command_of(process: int) -> str:
    """What it runs, in short."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "gone"
    return Path(words[0]).name if "python" not in words[0] else " ".join(words[1:3])[-40:]


def suffer(trial: Trial, moments: tuple[float, float], most: int, rng: random.Random, tally: Tally) -> None:
    """Kill a run up to so many times, and let it go to its end."""
    for _ in range(most):
        driver = trial.start()
        code = trial.wait(driver, rng.uniform(*moments))
        if code is None:
            code = trial.kill(driver, rng, tally)
            if code is None:
                raise AssertionError(f"hangs after another's death: {last_line(trial.said)}")
        elif fault := broken(code, trial.said, None):
            raise AssertionError(f"{fault}: {last_line(trial.said)}")
        if code == 0:
            break
    trial.finish()


def judged(trial: Trial, expected: Mapping[str, Any], usual: set[str], before: set[str], tally: Tally) -> None:
    """Compare what a run has left with its undisturbed twin."""
    found = essence(trial)
    tally.runs += 1
    tally.equal += found == expected
    faults = [f"{name} differ" for name, value in expected.items() if found[name] != value]
    faults += [f"left behind: {path.name}" for path in trial.folder.path.parent.rglob(".*")]
    with lock(trial.folder):
        left = [path for path in trial.traces if Path(path).exists()]
    left += sorted(trial.leftovers() - usual)
    tally.files += len(left)
    tally.namespaces += len(namespaces() - before)
    tally.bad += [f"{trial.root.name}: {fault}" for fault in [*faults, *left]]


def essence(trial: Trial) -> dict[str, Any]:
    """What a run leaves behind, but for what machines took: all to the bit, on Ray too while the layout is the same."""
    found = remains(trial.folder)
    return {**found, "metrics": [row for row in found["metrics"] if not row[1].startswith(TAKEN)]}


def namespaces() -> set[str]:
    """The names of this machine's network namespaces."""
    return {path.name for path in Path("/run/netns").glob("*")}


def campaign(kind: Kind, kills: int, root: Path, rng: random.Random) -> Tally:
    """So many kills of one kind of run."""
    recipe, tally, before = root / "recipe.toml", Tally(), namespaces()
    undisturbed = Trial(kind, root / f"{kind.name}-undisturbed", recipe)
    begun, whole = undisturbed.finish()
    expected, usual = essence(undisturbed), undisturbed.leftovers()
    print(f"{kind.name}: {whole:.1f} s undisturbed", flush=True)
    for number in count():
        if tally.whom.total() >= kills or len(tally.bad) > 20:
            break
        trial = Trial(kind, root / f"{kind.name}-{number}", recipe)
        try:
            most = min(MOST_KILLS, kills - tally.whom.total())
            suffer(trial, (0.8 * begun, whole), most, rng, tally)
            judged(trial, expected, usual, before, tally)
        except (AssertionError, EarlError, sqlite3.Error) as fault:
            tally.bad.append(f"{trial.root.name}: {fault}")
        print(f"{kind.name}: {tally.whom.total()} kills, {tally.runs} runs", flush=True)
    return tally


def table(tallies: Mapping[str, Tally]) -> str:
    """One line for each kind."""
    rows = [["", "kills", "driver", "all", "other", "runs", "equal", "orphans", "files", "namespaces", "gone in s"]]
    for name, tally in tallies.items():
        whom = [tally.whom[word] for word in ("driver", "all", "other")]
        counts = [tally.whom.total(), *whom, tally.runs, tally.equal, tally.orphans, tally.files, tally.namespaces]
        rows.append([name, *map(str, counts), f"{tally.worst:.1f}"])
    return "\n".join(
        "".join(f"{word:>14}" if place == 0 else f"{word:>11}" for place, word in enumerate(row)) for row in rows
    )


def main() -> int:
    """Kill; 1 when anything differs or is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    for kind, number in zip(KINDS, (50, 10, 25, 8, 7), strict=True):
        parser.add_argument(f"--{kind.name}", type=int, default=number, metavar="N", help="kills of such runs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began, root, rng = time.perf_counter(), Path(tempfile.mkdtemp(prefix="ek-")), random.Random(options.seed)
    (root / "recipe.toml").write_text(RECIPE)
    with (root / "warm.txt").open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        Trial(KINDS[0], root / "warm", root / "recipe.toml").train()  # imports all that the forked ones need
    wanted = [(kind, getattr(options, kind.name)) for kind in KINDS]
    tallies = {kind.name: campaign(kind, kills, root, rng) for kind, kills in wanted if kills}
    bad = [line for tally in tallies.values() for line in tally.bad]
    print("\n".join([table(tallies), *bad, f"{time.perf_counter() - began:.0f} s"]))
    if bad:
        print(f"what they left lies in {root}")
    else:
        shutil.rmtree(root)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
