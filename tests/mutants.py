"""`make mutants`: mutmut changes the code that decides, one place at a time. Do the tests notice?

python -m tests.mutants --sample 300 --seed 0      a random sample, of every module in proportion
python -m tests.mutants 'earl.batch.*'             all mutants of one module

A further call goes on with the folder `mutants`: what was tried there is not tried again. This file is also the plugin
of pytest by which the tests of a mutant run in order of their duration (`[tool.mutmut]` of pyproject.toml).
"""

import argparse
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from random import Random

import pytest

from earl.matches import wilson

MUTMUT = Path(sys.executable).with_name("mutmut")
FOLDER = Path("mutants")
STATS = Path("mutmut-stats.json")  # in FOLDER, where the tests run
FIRST = "earl.algorithms.rloo.*"
"""Mutants that take no time: mutmut writes all, and notes which tests reach which function, before it tries any."""
KILLED = ("killed", "timeout")
OPEN = ("not checked", "check was interrupted by user")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The quickest first: the first test that fails ends a mutant, and most fail quick ones."""
    seconds = json.loads(STATS.read_text())["duration_by_test"] if STATS.exists() else {}
    items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))


def drawn(names: Iterable[str], seed: int) -> list[str]:
    """The mutants in a random order. However many of the first are taken, each module has its share of them."""
    random, modules = Random(seed), defaultdict(list)
    for name in sorted(names):
        modules[module_of(name)].append(name)
    places = {}
    for own in modules.values():
        random.shuffle(own)
        places |= {name: (rank + random.random()) / len(own) for rank, name in enumerate(own)}
    return sorted(places, key=places.__getitem__)


def module_of(name: str) -> str:
    """Of `earl.audit.run.xǁAuditedRunǁpolicy__mutmut_3` it is `earl.audit.run`."""
    return name.rpartition(".")[0]


def report(states: Mapping[str, str], of: int) -> str:
    """Mutants that were not killed, what was in each module, and the score; with its interval if `of` more."""
    alive = [f"{name}: {state}" for name, state in states.items() if state not in KILLED]
    all_of, alive_of = (Counter(map(module_of, names)) for names in (states, alive))
    modules = [f"{name}  {count - alive_of[name]} of {count}" for name, count in sorted(all_of.items())]
    count = len(states)
    killed = count - len(alive)
    score = f"{killed} of {count} mutants killed: {killed / count:.1%}"
    if count < of:
        score += " (95 % interval of all {}: {:.1%} to {:.1%})".format(of, *wilson(killed, count))
    if endless := [*states.values()].count("timeout"):
        score += f"; {endless} by tests that did not end in time"
    return "\n".join([*alive, *modules, score])


def states_of(patterns: Iterable[str]) -> dict[str, str]:
    """What mutmut says of each mutant with such a name: "killed", "survived", "no tests", "not checked" …"""
    said = subprocess.run([MUTMUT, "results", "--all", "true"], capture_output=True, text=True, check=True).stdout
    states = dict(line.strip().split(": ") for line in said.splitlines() if "__mutmut_" in line)
    return {name: state for name, state in states.items() if any(fnmatch(name, pattern) for pattern in patterns)}


def try_out(names: Iterable[str], processes: int) -> None:
    command = [MUTMUT, "run", "--max-children", str(processes), *names]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if ran.returncode:  # a test that fails without a mutant, as a rule
        sys.exit(f"{ran.stdout[-5000:]}\nmutmut ended with {ran.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation tests of the code that decides.")
    parser.add_argument("patterns", nargs="*", default=["*"], help="names of mutants, such as 'earl.batch.*'")
    parser.add_argument("--sample", type=int, help="try so many, drawn at random; all without it")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    if not FOLDER.exists():
        try_out([FIRST], asked.processes)
    states = states_of(asked.patterns)
    wanted = drawn(states, asked.seed)[: asked.sample]
    if untried := [name for name in wanted if states[name] in OPEN]:
        try_out(untried, asked.processes)
        states = states_of(asked.patterns)
    print(report({name: states[name] for name in sorted(wanted)}, len(states)))


if __name__ == "__main__":
    main()
