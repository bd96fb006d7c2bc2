"""Starts, inspects and removes a rehearsed cluster, and injects faults into its hosts."""

import re
import secrets
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

from earl.errors import EarlError
from earl.rehearsal import nodes, state
from earl.rehearsal.owner import SHORT, owner_of
from earl.rehearsal.plan import RehearsedCluster, bits_per_second, build, call, check, check_network, checked_name, link


def fail(cluster: RehearsedCluster, host: int, how: str) -> None:
    """Inject a fault into a host; `how` is one of `FAULTS`. Raises EarlError if there is no such host."""
    check()
    if host not in cluster.workers:
        raise EarlError(f"cluster {cluster.name!r} has no host {host}; its hosts are 1 to {cluster.hosts}")
    FAULTS[how](cluster, host)


def heal(cluster: RehearsedCluster, host: int) -> None:
    """Restart a host: its link is up, its old processes are gone, and a fresh Ray node has joined."""
    fail(cluster, host, "link-up")
    nodes.stop(cluster, host)
    nodes.start(cluster, [host])


FAULTS: Mapping[str, Callable[[RehearsedCluster, int], object]] = {
    "kill": lambda cluster, host: nodes.kill(nodes.namespace(cluster, host)),
    "link-down": lambda cluster, host: call(link(cluster, host, up=False)),
    "link-up": lambda cluster, host: call(link(cluster, host, up=True)),
    "freeze": lambda cluster, host: nodes.send(nodes.namespace(cluster, host), signal.SIGSTOP),
    "thaw": lambda cluster, host: nodes.send(nodes.namespace(cluster, host), signal.SIGCONT),
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
    with ExitStack() as undo:
        cluster = _begin(RehearsedCluster(name, hosts, rate, cpus, memory_mib, 0, _port(), ""), undo, say)
        state.disown(cluster)
        undo.pop_all()
    return cluster


@contextmanager
def rehearsed(name: str, hosts: int, rate: str, cpus: int, memory_mib: int) -> Iterator[RehearsedCluster]:
    with ExitStack() as undo:
        yield _begin(RehearsedCluster(name, hosts, rate, cpus, memory_mib, 0, _port(), ""), undo, lambda _: None)


@contextmanager
def laid(name: str, hosts: int, rate: str) -> Iterator[RehearsedCluster]:
    """Hosts and links without Ray, until the context ends. Raises EarlError as `up` does."""
    with ExitStack() as undo:
        yield _lay(RehearsedCluster(name, hosts, rate, 0, 0, 0, 0, ""), undo)


def _begin(plan: RehearsedCluster, undo: ExitStack, say: Callable[[str], None]) -> RehearsedCluster:
    check()
    say(f"network: {plan.hosts} hosts at {plan.rate}")
    cluster = _lay(plan, undo)
    say("Ray: head")
    head = nodes.namespace(cluster, 0)
    head.touch()
    call(("unshare", f"--uts={head}", "true"))
    nodes.start(cluster, [0])
    say(f"Ray: {cluster.hosts} hosts")
    nodes.start(cluster, cluster.workers)
    return cluster


def _lay(plan: RehearsedCluster, undo: ExitStack) -> RehearsedCluster:
    checked_name(plan.name)
    bits_per_second(plan.rate)
    check_network()
    sweep()
    _free(plan.name, plan.hosts)
    folder = SHORT / f"{plan.name}-{secrets.token_hex(4)}"
    cluster = replace(plan, subnet=nodes.free_subnet(), folder=str(folder))
    state.remember(cluster)  # first of all: from here on the leftovers of a kill can be found
    undo.callback(_remove, cluster)
    folder.mkdir(mode=0o700)
    for command in build(cluster):
        call(command)
    return cluster


def sweep() -> list[str]:
    """Remove the clusters of processes that ended without removing them; return their names."""
    left = [cluster for cluster in state.known() if (owner := owner_of(state.folder(cluster.name))) and owner.gone]
    for cluster in left:
        _remove(cluster)
    return [cluster.name for cluster in left]


def down(name: str) -> RehearsedCluster:
    """Remove a cluster in whatever state it is. Raises EarlError if there is none, or another live process owns it."""
    cluster = state.load(name)
    check_network()
    owner = owner_of(state.folder(name))
    if owner and owner.process and not owner.gone:
        raise EarlError(f"cluster {name!r} belongs to process {owner.process}, which is at work; end that process")
    _remove(cluster)
    sweep()
    return cluster


def status(cluster: RehearsedCluster) -> list[HostState]:
    check()
    joined = nodes.joined(cluster)
    present = nodes.namespaces()
    states = []
    for host in cluster.workers:
        namespace, members = cluster.namespace(host), nodes.inside(nodes.namespace(cluster, host))
        shown = ("ip", "-br", "-n", namespace, "link", "show", cluster.interface)
        up_or_down = call(shown).split()[1].lower() if namespace in present else "none"
        kind = "running" if members else "none"
        if members and all(map(nodes.stopped, members)):
            kind = "frozen"
        states.append(HostState(host, cluster.ip(host), up_or_down, kind, host in joined))
    return states


def _remove(cluster: RehearsedCluster) -> None:
    """Remove whatever exists of a cluster, in this order: processes, network, sessions, state."""
    if cluster not in state.known():
        return  # it was removed in the meantime, and its names may have been reused
    owner = owner_of(state.folder(cluster.name))
    if not (owner and owner.rebooted):  # else namespaces with these names are not this cluster's
        for host in range(cluster.hosts + 1):
            nodes.stop(cluster, host)
        if f"{cluster.interface}@" in call(("ip", "-br", "link")):
            call(("ip", "link", "delete", cluster.interface))
        for namespace in nodes.namespaces() & {cluster.switch, *map(cluster.namespace, cluster.workers)}:
            call(("ip", "netns", "delete", namespace))
    head = nodes.namespace(cluster, 0)
    if head.parent.is_dir():
        if head.exists() and head.stat().st_dev != head.parent.stat().st_dev:  # a namespace is bound to it
            call(("umount", str(head)))
        shutil.rmtree(head.parent)
    state.forget(cluster)


def _free(name: str, hosts: int) -> None:
    """Raises EarlError if a name that a new cluster needs is taken."""
    if state.folder(name).exists():
        owner = owner_of(state.folder(name))
        if owner and owner.process:
            raise EarlError(f"cluster {name!r} is in use by process {owner.process}; wait until that has ended")
        raise EarlError(f"cluster {name!r} is up already; take it down with: earl cluster down --name {name}")
    taken = nodes.namespaces() & {f"{name}-switch", *(f"{name}-{host}" for host in range(1, hosts + 1))}
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
