"""Real namespaces and real kills: what a process leaves that ended without cleaning up, and who removes it."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from earl.errors import EarlError
from earl.rehearsal import cluster as rehearsal
from earl.rehearsal import plan
from earl.rehearsal.owner import Owner
from earl.rehearsal.plan import call, check_network
from tests.sampling import sampled

pytestmark = pytest.mark.cold

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 240.0

# As `earl bench dispatch` does: hosts, and processes in them that wait for each other.
WORK = """
import os, sys, time
from earl.benchmarks import processes

def work(seat):
    print(os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    processes.NAME = sys.argv[1]
    with processes.shaped(2, "100mbit") as cluster:
        processes.run(cluster, (0, 0, 1), work)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        check_network()
    except EarlError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def name() -> Iterator[str]:
    name = f"t{secrets.token_hex(3)}"
    yield name
    for namespace in sorted(rehearsal.namespaces()):
        if namespace.startswith(f"{name}-"):  # of a test that failed
            call(("ip", "netns", "delete", namespace))


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def running(process: int) -> bool:
    return Path(f"/proc/{process}/stat").exists()


def left(name: str) -> list[str]:
    namespaces = [own for own in rehearsal.namespaces() if own.startswith(f"{name}-")]
    links = [line for line in call(("ip", "-br", "link")).splitlines() if line.startswith(f"{name}0")]
    return [*namespaces, *links, *map(str, Path("/tmp").glob(f"{name}-*")), *map(str, plan.root().glob(name))]


def at_work(name: str, tmp_path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    script = tmp_path / "work.py"
    script.write_text(WORK)
    process = subprocess.Popen([sys.executable, script, name], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, [int(process.stdout.readline()) for _ in range(3)]


@pytest.mark.slow
def test_killed_hosts_end_their_processes_and_the_next_start_removes_the_rest(name: str, tmp_path: Path) -> None:
    process, members = at_work(name, tmp_path)
    with (
        pytest.raises(EarlError, match=f"'{name}' is in use by process {process.pid}"),
        rehearsal.laid(name, 2, "1gbit"),
    ):
        pass
    with pytest.raises(EarlError, match=f"belongs to process {process.pid}, which is at work"):
        rehearsal.down(name)
    assert rehearsal.sweep() == []
    process.kill()
    process.communicate()
    until(lambda: not any(map(running, members)))
    assert len(left(name)) == 6  # a switch and two hosts, an interface, a session folder and a state folder
    with rehearsal.laid(f"{name}b", 1, "1gbit"):
        assert [own for own in left(name) if not own.startswith(f"{name}b") and f"/{name}b" not in own] == []
    assert left(name) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", sampled([signal.SIGTERM, signal.SIGINT], every=2))
def test_a_bench_that_is_asked_to_end_leaves_nothing(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "earl.cli.main", "bench", "dispatch", "--hosts", "4", "--rate", "20mbit"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(lambda: (plan.root() / "dispatch").exists() or process.poll() is not None)
    until(lambda: "dispatch-4" in rehearsal.namespaces() or process.poll() is not None)
    process.send_signal(number)
    said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, said
    assert left("dispatch") == []


@pytest.mark.slow
def test_a_cluster_killed_while_it_came_up_is_removed_by_name(name: str) -> None:
    command = [sys.executable, "-u", "-m", "earl.cli.main", "cluster"]
    with subprocess.Popen(
        [*command, "up", "--hosts", "2", "--name", name], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while "Ray: head" not in process.stderr.readline():
            assert process.poll() is None
        process.kill()
    assert len(left(name)) == 6
    subprocess.run([*command, "down", "--name", name], check=True)
    assert left(name) == []


def test_what_is_called_alike_and_of_other_origin_is_left_alone(name: str) -> None:
    call(("ip", "netns", "add", f"{name}-1"))
    with pytest.raises(EarlError, match="of other origin"), rehearsal.laid(name, 2, "1gbit"):
        pass
    assert left(name) == [f"{name}-1"]


def test_after_a_restart_of_the_machine_only_files_are_removed(name: str) -> None:
    with rehearsal.laid(name, 1, "1gbit") as cluster:
        replace(Owner.this(), boot="another").write(plan.folder(name))
        # All namespaces of that name were made since, by somebody else.
        assert rehearsal.sweep() == [name]
        assert not Path(cluster.folder).exists() and not plan.folder(name).exists()
        assert {f"{name}-1", f"{name}-switch"} <= rehearsal.namespaces()


def test_a_cluster_that_stays_belongs_to_nobody_and_is_not_swept(name: str) -> None:
    with rehearsal.laid(name, 1, "1gbit") as cluster:
        plan.disown(cluster)
        assert rehearsal.sweep() == []
        with pytest.raises(EarlError, match=f"is up already; take it down with: earl cluster down --name {name}"):
            rehearsal._free(name, 1)
        assert rehearsal.down(name) == cluster
        assert left(name) == []


def test_hosts_without_ray_are_no_cluster_to_train_on(name: str) -> None:
    with rehearsal.laid(name, 1, "1gbit"):
        assert plan.attach("auto") == {}
    assert os.environ.get("RAY_ADDRESS") is None
