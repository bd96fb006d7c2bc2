"""The network, the processes and the Ray nodes of a rehearsed cluster.

Each Ray node is started by the program `ray` inside the host's network namespace. The head runs on the machine itself,
where the driver is; to identify its processes it gets a UTS namespace, which has no other effect.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from earl.errors import EarlError
from earl.rehearsal import state
from earl.rehearsal.plan import NETWORK, Command, RehearsedCluster, call


def namespaces() -> set[str]:
    return {line.split()[0] for line in call(("ip", "netns", "list")).splitlines() if line}


def free_subnet() -> int:
    """The third number of the first subnet in which this machine has no address."""
    addresses = call(("ip", "-4", "-o", "address"))
    free = [number for number in range(256) if f" {NETWORK}.{number}." not in addresses]
    if not free:
        raise EarlError(f"this machine has addresses in all of {NETWORK}.0.0/16; take a cluster down first")
    return free[0]


# The processes of a host are identified by their namespace, never by name, so that no other process is affected.

PATIENCE_SECONDS = 30.0


def inside(namespace: Path) -> list[int]:
    """Process ids in the namespace that is bound to a file; none if no namespace is bound to it."""
    found = _identity(namespace)
    if found is None:
        return []
    members = [entry.name for entry in Path("/proc").iterdir() if found in _namespaces(entry)]
    assert "self" not in members, f"{namespace} is the namespace of this very process"
    return [int(member) for member in members if member.isdigit()]


def send(namespace: Path, number: signal.Signals) -> int:
    members = inside(namespace)
    for member in members:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(member, number)
    return len(members)


def kill(namespace: Path) -> None:
    """Kill the processes in a namespace until none is left. Raises EarlError if one cannot be killed."""
    end = time.monotonic() + PATIENCE_SECONDS
    while send(namespace, signal.SIGKILL):
        if time.monotonic() > end:
            raise EarlError(f"processes {inside(namespace)} in {namespace} cannot be killed; see what they wait for")
        time.sleep(0.05)


def stopped(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "T"
    return False


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a path: the same for all paths to one namespace."""
    with suppress(OSError):
        return (status := path.stat()).st_dev, status.st_ino
    return None


def _namespaces(process: Path) -> set[tuple[int, int] | None]:
    return {_identity(process / "ns" / kind) for kind in ("net", "uts")}


START_SECONDS = 180.0
HEALTH = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "4",
}
"""When Ray's head gives up a node: after 4 seconds if connections are refused, 16 if there is no answer."""
IMPATIENT = {"RAY_NUM_REDIS_GET_RETRIES": "5"}
"""Ray then waits 5 seconds for a head that is gone, instead of 20."""
_WHO_IS_ALIVE = """
import ray
ray.init(logging_level="error", log_to_driver=False)
print(*[node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]])
"""
"""A driver that asks the head directly: `ray status` shows a snapshot that is some seconds old."""


def namespace(cluster: RehearsedCluster, host: int) -> Path:
    return Path(cluster.folder) / "head" if host == 0 else Path("/run/netns") / cluster.namespace(host)


def start(cluster: RehearsedCluster, hosts: Iterable[int]) -> None:
    """Start the Ray nodes of some hosts in parallel. Raises EarlError with Ray's message if one does not start."""
    begun = {host: _begin(cluster, host) for host in hosts}
    for host, process in begun.items():
        try:
            failed = process.wait(START_SECONDS) != 0
        except subprocess.TimeoutExpired:
            failed = True
        if failed:
            lines = Path(cluster.folder, f"start-{host}.txt").read_text(errors="replace").strip().splitlines()
            said = f"it said: {lines[-1]}" if lines else "it said nothing"
            raise EarlError(f"Ray on host {host} did not start; {said}")


def stop(cluster: RehearsedCluster, host: int) -> None:
    kill(namespace(cluster, host))
    shutil.rmtree(_session(cluster, host), ignore_errors=True)  # there is none if Ray never started


def joined(cluster: RehearsedCluster) -> set[int]:
    """The hosts that Ray's head considers alive now. Empty if the head does not answer."""
    variables = {**os.environ, **state.environment(cluster, 0), "RAY_ADDRESS": cluster.address, **IMPATIENT}
    done = subprocess.run((sys.executable, "-c", _WHO_IS_ALIVE), capture_output=True, text=True, env=variables)
    alive = done.stdout.split()
    return {host for host in cluster.workers if cluster.ip(host) in alive}


def _begin(cluster: RehearsedCluster, host: int) -> subprocess.Popen[bytes]:
    """Start a node's program in its own session: Ctrl-C is for the driver, not for the nodes."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    variables = {**inherited, **HEALTH, **state.environment(cluster, host), "RAY_USAGE_STATS_ENABLED": "0"}
    with Path(cluster.folder, f"start-{host}.txt").open("wb") as log:
        return subprocess.Popen(
            command(cluster, host),
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def command(cluster: RehearsedCluster, host: int) -> Command:
    ray = str(Path(sys.executable).with_name("ray"))
    common: Command = (
        *("--node-ip-address", cluster.ip(host)),
        *("--object-store-memory", str(cluster.memory_mib << 20)),
        *("--temp-dir", str(_session(cluster, host))),
        *("--resources", json.dumps({f"host-{host}": 1} if host else {"head": 1})),
        *("--num-cpus", str(cluster.cpus if host else 0), "--num-gpus", "0"),
        *("--dashboard-agent-listen-port", "0"),
    )
    if host:
        inside: Command = ("ip", "netns", "exec", cluster.namespace(host))
        return (*inside, ray, "start", "--address", cluster.address, *common)
    head: Command = ("--head", "--port", str(cluster.port), "--include-dashboard", "false")
    return ("nsenter", f"--uts={namespace(cluster, 0)}", ray, "start", *head, *common)


def _session(cluster: RehearsedCluster, host: int) -> Path:
    return Path(cluster.folder) / str(host)
