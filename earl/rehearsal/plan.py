"""The plan of a rehearsed cluster: names, the commands that build its network, and a check of what the machine allows.

    driver, Ray's head ── NAME0 ═══ port0 ┐ in namespace NAME-switch
                                          ├ bridge ┬ port1 ═══ NAME0 ── Ray node, resource host-1, in namespace NAME-1
                                                   └ port2 ═══ NAME0 ── Ray node, resource host-2, in namespace NAME-2

Every ═══ is a veth pair with a token bucket on both ends, also on the driver's link. The bridge has its own namespace,
so that no firewall rule of the machine applies to its traffic.
"""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from pydantic import TypeAdapter

from earl.documents import parse_json_object
from earl.errors import EarlError
from earl.rehearsal.owner import Owner

Command = tuple[str, ...]

NETWORK = "10.201"
"""The first half of every address; each cluster has its own third number."""
MOST_HOSTS = 64
_NAME = re.compile(r"[a-z][a-z0-9]{0,7}")
_RATE = re.compile(r"([1-9][0-9]{0,5})(kbit|mbit|gbit)")
_BITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_BURST_SECONDS = 1 / 250
_LEAST_BURST_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class RehearsedCluster:
    """A rehearsed cluster. Host 0 is the machine itself, with driver and Ray's head; hosts 1 … `hosts` are workers."""

    name: str
    """Name of the cluster; also the prefix of its namespaces and interfaces."""
    hosts: int
    rate: str
    """Of every link, in each direction, as `tc` writes it: 500mbit."""
    cpus: int
    """Task slots of a host, as Ray counts them: may exceed the number of cores."""
    memory_mib: int
    subnet: int
    port: int
    """Of Ray's head; 0: hosts without Ray."""
    folder: str
    """Holds Ray's sessions; short, because the path of a Unix socket is limited to 107 bytes."""

    @property
    def interface(self) -> str:
        """The network interface, the same in every namespace; gloo and NCCL are configured with it."""
        return f"{self.name}0"

    @property
    def switch(self) -> str:
        return f"{self.name}-switch"

    @property
    def address(self) -> str:
        return f"{self.ip(0)}:{self.port}"

    @property
    def workers(self) -> range:
        return range(1, self.hosts + 1)

    def namespace(self, host: int) -> str:
        return f"{self.name}-{host}"

    def ip(self, host: int) -> str:
        return f"{NETWORK}.{self.subnet}.{host + 1}"


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise EarlError(f"a cluster cannot be called {name!r}; take up to 8 small letters and digits, such as 'earl'")
    return name


def bits_per_second(rate: str) -> int:
    """Parse a rate such as 500mbit. Raises EarlError if it is invalid."""
    match = _RATE.fullmatch(rate)
    if match is None:
        raise EarlError(f"{rate!r} is no rate; write a whole number and kbit, mbit or gbit, such as 500mbit")
    return int(match[1]) * _BITS[match[2]]


def build(cluster: RehearsedCluster) -> list[Command]:
    """The commands of network.txt. Every link has a token bucket with a burst of 4 ms."""
    burst = max(_LEAST_BURST_BYTES, int(bits_per_second(cluster.rate) / 8 * _BURST_SECONDS))
    commands = _commands("bridge", switch=cluster.switch)
    for host in range(cluster.hosts + 1):
        namespace = cluster.namespace(host)
        commands += _commands("host", namespace=namespace) if host else []
        names = {"interface": cluster.interface, "port": f"port{host}", "switch": cluster.switch}
        inside = f"-n {namespace}" if host else ""
        commands += _commands("link", **names, inside=inside, address=cluster.ip(host), rate=cluster.rate, burst=burst)
    return commands


def _commands(part: str, **values: object) -> list[Command]:
    text = files(__package__).joinpath("network.txt").read_text(encoding="utf-8")
    lines = text.partition(f"[{part}]\n")[2].partition("\n[")[0].splitlines()
    return [tuple(line.format(**values).split()) for line in lines if not line.startswith("#")]


def link(cluster: RehearsedCluster, host: int, up: bool) -> Command:
    return ("ip", "-n", cluster.namespace(host), "link", "set", cluster.interface, "up" if up else "down")


PROGRAMS = ("ip", "tc", "unshare", "nsenter", "umount", "sysctl")
PACKAGES = "iproute2 mount procps util-linux"
"""Of Debian, that hold these programs."""
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_STATUS = Path("/proc/self/status")


def check() -> None:
    check_network()
    if find_spec("ray") is None:
        raise EarlError("Ray is not installed; install it with: pip install 'earl[ray]'")


def check_network() -> None:
    """As `check`, for hosts without Ray."""
    if not _STATUS.exists():
        raise EarlError(
            f"a rehearsal is made of Linux's network namespaces, and this is {sys.platform}; run it on Linux"
        )
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise EarlError(f"not installed: {', '.join(missing)}; on Debian they come with: apt-get install {PACKAGES}")
    effective = int(_STATUS.read_text().partition("CapEff:")[2].split()[0], 16)
    lacking = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    if lacking:
        raise EarlError(
            f"not permitted: network namespaces need {' and '.join(lacking)}; run it as root, "
            "in Docker with --privileged"
        )


def call(command: Command) -> str:
    """Run a program and return its output. Raises EarlError with its message if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise EarlError(f"`{' '.join(command)}` failed: {said or f'exit code {done.returncode}'}")
    return done.stdout


def attach(address: str) -> Mapping[str, str]:
    """The environment variables with which a driver joins the cluster at `address`; none if it is not a rehearsal.

    `auto` is the rehearsal that is up, unless `RAY_ADDRESS` names another cluster. Ray reads the variables when it is
    imported, so set them before. Raises EarlError if `auto` is ambiguous.
    """
    clusters = {cluster.address: cluster for cluster in known() if cluster.port}
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
        if not address and len(clusters) > 1:
            raise EarlError(f"--address auto could be any of {len(clusters)} rehearsals; name {' or '.join(clusters)}")
        address = address or next(iter(clusters), "")
    cluster = clusters.get(address)
    return {"RAY_ADDRESS": address, **environment(cluster, 0)} if cluster else {}


def environment(cluster: RehearsedCluster, host: int) -> dict[str, str]:
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_free_objects_batch_size": "1",  # delete at once
        "RAY_AUTH_TOKEN_PATH": str(folder(cluster.name) / "token"),
        "GLOO_SOCKET_IFNAME": cluster.interface,
        "NCCL_SOCKET_IFNAME": cluster.interface,
        "VLLM_HOST_IP": cluster.ip(host),
    }


def root() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "earl" / "clusters"


def folder(name: str) -> Path:
    return root() / name


def known() -> list[RehearsedCluster]:
    return [load(path.parent.name) for path in sorted(root().glob("[a-z]*/cluster.json"))]


def load(name: str) -> RehearsedCluster:
    """Load a cluster that is up. Raises EarlError if there is none of that name."""
    file = folder(name) / "cluster.json"
    if not file.is_file():
        raise EarlError(f"no cluster {name!r} is up; start it with: earl cluster up --name {name}")
    try:
        return TypeAdapter(RehearsedCluster).validate_python(parse_json_object(file.read_bytes()))
    except (ValueError, TypeError) as error:
        raise EarlError(f"{file} is not what earl wrote ({error}); remove the folder {file.parent}") from error


def remember(cluster: RehearsedCluster) -> None:
    """Write plan, owner (this process) and a fresh token, all or nothing."""
    root().mkdir(parents=True, exist_ok=True)
    begun = Path(tempfile.mkdtemp(prefix=".", dir=root()))  # readable by its owner alone
    descriptor = os.open(begun / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    Owner.this().write(begun)
    (begun / "cluster.json").write_text(json.dumps(asdict(cluster), indent=2), encoding="utf-8")
    begun.rename(folder(cluster.name))


def disown(cluster: RehearsedCluster) -> None:
    """Let a cluster outlive this process."""
    replace(Owner.this(), process=0).write(folder(cluster.name))


def forget(cluster: RehearsedCluster) -> None:
    shutil.rmtree(folder(cluster.name))
