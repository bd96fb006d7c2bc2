"""The network of a rehearsal, without anything that runs in it."""

import re
from itertools import chain

from earl.errors import EarlError
from earl.rehearsal.needs import call
from earl.rehearsal.plan import NETWORK, Cluster, build


def lay(cluster: Cluster) -> None:
    """Make namespaces, links and their shapes."""
    for command in build(cluster):
        call(command)


def remove(cluster: Cluster) -> None:
    """Take away what there is of it. Processes in its namespaces have to be gone."""
    if f"{cluster.interface}@" in call(("ip", "-br", "link")):
        call(("ip", "link", "delete", cluster.interface))
    present = namespaces()
    for namespace in chain([cluster.switch], map(cluster.namespace, cluster.workers)):
        if namespace in present:
            call(("ip", "netns", "delete", namespace))


def taken(name: str, hosts: int) -> list[str]:
    """What is there already of all that a new network would be called like."""
    wanted = {f"{name}-switch", *(f"{name}-{host}" for host in range(1, hosts + 1))}
    links = [f"{name}0"] if re.search(rf"^{name}0\b", call(("ip", "-br", "link")), re.MULTILINE) else []
    return sorted(wanted & namespaces()) + links


def namespaces() -> set[str]:
    """All named network namespaces of this machine."""
    return {line.split()[0] for line in call(("ip", "netns", "list")).splitlines() if line}


def free_subnet() -> int:
    """The third number of the first network that this machine has no address in."""
    addresses = call(("ip", "-4", "-o", "address"))
    free = [number for number in range(256) if f" {NETWORK}.{number}." not in addresses]
    if not free:
        raise EarlError(f"this machine has addresses in all of {NETWORK}.0.0/16; take a cluster down first")
    return free[0]
