"""What may happen to a host, and how it comes back: for rehearsals, and for the tests of recovery."""

import signal
from collections.abc import Callable, Mapping
from types import MappingProxyType

from earl.errors import EarlError
from earl.rehearsal import nodes, processes
from earl.rehearsal.needs import call, check
from earl.rehearsal.plan import Cluster, link


def fail(cluster: Cluster, host: int, how: str) -> None:
    """Let a fault befall a host; `how` is one of `FAULTS`. Raises EarlError for a host that there is not."""
    check()
    FAULTS[how](cluster, _worker(cluster, host))


def heal(cluster: Cluster, host: int) -> None:
    """A host as after a restart: its link is up, what ran there is gone, a fresh Ray node has joined."""
    check()
    _link_up(cluster, _worker(cluster, host))
    nodes.stop(cluster, host)
    nodes.start(cluster, [host])


def _kill(cluster: Cluster, host: int) -> None:
    processes.kill(nodes.namespace(cluster, host))


def _freeze(cluster: Cluster, host: int) -> None:
    processes.send(nodes.namespace(cluster, host), signal.SIGSTOP)


def _thaw(cluster: Cluster, host: int) -> None:
    processes.send(nodes.namespace(cluster, host), signal.SIGCONT)


def _link_down(cluster: Cluster, host: int) -> None:
    call(link(cluster, host, up=False))


def _link_up(cluster: Cluster, host: int) -> None:
    call(link(cluster, host, up=True))


FAULTS: Mapping[str, Callable[[Cluster, int], None]] = MappingProxyType(
    {"kill": _kill, "link-down": _link_down, "link-up": _link_up, "freeze": _freeze, "thaw": _thaw}
)
"""Name -> what it does. `kill`: every process of the host is gone at once, as when it loses power. `link-down`: nothing
gets in or out. `freeze`: every process stands still while the link stays up. `link-up` and `thaw` undo these two."""


def _worker(cluster: Cluster, host: int) -> int:
    if host not in cluster.workers:
        raise EarlError(f"cluster {cluster.name!r} has no host {host}; its hosts are 1 to {cluster.hosts}")
    return host
