"""A cluster comes up, is looked at, and goes down without a trace."""

import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from earl.errors import EarlError
from earl.rehearsal import network, nodes, processes, state
from earl.rehearsal.needs import call, check
from earl.rehearsal.plan import Cluster, bits_per_second, checked_name

SHORT = Path("/tmp")
"""Where the sessions lie, whatever TMPDIR says: the path of a Unix socket ends at 107 bytes."""
RAY_PORT = 6379


@dataclass(frozen=True, slots=True)
class Host:
    """How a host is."""

    host: int
    address: str
    link: str
    """up or down; none after a restart of the machine"""
    processes: str
    """running, frozen or none"""
    in_ray: bool
    """Whether Ray's head counts on it."""


def up(name: str, hosts: int, rate: str, cpus: int, memory_mib: int, say: Callable[[str], None]) -> Cluster:
    """Bring a cluster up. When that fails, or is interrupted, nothing of it stays.

    `say` is told what is done now. Raises EarlError for what the machine does not allow, and when the name is taken.
    """
    checked_name(name)
    bits_per_second(rate)
    check()
    _free(name, hosts)
    plan = Cluster(name, hosts, rate, cpus, memory_mib, network.free_subnet(), _port(), folder="")
    with ExitStack() as undo:
        cluster = replace(plan, folder=tempfile.mkdtemp(prefix=f"{name}-", dir=SHORT))
        undo.callback(Path(cluster.folder).rmdir)
        state.remember(cluster)
        undo.pop_all()
        undo.callback(_remove, cluster)
        say(f"network: {hosts} hosts at {rate}")
        network.lay(cluster)
        nodes.open_head(cluster)
        say("Ray: head")
        nodes.start(cluster, [0])
        say(f"Ray: {hosts} hosts")
        nodes.start(cluster, cluster.workers)
        undo.pop_all()
    return cluster


def down(name: str) -> Cluster:
    """Take a cluster down, whatever state it is in. Raises EarlError when there is none of that name."""
    cluster = state.load(name)
    check()
    _remove(cluster)
    return cluster


def status(cluster: Cluster) -> list[Host]:
    """How every host is."""
    check()
    joined = nodes.joined(cluster)
    return [_look(cluster, host, host in joined) for host in cluster.workers]


def _look(cluster: Cluster, host: int, in_ray: bool) -> Host:
    members = processes.inside(nodes.namespace(cluster, host))
    frozen = [processes.stopped(member) for member in members]
    kind = "none" if not members else "frozen" if all(frozen) else "running"
    return Host(host, cluster.ip(host), _link(cluster, host), kind, in_ray)


def _link(cluster: Cluster, host: int) -> str:
    if cluster.namespace(host) not in network.namespaces():
        return "none"
    return call(("ip", "-br", "-n", cluster.namespace(host), "link", "show", cluster.interface)).split()[1].lower()


def _remove(cluster: Cluster) -> None:
    """Everything of a cluster, as far as it exists: processes, network, sessions, state, in this order."""
    for host in range(cluster.hosts + 1):
        nodes.stop(cluster, host)
    network.remove(cluster)
    _clear(cluster)
    state.forget(cluster)


def _clear(cluster: Cluster) -> None:
    folder = Path(cluster.folder)
    if folder.is_dir():
        nodes.close_head(cluster)
        shutil.rmtree(folder)


def _free(name: str, hosts: int) -> None:
    """Raises EarlError when something is there already that a new cluster would be called like."""
    if state.folder(name).exists():
        raise EarlError(f"cluster {name!r} is up already; take it down with: earl cluster down --name {name}")
    taken = network.taken(name, hosts)
    if taken:
        raise EarlError(f"{', '.join(taken)}: network namespaces or interfaces of other origin; choose another --name")


def _port() -> int:
    """Ray's usual port for a head, or another that is free."""
    for port in (RAY_PORT, 0):
        with socket.socket() as listener, suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a head that has just gone still counts
            listener.bind(("", port))
            return int(listener.getsockname()[1])
    raise EarlError("no TCP port is free on this machine; end what holds them")
