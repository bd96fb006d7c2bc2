"""A cluster comes up, is looked at, and goes down without a trace. What a process left that was killed goes first."""

import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from earl.errors import EarlError
from earl.rehearsal import network, nodes, processes, state
from earl.rehearsal.needs import call, check, check_network
from earl.rehearsal.owner import SHORT, Owner, owner_of
from earl.rehearsal.plan import Cluster, bits_per_second, checked_name

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
    """Bring a cluster up that stays when this process ends. When that fails, or is interrupted, nothing of it stays.

    `say` is told what is done now. Raises EarlError for what the machine does not allow, and when the name is taken.
    """
    with ExitStack() as undo:
        cluster = _begin(Cluster(name, hosts, rate, cpus, memory_mib, 0, _port(), ""), undo, say)
        state.disown(cluster)
        undo.pop_all()
    return cluster


@contextmanager
def rehearsed(name: str, hosts: int, rate: str, cpus: int, memory_mib: int) -> Iterator[Cluster]:
    """A cluster that ends with the context, see `up`."""
    with ExitStack() as undo:
        yield _begin(Cluster(name, hosts, rate, cpus, memory_mib, 0, _port(), ""), undo, lambda _: None)


@contextmanager
def laid(name: str, hosts: int, rate: str) -> Iterator[Cluster]:
    """Hosts without Ray and the links between them, until the context ends. Raises EarlError as `up` does."""
    with ExitStack() as undo:
        yield _lay(Cluster(name, hosts, rate, 0, 0, 0, 0, ""), undo)


def _begin(plan: Cluster, undo: ExitStack, say: Callable[[str], None]) -> Cluster:
    check()
    say(f"network: {plan.hosts} hosts at {plan.rate}")
    cluster = _lay(plan, undo)
    nodes.open_head(cluster)
    say("Ray: head")
    nodes.start(cluster, [0])
    say(f"Ray: {cluster.hosts} hosts")
    nodes.start(cluster, cluster.workers)
    return cluster


def _lay(plan: Cluster, undo: ExitStack) -> Cluster:
    """The network of a plan, whose subnet and folder are chosen here."""
    checked_name(plan.name)
    bits_per_second(plan.rate)
    check_network()
    sweep()
    _free(plan.name, plan.hosts)
    folder = SHORT / f"{plan.name}-{secrets.token_hex(4)}"
    cluster = replace(plan, subnet=network.free_subnet(), folder=str(folder))
    state.remember(cluster)  # before anything is made: what is killed from here on can be found
    undo.callback(_remove, cluster)
    folder.mkdir(mode=0o700)
    network.lay(cluster)
    return cluster


def sweep() -> list[str]:
    """Remove what processes left that have ended without doing so: the names of it."""
    left = [cluster for cluster in state.known() if (owner := _owner(cluster)) and owner.gone]
    for cluster in left:
        _remove(cluster)
    return [cluster.name for cluster in left]


def down(name: str) -> Cluster:
    """Take a cluster down, whatever state it is in; what dead processes left of others goes too.

    Raises EarlError when there is none of that name, or another process is at work with it.
    """
    cluster = state.load(name)
    check_network()
    owner = _owner(cluster)
    if owner and owner.process and not owner.gone:
        raise EarlError(f"cluster {name!r} belongs to process {owner.process}, which is at work; end that process")
    _remove(cluster)
    sweep()
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
    if cluster not in state.known():
        return  # somebody took it down, and its names may be another's by now
    owner = _owner(cluster)
    if not (owner and owner.rebooted):  # then namespaces of these names are somebody else's
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


def _owner(cluster: Cluster) -> Owner | None:
    return owner_of(state.folder(cluster.name))


def _free(name: str, hosts: int) -> None:
    """Raises EarlError when something is there already that a new cluster would be called like."""
    if state.folder(name).exists():
        owner = owner_of(state.folder(name))
        if owner and owner.process:
            raise EarlError(f"cluster {name!r} is in use by process {owner.process}; wait until that has ended")
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
