"""The fuzzer finds what is planted, of every kind and by every invariant; and a short round of it finds nothing."""

import ctypes
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuzz import guard, inputs, runs
from tests.fuzz.__main__ import Fuzzer, main
from tests.fuzz.guard import SECRET, Action, Sandbox


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return runs.make_bases(tmp_path_factory.mktemp("fuzz") / "bases", ("game",))


@pytest.fixture
def fuzzer(bases: list[Path], tmp_path: Path) -> Fuzzer:
    return Fuzzer(tmp_path / "worker", bases)


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """What is found of an action."""
    sandbox = Sandbox(tmp_path / "worker")
    sandbox.renew()
    sandbox.plant()

    def of(act: Callable[[Path, Path], object]) -> list[str]:
        action = Action("planted:1", "planted", lambda: 0 if act(sandbox.case / "work", sandbox.canary) is None else 3)
        return [finding.fault for finding in guard.check(sandbox, [action], {})]

    yield of


def raises(work: Path, canary: Path) -> None:
    raise KeyError("planted")


def exits(work: Path, canary: Path) -> None:
    sys.exit(0)


def crashes(work: Path, canary: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def reads_for_ever(work: Path, canary: Path) -> None:
    os.mkfifo(work / "pipe")
    (work / "pipe").read_bytes()


def computes_for_ever(work: Path, canary: Path) -> None:
    while True:
        pass


def ignores_signals(work: Path, canary: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(100)


def eats_memory_slowly(work: Path, canary: Path) -> None:
    kept = []
    while True:
        kept.append(b"x" * (16 << 20))


def eats_memory_at_once(work: Path, canary: Path) -> None:
    del canary
    _ = b"x" * (900 << 20)


def writes_outside(work: Path, canary: Path) -> None:
    with (canary / "new").open("w"):
        pass


def writes_through_a_link(work: Path, canary: Path) -> None:
    (work / "link").symlink_to(canary / "key")
    (work / "link").write_text("stolen")


def writes_without_python(work: Path, canary: Path) -> None:
    descriptor = ctypes.CDLL(None).open(os.fsencode(canary / "key"), os.O_WRONLY | os.O_APPEND)
    ctypes.CDLL(None).write(descriptor, b"stolen", 6)


def makes_a_database_outside(work: Path, canary: Path) -> None:
    with sqlite3.connect(canary / "new.db") as connection:
        connection.execute("CREATE TABLE t (x)")


def removes_outside(work: Path, canary: Path) -> None:
    (canary / "secret.json").unlink()


def moves_from_outside(work: Path, canary: Path) -> None:
    (canary / "key").rename(work / "key")


def removes_and_restores(work: Path, canary: Path) -> None:
    (canary / "empty").rmdir()
    (canary / "empty").mkdir()


def says_a_secret(work: Path, canary: Path) -> None:
    print((canary / "key").read_text())


def writes_a_secret(work: Path, canary: Path) -> None:
    (work / "report.html").write_text((canary / "key").read_text())


def writes_a_page_that_runs_it(work: Path, canary: Path) -> None:
    (work / "report.html").write_text("<p><img src=x onerror='window.harmed=3'></p>")


def steers(work: Path, canary: Path) -> None:
    print("\x1b[2J")


def shows_a_traceback(work: Path, canary: Path) -> None:
    print("Traceback (most recent call last):\nValueError: planted", file=sys.stderr)


def returns_another_code(work: Path, canary: Path) -> int:
    return 3


def starts_a_process(work: Path, canary: Path) -> None:
    subprocess.run(["true"], check=True)


def asks_the_network(work: Path, canary: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.connect(("203.0.113.9", 9))


PLANTED = {
    raises: "KeyError",
    exits: "SystemExit",
    crashes: "died of -11",
    reads_for_ever: "hang",
    computes_for_ever: "hang",
    ignores_signals: "hang",
    eats_memory_slowly: "memory",
    eats_memory_at_once: "memory",
    writes_outside: "outside",
    writes_through_a_link: "outside",
    writes_without_python: "outside",
    makes_a_database_outside: "outside",
    removes_outside: "outside",
    moves_from_outside: "outside",
    removes_and_restores: "outside",
    says_a_secret: "leak",
    writes_a_secret: "leak",
    writes_a_page_that_runs_it: "page",
    steers: "steering",
    shows_a_traceback: "traceback",
    returns_another_code: "exit",
    starts_a_process: "outside",
    asks_the_network: "outside",
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_an_invariant_that_breaks_is_found(plant, faults, monkeypatch):
    if PLANTED[plant] == "hang":
        monkeypatch.setattr(guard, "MOST_SECONDS", 0.5)
    assert PLANTED[plant] in faults(plant)


def test_what_breaks_nothing_is_not_found(faults):
    assert faults(lambda work, canary: (work / "file").write_text("x") and None) == []
    assert faults(lambda work, canary: print("a line\nand another")) == []
    assert SECRET not in "a line"


def test_a_page_that_stood_there_before_is_not_one_that_a_command_wrote(tmp_path):
    sandbox = Sandbox(tmp_path / "worker")
    page = sandbox.renew() / "report.html"
    sandbox.plant()
    markup = "<script>window.harmed=1</script>"

    def faults(call: Callable[[], object]) -> list[str]:
        found = guard.check(sandbox, [Action("planted:1", "planted", lambda: call() and 0)], {}, plant)
        return [finding.fault for finding in found]

    def plant() -> None:
        page.write_text(markup)

    assert faults(lambda: None) == []
    assert faults(lambda: page.write_text(f"<p>{markup}</p>")) == ["page"]


def test_what_comes_after_an_action_that_was_killed_is_tried_too(tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "MOST_SECONDS", 0.5)
    sandbox = Sandbox(tmp_path / "worker")
    sandbox.renew()
    sandbox.plant()
    calls = [lambda: time.sleep(100), lambda: 0, lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: 7]
    actions = [Action(f"planted:{number}", "planted", call) for number, call in enumerate(calls)]
    took: dict[str, list[guard.Seconds]] = {}
    found = guard.check(sandbox, actions, took)
    assert [(finding.case, finding.fault) for finding in found] == [
        ("planted:0", "hang"),
        ("planted:2", "died of -9"),
        ("planted:3", "exit"),
    ]
    assert len(took["planted"]) == 4


WITHIN = {
    "run": "earl.cli.watch.snapshot",
    "recipe": "earl.recipe.build",
    "assignment": "earl.recipe.override",
    "command": "earl.cli.main.Commands.get_command",
    "reply": "earl.agents.parser.parse",
    "template": "earl.agents.chat.Chat._opening",
    "served": "earl.engine.served.ServedSampler.generate",
    "parquet": "earl.runs.trajectories.read",
    "database": "earl.runs.store.read_numbers",
    "checkpoint": "earl.runs.summary.chosen_checkpoint",
    "shown": "earl.cli.text.clean",
    "question": "earl.planner.question.responses",
    "name": "earl.runs.folder.free",
    "cluster": "earl.rehearsal.plan.attach",
    "profile": "earl.profiling.kept.read",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", *inputs.KINDS])
def test_a_fault_within_is_found_by_its_kind(kind, fuzzer, monkeypatch):
    def planted(*_, **__):
        raise ArithmeticError("planted")

    monkeypatch.setattr(WITHIN[kind], planted, raising=False)
    found = fuzzer.batch(kind, range(3 if kind == "run" else 20))
    assert "ArithmeticError" in {finding.fault for finding in found}


def test_a_case_is_the_same_every_time(fuzzer, bases):
    def folder() -> dict[str, bytes]:
        random = runs.Random("run:5")
        fuzzer.sandbox.renew()
        run, prepare = runs.prepared(random, fuzzer.sandbox, bases)
        prepare()
        files = [path for path in sorted(run.rglob("*")) if path.is_file() and not path.is_symlink()]
        return {str(path): path.read_bytes() for path in files if path.stat().st_size < 1 << 20}

    assert folder() == folder()


@pytest.mark.slow
def test_a_short_round_breaks_nothing(fuzzer):
    found = fuzzer.batch("run", range(8))
    for kind in inputs.KINDS:
        found += fuzzer.batch(kind, range(10))
    assert not found, found


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_round_of_two_processes_breaks_nothing(tmp_path, capfd):
    code = main(["--seconds", "4", "--processes", "2", "--seed", "100000"])
    assert code == 0, capfd.readouterr().out
