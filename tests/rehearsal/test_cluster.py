"""A real cluster on this machine: Ray tasks on every host, shaped links, faults, and nothing left behind."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from earl.errors import EarlError
from earl.rehearsal import cluster as rehearsal
from earl.rehearsal import plan
from earl.rehearsal.plan import RehearsedCluster, bits_per_second, call, check
from tests.sampling import sampled

ROOT = Path(__file__).parents[2]
HOSTS = 3
RATE = "100mbit"
PATIENCE_SECONDS = 120.0

# A driver in a process of its own: Ray reads its token when it is imported. Prints a JSON object.
DRIVER = """
import json, os, sys, time
from earl.rehearsal.plan import attach
os.environ.update(attach("auto"))
import numpy, ray
ray.init(address="auto", logging_level="error", log_to_driver=False)

@ray.remote(num_cpus=1)
def look():
    return ray.util.get_node_ip_address(), os.environ["GLOO_SOCKET_IFNAME"], os.environ["VLLM_HOST_IP"]

@ray.remote(num_cpus=1)
def make(size_bytes):
    return numpy.zeros(size_bytes, numpy.uint8)

@ray.remote(num_cpus=1)
def fetch(references):
    start = time.perf_counter()
    [array] = ray.get(references)
    return array.nbytes / (time.perf_counter() - start)

def on(host):
    return {"resources": {f"host-{host}": 0.1}}

def rate(source, target):
    for size_bytes in (1 << 10, 16 << 20):  # the first lets both hosts connect
        made = make.options(**on(source)).remote(size_bytes)
        ray.wait([made], fetch_local=False)
        bytes_per_second = ray.get(fetch.options(**on(target)).remote([made]))
    return bytes_per_second

report = {"hosts": {host: ray.get(look.options(**on(host)).remote(), timeout=60) for host in map(int, sys.argv[2:])}}
if sys.argv[1] == "rate":
    report["bytes_per_second"] = rate(1, 2)
print(json.dumps(report))
"""

pytestmark = [pytest.mark.cold, pytest.mark.slow]


@pytest.fixture(scope="module")
def permitted() -> None:
    try:
        check()
    except EarlError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", autouse=True)
def home(permitted: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder of the test's own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("state")
        patch.setenv("XDG_STATE_HOME", str(folder))
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.delenv("RAY_ADDRESS", raising=False)
        yield folder


def fresh_name() -> str:
    return f"t{secrets.token_hex(3)}"


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[RehearsedCluster]:
    """For the last tests, so that it is there alone."""
    name = fresh_name()
    yield rehearsal.up(name, HOSTS, RATE, cpus=2, memory_mib=128, say=print)
    rehearsal.down(name)
    assert_nothing_left(name)


def drive(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-c", DRIVER, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


def states(cluster: RehearsedCluster) -> list[tuple[str, str]]:
    """Of each host: its processes, its link."""
    return [(host.processes, host.link) for host in rehearsal.status(cluster)]


def command_lines() -> str:
    return "\n".join(
        path.read_bytes().replace(b"\0", b" ").decode(errors="replace") for path in readable("/proc", "*/cmdline")
    )


def readable(folder: str, pattern: str) -> Iterator[Path]:
    for path in Path(folder).glob(pattern):
        try:
            path.read_bytes()
        except OSError:
            continue
        yield path


def assert_nothing_left(name: str) -> None:
    assert name not in call(("ip", "netns", "list"))
    assert name not in call(("ip", "-br", "link"))
    assert not list(Path("/tmp").glob(f"{name}-*"))
    assert not plan.folder(name).exists()
    assert f"/tmp/{name}-" not in command_lines()
    assert f"/tmp/{name}-" not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("stage", sampled(["network", "Ray: head", "Ray: 2 hosts"], every=2))
def test_ctrl_c_while_it_comes_up_leaves_nothing(stage: str) -> None:
    name = fresh_name()
    command = [sys.executable, "-u", "-m", "earl.cli.main", "cluster", "up", "--hosts", "2", "--name", name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while stage not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(0.3)  # into the stage; wherever this meets it, nothing may stay
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert_nothing_left(name)


def test_what_fails_while_it_comes_up_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "tc"  # as on a kernel without token buckets
    broken.write_text("#!/bin/sh\necho 'Error: Specified qdisc kind is unknown.' >&2; exit 2\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    name = fresh_name()
    with pytest.raises(EarlError, match=r"`tc qdisc add .*` failed: Error: Specified qdisc kind is unknown"):
        rehearsal.up(name, 1, RATE, cpus=1, memory_mib=128, say=print)
    assert_nothing_left(name)


def test_a_node_that_does_not_start_is_named_with_rays_words_and_leaves_nothing() -> None:
    name = fresh_name()
    with pytest.raises(EarlError, match="Ray on host 0 did not start; it said: "):
        rehearsal.up(name, 1, RATE, cpus=1, memory_mib=1, say=print)  # Ray wants 75 MiB at least
    assert_nothing_left(name)


def test_names_that_others_hold_are_left_alone() -> None:
    name = fresh_name()
    call(("ip", "link", "add", f"{name}0", "type", "bridge"))
    try:
        with pytest.raises(EarlError, match=f"{name}0: network namespaces or interfaces of other origin"):
            rehearsal.up(name, 1, RATE, cpus=1, memory_mib=128, say=print)
        assert f"{name}0" in call(("ip", "-br", "link"))
    finally:
        call(("ip", "link", "delete", f"{name}0"))


def test_tasks_run_on_every_host_and_their_links_have_the_rate(cluster: RehearsedCluster) -> None:
    report = drive("rate", *cluster.workers)
    assert report["hosts"] == {
        str(host): [cluster.ip(host), cluster.interface, cluster.ip(host)] for host in cluster.workers
    }
    # Wide bounds: what is watched is that the link is shaped, not how busy this machine is.
    assert 0.3 < report["bytes_per_second"] * 8 / bits_per_second(RATE) < 1.1
    token = (plan.folder(cluster.name) / "token").read_text()
    assert token not in command_lines()
    logs = [path for path in Path(cluster.folder).rglob("*") if path.suffix in (".log", ".out", ".err", ".txt")]
    assert logs
    assert not [path for path in logs if token.encode() in path.read_bytes()]
    with pytest.raises(EarlError, match="is up already; take it down with"):
        rehearsal.up(cluster.name, 1, RATE, cpus=1, memory_mib=128, say=print)


@pytest.mark.exhaustive
def test_faults_befall_one_host_and_are_healed(cluster: RehearsedCluster) -> None:
    rehearsal.fail(cluster, 2, "kill")
    assert rehearsal.inside(rehearsal.namespace_path(cluster, 2)) == []
    until(lambda: not rehearsal.status(cluster)[1].in_ray)
    rehearsal.fail(cluster, 1, "freeze")
    rehearsal.fail(cluster, 3, "link-down")
    assert states(cluster) == [("frozen", "up"), ("none", "up"), ("running", "down")]
    rehearsal.fail(cluster, 1, "thaw")
    rehearsal.fail(cluster, 3, "link-up")
    assert states(cluster) == [("running", "up"), ("none", "up"), ("running", "up")]
    rehearsal.heal(cluster, 2)
    assert set(drive("look", *cluster.workers)["hosts"]) == {"1", "2", "3"}
    with pytest.raises(EarlError, match="has no host 4; its hosts are 1 to 3"):
        rehearsal.fail(cluster, 4, "kill")
