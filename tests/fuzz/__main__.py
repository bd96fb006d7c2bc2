"""`make fuzz`: hostile run folders, recipes, files and replies, until the time is up or the cases are done.

python -m tests.fuzz --seconds 600 --processes 2                 every kind, in turns
python -m tests.fuzz --kinds run --cases 20000                   one kind, so many cases
python -m tests.fuzz --case run:1234                             one case again, with what it says
"""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from random import Random

from earl.envs import registry
from earl.errors import EarlError
from tests.fuzz import inputs, runs
from tests.fuzz.guard import Action, Finding, Sandbox, Seconds, check

BATCH = 200
"""Small inputs that one child is given."""
KINDS = ("run", *inputs.KINDS)


class Fuzzer:
    """The cases of one process, with what they found."""

    def __init__(self, root: Path, bases: Sequence[Path]) -> None:
        self.sandbox, self.bases = Sandbox(root), list(bases)
        self.took: dict[str, list[Seconds]] = {}
        self._renew()

    def batch(self, kind: str, seeds: Sequence[int]) -> list[Finding]:
        """Try some cases of a kind: runs one by one, small inputs in one child."""
        if kind == "run":
            return [finding for seed in seeds for finding in self._run(seed)]
        self._renew()
        return check(self.sandbox, inputs.actions(kind, seeds, self.sandbox, self.bases[0]), self.took)

    def _run(self, seed: int) -> list[Finding]:
        self._renew()
        random, case = Random(f"run:{seed}"), f"run:{seed}"
        run, prepare = runs.prepared(random, self.sandbox, self.bases)
        return check(self.sandbox, runs.actions(random, case, self.sandbox, self.bases, run), self.took, prepare)

    def _renew(self) -> None:
        self.sandbox.renew()
        if not self.sandbox.before or self.sandbox.changed():  # by the case before
            self.sandbox.plant(self.bases[0])


def load_everything(fuzzer: Fuzzer) -> None:
    """Import what the commands import, once for all children: a child says what that is."""
    import torch

    torch.set_num_threads(1)
    run, listed = fuzzer.sandbox.case / "runs" / "good", fuzzer.sandbox.case / "modules.json"
    tried = runs.actions(Random(0), "", fuzzer.sandbox, fuzzer.bases, run, everything=True)
    listing = Action("", "import", lambda: listed.write_text(json.dumps(sorted(sys.modules))) and 0)
    check(fuzzer.sandbox, [*tried, listing], {}, lambda: shutil.copytree(fuzzer.bases[0], run) and None)
    for library in registry.ADAPTERS:  # what a library does where it is imported is not the command's
        with suppress(EarlError):
            registry.offered(library)
    for name in json.loads(listed.read_text()):
        with suppress(ImportError):  # some a library makes as it runs
            import_module(name)


def seeds(kinds: Sequence[str], first: int, cases: int | None, share: int, of: int) -> Iterator[tuple[str, list[int]]]:
    """Batches of all kinds in turns, in which one run weighs as much as many small inputs."""
    done = dict.fromkeys(kinds, 0)
    while left := [kind for kind in kinds if cases is None or done[kind] < cases]:
        for kind in left:
            size = 10 if kind == "run" else BATCH
            begin = done[kind]
            end = begin + size if cases is None else min(begin + size, cases)
            done[kind] = end
            if (begin // size) % of == share:
                yield kind, list(range(first + begin, first + end))


def fuzz(root: Path, bases: Sequence[Path], options: argparse.Namespace, share: int, log: Path) -> None:
    """The cases of one process; what they find is written into `log`, a line for each batch."""
    fuzzer, ends = Fuzzer(root, bases), time.monotonic() + options.seconds
    with log.open("w") as file:
        for kind, numbers in seeds(options.kinds, options.seed, options.cases, share, options.processes):
            if time.monotonic() > ends:
                break
            fuzzer.took.clear()
            found = fuzzer.batch(kind, numbers)
            took = {label: [len(o), sum(c for c, _ in o), max(w for _, w in o)] for label, o in fuzzer.took.items()}
            print(
                json.dumps({"kind": kind, "cases": len(numbers), "took": took, "found": [asdict(f) for f in found]}),
                file=file,
                flush=True,
            )


class Sums:
    """What all processes said so far."""

    def __init__(self) -> None:
        self.cases: Counter[str] = Counter()
        self.took: dict[str, list[float]] = {}
        self.found: dict[tuple[str, str], list[Finding]] = {}

    def read(self, line: bytes) -> None:
        said = json.loads(line)
        self.cases[said["kind"]] += said["cases"]
        for label, (number, seconds, longest) in said["took"].items():
            sums = self.took.setdefault(label, [0, 0.0, 0.0])
            self.took[label] = [sums[0] + number, sums[1] + seconds, max(sums[2], longest)]
        for fields in said["found"]:
            finding = Finding(**fields)
            if finding.key not in self.found:
                print(f"\n{finding.fault} in {finding.where}: --case {finding.case}", file=sys.stderr, flush=True)
            self.found.setdefault(finding.key, []).append(finding)

    def line(self, began: float) -> str:
        counted = ", ".join(f"{number:,} {kind}" for kind, number in self.cases.items())
        return f"{time.monotonic() - began:6.0f} s   {counted}   {len(self.found)} findings"

    def show(self) -> None:
        for label, (number, seconds, longest) in sorted(self.took.items()):
            each = 1000 * seconds / number
            print(f"  {label:28} {number:9,.0f} times, computing {each:7.1f} ms each, {longest:6.2f} s at most")
        for (fault, where), found in sorted(self.found.items(), key=lambda item: -len(item[1])):
            labels = ", ".join(dict.fromkeys(finding.label for finding in found[:50]))
            print(f"{len(found):6} x {fault} in {where}\n         {labels[:150]}; again: --case {found[0].case}")


def again(fuzzer: Fuzzer, case: str, keep: Path | None) -> int:
    """Try one case, and show all that it says."""
    kind, _, seed = case.partition(":")
    if keep and kind == "run":
        runs.prepared(Random(case), fuzzer.sandbox, fuzzer.bases)[1]()
        subprocess.run(["cp", "-a", fuzzer.sandbox.case / "runs", keep], check=True)  # pipes and links as they are
    found = fuzzer.batch(kind, [int(seed)])
    print((fuzzer.sandbox.root / "output").read_text(errors="replace").translate({27: "␛"}))
    for finding in found:
        print(f"FOUND {finding.fault} in {finding.where} by {finding.label}")
    return 1 if found else 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after so long")
    parser.add_argument("--cases", type=int, help="stop after so many of each kind")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", help="KIND:NUMBER, to try one again")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="with --case: copy the mutated run to here")
    parser.add_argument("--out", type=Path, help="write every finding into this file, one JSON object a line")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz, and return 1 when an invariant broke."""
    options = parsed(arguments)
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="earl-fuzz-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        return _in_folder(folder, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _in_folder(folder: Path, options: argparse.Namespace) -> int:
    whole = "run" in options.kinds if options.case is None else options.case.startswith("run:")
    bases = runs.make_bases(folder / "bases", tuple(runs.BASES) if whole else ("game",))
    if options.case:
        return again(Fuzzer(folder / "0", bases), options.case, options.keep)
    load_everything(Fuzzer(folder / "first", bases))
    gc.collect()
    gc.freeze()
    began, sums = time.monotonic(), Sums()
    logs = [folder / f"{share}.log" for share in range(options.processes)]
    workers = [_forked(folder, bases, options, share, log) for share, log in enumerate(logs)]
    places, due, faults = [0] * len(logs), began + 60, 0
    while workers:
        time.sleep(0.5)
        ended = [os.waitpid(worker, os.WNOHANG) for worker in workers]
        for share, log in enumerate(logs):
            if log.exists():
                with log.open("rb") as file:
                    file.seek(places[share])
                    while (line := file.readline()).endswith(b"\n"):
                        sums.read(line)
                        places[share] = file.tell()
        workers = [worker for worker, (pid, _) in zip(workers, ended, strict=True) if not pid]
        faults += sum(bool(status) for _, status in ended)
        if sys.stderr.isatty() or time.monotonic() > due:
            print(f"\r{sums.line(began)}", end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
            due = time.monotonic() + 60
    print(f"\n{sums.line(began)}")
    sums.show()
    if options.out:
        lines = [json.dumps(asdict(finding)) for found in sums.found.values() for finding in found[:5]]
        options.out.write_text("\n".join(lines) + "\n")
    if faults:
        print("a process of the fuzzer itself ended with a fault", file=sys.stderr)
    return 2 if faults else 1 if sums.found else 0


def _forked(folder: Path, bases: Sequence[Path], options: argparse.Namespace, share: int, log: Path) -> int:
    worker = os.fork()
    if worker:
        return worker
    code = 3
    try:
        fuzz(folder / str(share), bases, options, share, log)
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
