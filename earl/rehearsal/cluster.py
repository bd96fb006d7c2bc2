"""Starts, inspects and removes a rehearsed cluster, and injects faults into its hosts."""

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from earl.errors import EarlError
from earl.rehearsal import plan
from earl.rehearsal.owner import SHORT, owner_of, state_of
from earl.rehearsal.plan import Command, RehearsedCluster, call, check, check_network


def namespaces() -> set[str]:
    return {line.split()[0] for line in call(("ip", "netns", "list")).splitlines() if line}


def free_subnet() -> int:
    """The third number of the first subnet in which this machine has no address."""
    addresses = call(("ip", "-4", "-o", "address"))
    free = [number for number in range(256) if f" {plan.NETWORK}.{number}." not in addresses]
    if not free:
        raise EarlError(f"this machine has addresses in all of {plan.NETWORK}.0.0/16; take a cluster down first")
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
    return state_of(process)[:1] == ["T"]


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


def namespace_path(cluster: RehearsedCluster, host: int) -> Path:
    return Path(cluster.folder) / "head" if host == 0 else Path("/run/netns") / cluster.namespace(host)


def start(cluster: RehearsedCluster, hosts: Iterable[int]) -> None:
    """Start the Ray nodes of some hosts in parallel. Raises EarlError with Ray's message if one does not start."""
    begun = {host: _begin_node(cluster, host) for host in hosts}
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
    kill(namespace_path(cluster, host))
    shutil.rmtree(_session(cluster, host), ignore_errors=True)  # there is none if Ray never started


def joined_hosts(cluster: RehearsedCluster) -> set[int]:
    """The hosts that Ray's head considers alive now. Empty if the head does not answer."""
    variables = {**os.environ, **plan.environment(cluster, 0), "RAY_ADDRESS": cluster.address, **IMPATIENT}
    done = subprocess.run((sys.executable, "-c", _WHO_IS_ALIVE), capture_output=True, text=True, env=variables)
    alive = done.stdout.split()
    return {host for host in cluster.workers if cluster.ip(host) in alive}


def _begin_node(cluster: RehearsedCluster, host: int) -> subprocess.Popen[bytes]:
    """Start a node's program in its own session: Ctrl-C is for the driver, not for the nodes."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    variables = {**inherited, **HEALTH, **plan.environment(cluster, host), "RAY_USAGE_STATS_ENABLED": "0"}
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
    return ("nsenter", f"--uts={namespace_path(cluster, 0)}", ray, "start", *head, *common)


def _session(cluster: RehearsedCluster, host: int) -> Path:
    return Path(cluster.folder) / str(host)


def fail(cluster: RehearsedCluster, host: int, how: str) -> None:
    """Inject a fault into a host; `how` is one of `FAULTS`. Raises EarlError if there is no such host."""
    check()
    if host not in cluster.workers:
        raise EarlError(f"cluster {cluster.name!r} has no host {host}; its hosts are 1 to {cluster.hosts}")
    FAULTS[how](cluster, host)


def heal(cluster: RehearsedCluster, host: int) -> None:
    """Restart a host: its link is up, its old processes are gone, and a fresh Ray node has joined."""
    fail(cluster, host, "link-up")
    stop(cluster, host)
    start(cluster, [host])


FAULTS: Mapping[str, Callable[[RehearsedCluster, int], object]] = {
    "kill": lambda cluster, host: kill(namespace_path(cluster, host)),
    "link-down": lambda cluster, host: call(plan.link(cluster, host, up=False)),
    "link-up": lambda cluster, host: call(plan.link(cluster, host, up=True)),
    "freeze": lambda cluster, host: send(namespace_path(cluster, host), signal.SIGSTOP),
    "thaw": lambda cluster, host: send(namespace_path(cluster, host), signal.SIGCONT),
}
"""Fault -> function. `kill`: every process of the host ends at once, as at a power loss. `link-down`: no packet gets in
or out. `freeze`: every process stops while the link stays up. `link-up` and `thaw` undo these two.
"""


RAY_PORT = 6379


@dataclass(frozen=True, slots=True)
class HostState:
    host: int
    address: str
    link: str
    """up, down, or none after a reboot of the machine"""
    processes: str
    in_ray: bool
    """Whether Ray's head considers the host alive."""


def up(name: str, hosts: int, rate: str, cpus: int, memory_mib: int, say: Callable[[str], None]) -> RehearsedCluster:
    """Start a cluster that outlives this process; after a failure or interruption everything is removed again.

    Raises EarlError if the machine does not allow it, and if the name is taken.
    """
    with rehearsed(name, hosts, rate, cpus, memory_mib, say) as cluster:
        plan.disown(cluster)
    return cluster


@contextmanager
def rehearsed(
    name: str, hosts: int, rate: str, cpus: int, memory_mib: int, say: Callable[[str], None] = lambda _: None
) -> Iterator[RehearsedCluster]:
    check()
    say(f"network: {hosts} hosts at {rate}")
    with laid(name, hosts, rate, cpus, memory_mib, _port()) as cluster:
        say("Ray: head")
        head = namespace_path(cluster, 0)
        head.touch()
        call(("unshare", f"--uts={head}", "true"))
        start(cluster, [0])
        say(f"Ray: {hosts} hosts")
        start(cluster, cluster.workers)
        yield cluster


@contextmanager
def laid(
    name: str, hosts: int, rate: str, cpus: int = 0, memory_mib: int = 0, port: int = 0
) -> Iterator[RehearsedCluster]:
    """Hosts and links without Ray, until the context ends, or for longer if they were disowned in it. Raises EarlError
    as `up` does."""
    plan.checked_name(name)
    plan.bits_per_second(rate)
    check_network()
    sweep()
    _free(name, hosts)
    folder = SHORT / f"{name}-{secrets.token_hex(4)}"
    cluster = RehearsedCluster(name, hosts, rate, cpus, memory_mib, free_subnet(), port, str(folder))
    plan.remember(cluster)  # first of all: from here on the leftovers of a kill can be found
    try:
        folder.mkdir(mode=0o700)
        for command in plan.build(cluster):
            call(command)
        yield cluster
    finally:
        owner = owner_of(plan.folder(name))
        if owner is None or owner.process:
            _remove(cluster)


def sweep() -> list[str]:
    """Remove the clusters of processes that ended without removing them; return their names."""
    left = [cluster for cluster in plan.known() if (owner := owner_of(plan.folder(cluster.name))) and owner.gone]
    for cluster in left:
        _remove(cluster)
    return [cluster.name for cluster in left]


def down(name: str) -> RehearsedCluster:
    """Remove a cluster in whatever state it is. Raises EarlError if there is none, or another live process owns it."""
    cluster = plan.load(name)
    check_network()
    owner = owner_of(plan.folder(name))
    if owner and owner.process and not owner.gone:
        raise EarlError(f"cluster {name!r} belongs to process {owner.process}, which is at work; end that process")
    _remove(cluster)
    sweep()
    return cluster


def status(cluster: RehearsedCluster) -> list[HostState]:
    check()
    joined = joined_hosts(cluster)
    present = namespaces()
    states = []
    for host in cluster.workers:
        namespace, members = cluster.namespace(host), inside(namespace_path(cluster, host))
        shown = ("ip", "-br", "-n", namespace, "link", "show", cluster.interface)
        up_or_down = call(shown).split()[1].lower() if namespace in present else "none"
        kind = "running" if members else "none"
        if members and all(map(stopped, members)):
            kind = "frozen"
        states.append(HostState(host, cluster.ip(host), up_or_down, kind, host in joined))
    return states


def _remove(cluster: RehearsedCluster) -> None:
    """Remove whatever exists of a cluster, in this order: processes, network, sessions, state."""
    if cluster not in plan.known():
        return  # it was removed in the meantime, and its names may have been reused
    owner = owner_of(plan.folder(cluster.name))
    if not (owner and owner.rebooted):  # else namespaces with these names are not this cluster's
        for host in range(cluster.hosts + 1):
            stop(cluster, host)
        if f"{cluster.interface}@" in call(("ip", "-br", "link")):
            call(("ip", "link", "delete", cluster.interface))
        for namespace in namespaces() & {cluster.switch, *map(cluster.namespace, cluster.workers)}:
            call(("ip", "netns", "delete", namespace))
    head = namespace_path(cluster, 0)
    if head.parent.is_dir():
        if head.exists() and head.stat().st_dev != head.parent.stat().st_dev:  # a namespace is bound to it
            call(("umount", str(head)))
        shutil.rmtree(head.parent)
    plan.forget(cluster)


def _free(name: str, hosts: int) -> None:
    """Raises EarlError if a name that a new cluster needs is taken."""
    if plan.folder(name).exists():
        owner = owner_of(plan.folder(name))
        if owner and owner.process:
            raise EarlError(f"cluster {name!r} is in use by process {owner.process}; wait until that has ended")
        raise EarlError(f"cluster {name!r} is up already; take it down with: earl cluster down --name {name}")
    taken = namespaces() & {f"{name}-switch", *(f"{name}-{host}" for host in range(1, hosts + 1))}
    if re.search(rf"^{name}0\b", call(("ip", "-br", "link")), re.MULTILINE):
        taken.add(f"{name}0")
    if taken:
        raise EarlError(
            f"{', '.join(sorted(taken))}: network namespaces or interfaces of other origin; choose another --name"
        )


def _port() -> int:
    for port in (RAY_PORT, 0):
        with socket.socket() as listener, suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an old head's socket may linger
            listener.bind(("", port))
            return int(listener.getsockname()[1])
    raise EarlError("no TCP port is free on this machine; end what holds them")
