"""What a rehearsed cluster looks like, and the commands that build its network. Nothing here touches the machine.

    the machine itself            namespace NAME-switch         namespaces NAME-1 … NAME-N
    driver, Ray's head ── NAME0 ═══ port0 ┐
                                          ├ bridge ┬ port1 ═══ NAME0 ── Ray node, resource host-1
                                                   └ port2 ═══ NAME0 ── Ray node, resource host-2

Every ═══ is a veth pair with a token bucket on both ends. The driver's link is shaped like the others, and the bridge
is in a namespace of its own, so that no rule of the machine's firewall meets what crosses it.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from earl.errors import EarlError

Command = tuple[str, ...]

NETWORK = "10.201"
"""The first half of every address; a cluster has a third number of its own."""
MOST_HOSTS = 64
_NAME = re.compile(r"[a-z][a-z0-9]{0,7}")
_RATE = re.compile(r"([1-9][0-9]{0,5})(kbit|mbit|gbit)")
_BITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_BURST_SECONDS = 1 / 250
_LEAST_BURST_BYTES = 32 * 1024
_PACKET_BYTES = 16 * 1024
"""The most that the kernel hands to a link at once. Larger ones, 64 KiB by default, do not fit a slow link's bucket,
which then cuts them into pieces of 1,500 bytes, and what comes back waits behind them."""
_TCP = ("net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_slow_start_after_idle=0")
"""The same on every machine, whatever its own is: of what namespaces may choose, Reno best fills a link that a flow
comes back to; BBR, which some machines have, takes the rate that it last measured for that of the link."""


@dataclass(frozen=True, slots=True)
class RehearsedCluster:
    """A rehearsed cluster. Host 0 is the machine itself, with the driver and Ray's head; hosts 1 … `hosts` work."""

    name: str
    """Of the cluster; also the beginning of everything that is named after it."""
    hosts: int
    """That work."""
    rate: str
    """Of every link and direction, as `tc` writes it: 500mbit."""
    cpus: int
    """Task slots of a host, as Ray counts them: they may be more than there are cores."""
    memory_mib: int
    """Of each host's object store."""
    subnet: int
    """Third number of the addresses."""
    port: int
    """Of Ray's head; 0: hosts without Ray."""
    folder: str
    """Where Ray's sessions lie; short, because the path of a Unix socket ends at 107 bytes."""

    @property
    def interface(self) -> str:
        """What the network interface is called, in every namespace alike: what gloo and NCCL are told."""
        return f"{self.name}0"

    @property
    def switch(self) -> str:
        """The namespace of the bridge."""
        return f"{self.name}-switch"

    @property
    def address(self) -> str:
        """Of Ray's head: what `--address` takes."""
        return f"{self.ip(0)}:{self.port}"

    @property
    def workers(self) -> range:
        """The numbers of the hosts that work."""
        return range(1, self.hosts + 1)

    def namespace(self, host: int) -> str:
        """Network namespace of a host that works."""
        return f"{self.name}-{host}"

    def ip(self, host: int) -> str:
        """Address of a host."""
        return f"{NETWORK}.{self.subnet}.{host + 1}"


def checked_name(name: str) -> str:
    """The name. Raises EarlError when interfaces and namespaces cannot be called so."""
    if not _NAME.fullmatch(name):
        raise EarlError(f"a cluster cannot be called {name!r}; take up to 8 small letters and digits, such as 'earl'")
    return name


def bits_per_second(rate: str) -> int:
    """A rate in bits per second. Raises EarlError when it is none.

    Example:
        >>> bits_per_second("500mbit")
        500000000
    """
    match = _RATE.fullmatch(rate)
    if match is None:
        raise EarlError(f"{rate!r} is no rate; write a whole number and kbit, mbit or gbit, such as 500mbit")
    return int(match[1]) * _BITS[match[2]]


def build(cluster: RehearsedCluster) -> list[Command]:
    """The commands that lay the network, in order."""
    bridge: list[Command] = [
        ("ip", "netns", "add", cluster.switch),
        ("ip", "-n", cluster.switch, "link", "add", "bridge", "type", "bridge"),
        ("ip", "-n", cluster.switch, "link", "set", "bridge", "up"),
    ]
    hosts = [command for host in cluster.workers for command in _host(cluster, host)]
    return [*bridge, *_link(cluster, 0, inside=()), *hosts]


def _host(cluster: RehearsedCluster, host: int) -> list[Command]:
    namespace = cluster.namespace(host)
    return [
        ("ip", "netns", "add", namespace),
        ("ip", "-n", namespace, "link", "set", "lo", "up"),
        ("ip", "netns", "exec", namespace, "sysctl", "-qw", *_TCP),
        *_link(cluster, host, inside=("-n", namespace)),
    ]


def _link(cluster: RehearsedCluster, host: int, inside: Command) -> list[Command]:
    """A veth pair from the bridge to a host, shaped on both ends. `inside`: options that reach the host's namespace."""
    port, interface, switch = f"port{host}", cluster.interface, ("-n", cluster.switch)
    return [
        ("ip", *inside, "link", "add", interface, "type", "veth", "peer", "name", port, "netns", cluster.switch),
        ("ip", *inside, "address", "add", f"{cluster.ip(host)}/24", "dev", interface),
        ("ip", *inside, "link", "set", interface, "gso_max_size", str(_PACKET_BYTES), "up"),
        ("ip", *switch, "link", "set", port, "master", "bridge", "up"),
        ("tc", *inside, "qdisc", "add", "dev", interface, "root", *_bucket(cluster.rate)),
        ("tc", *switch, "qdisc", "add", "dev", port, "root", *_bucket(cluster.rate)),
    ]


def _bucket(rate: str) -> Command:
    """A token bucket that lets `rate` through on average, and 4 ms of it at once."""
    burst_bytes = max(_LEAST_BURST_BYTES, int(bits_per_second(rate) / 8 * _BURST_SECONDS))
    return ("tbf", "rate", rate, "burst", f"{burst_bytes}b", "latency", "100ms")


def link(cluster: RehearsedCluster, host: int, up: bool) -> Command:
    """The command that takes a host's link up or down."""
    return ("ip", "-n", cluster.namespace(host), "link", "set", cluster.interface, "up" if up else "down")


# What a machine must have and allow for a rehearsal, and the one way in which its programs are called.

PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "umount": "mount",
    "sysctl": "procps",
}
"""Program -> Debian's package of it."""
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_STATUS = Path("/proc/self/status")


def check() -> None:
    """Raises EarlError when a rehearsal cannot be had here, naming what is missing and what mends it."""
    check_network()
    if find_spec("ray") is None:
        raise EarlError("Ray is not installed; install it with: pip install 'earl[ray]'")


def check_network() -> None:
    """The same of hosts that no Ray node runs on."""
    if not _STATUS.exists():
        raise EarlError(
            f"a rehearsal is made of Linux's network namespaces, and this is {sys.platform}; run it on Linux"
        )
    missing = {program: package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        raise EarlError(f"not installed: {', '.join(missing)}; on Debian they come with: apt-get install {packages}")
    lacking = [name for name, bit in _CAPABILITIES.items() if not _effective() >> bit & 1]
    if lacking:
        raise EarlError(
            f"not permitted: network namespaces need {' and '.join(lacking)}; run it as root, "
            "in Docker with --privileged"
        )


def call(command: Command) -> str:
    """Run a program and give its output. Raises EarlError with what it said when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise EarlError(f"`{' '.join(command)}` failed: {said or f'exit code {done.returncode}'}")
    return done.stdout


def ray() -> str:
    """The program `ray` that belongs to this Python."""
    return str(Path(sys.executable).with_name("ray"))


def _effective() -> int:
    """The capabilities of this process, a bit each."""
    [line] = [line for line in _STATUS.read_text().splitlines() if line.startswith("CapEff:")]
    return int(line.split()[1], 16)
