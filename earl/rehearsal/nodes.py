"""One Ray node per host, started by the program `ray` inside the host's namespace.

The head runs on the machine itself, where the driver is. It has no network namespace to be known by, so it gets one for
its host name, which changes nothing for it and holds every process that it starts.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from earl.errors import EarlError
from earl.rehearsal import processes, state
from earl.rehearsal.needs import call, ray
from earl.rehearsal.plan import Cluster, Command

START_SECONDS = 180.0
HEALTH = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "4",
}
"""How fast Ray's head gives up a node: after 4 seconds when it refuses, 16 when it is silent."""
IMPATIENT = {"RAY_NUM_REDIS_GET_RETRIES": "5"}
"""Seconds that Ray waits for a head that is gone, in place of 20."""
_WHO_IS_ALIVE = """
import ray
ray.init(logging_level="error", log_to_driver=False)
print(*[node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]])
"""
"""A driver of one question: `ray status` answers from what the head noted some seconds ago."""


def namespace(cluster: Cluster, host: int) -> Path:
    """The file that the namespace of a host's processes is bound to."""
    return Path(cluster.folder) / "head" if host == 0 else Path("/run/netns") / cluster.namespace(host)


def open_head(cluster: Cluster) -> None:
    """Make the namespace of the head's processes."""
    file = namespace(cluster, 0)
    file.touch()
    call(("unshare", f"--uts={file}", "true"))


def close_head(cluster: Cluster) -> None:
    """Remove it again."""
    file = namespace(cluster, 0)
    if file.exists() and file.stat().st_dev != file.parent.stat().st_dev:  # a namespace is bound to it
        call(("umount", str(file)))


def start(cluster: Cluster, hosts: Iterable[int]) -> None:
    """Start the Ray nodes of some hosts, all at once. Raises EarlError with Ray's own words when one does not come."""
    begun = {host: _begin(cluster, host) for host in hosts}
    for host, process in begun.items():
        try:
            failed = process.wait(START_SECONDS) != 0
        except subprocess.TimeoutExpired:
            failed = True
        if failed:
            raise EarlError(f"Ray on host {host} did not start; {_last(cluster, host)}")


def stop(cluster: Cluster, host: int) -> None:
    """Kill all processes of a host and remove its Ray session."""
    processes.kill(namespace(cluster, host))
    shutil.rmtree(_session(cluster, host), ignore_errors=True)  # there is none where Ray never started


def joined(cluster: Cluster) -> set[int]:
    """The hosts that Ray counts on, as its head sees it now. Empty when the head does not answer."""
    variables = {**os.environ, **state.environment(cluster, 0), "RAY_ADDRESS": cluster.address, **IMPATIENT}
    done = subprocess.run((sys.executable, "-c", _WHO_IS_ALIVE), capture_output=True, text=True, env=variables)
    alive = done.stdout.split()
    return {host for host in cluster.workers if cluster.ip(host) in alive}


def _begin(cluster: Cluster, host: int) -> subprocess.Popen[bytes]:
    """Start the program that starts a node, apart from this terminal: Ctrl-C is for the driver, not for the nodes."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    variables = {**inherited, **HEALTH, **state.environment(cluster, host), "RAY_USAGE_STATS_ENABLED": "0"}
    with _log(cluster, host).open("wb") as log:
        return subprocess.Popen(
            command(cluster, host),
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def command(cluster: Cluster, host: int) -> Command:
    """The command that starts a host's Ray node."""
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
        return (*inside, ray(), "start", "--address", cluster.address, *common)
    head: Command = ("--head", "--port", str(cluster.port), "--include-dashboard", "false")
    return ("nsenter", f"--uts={namespace(cluster, 0)}", ray(), "start", *head, *common)


def _session(cluster: Cluster, host: int) -> Path:
    return Path(cluster.folder) / str(host)


def _log(cluster: Cluster, host: int) -> Path:
    return Path(cluster.folder) / f"start-{host}.txt"


def _last(cluster: Cluster, host: int) -> str:
    """What a node that did not start said last."""
    lines = _log(cluster, host).read_text(errors="replace").strip().splitlines()
    return f"it said: {lines[-1]}" if lines else "it said nothing"
