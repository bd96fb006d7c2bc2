"""What a machine must have and allow for a rehearsal, and the one way in which its programs are called."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from earl.errors import EarlError
from earl.rehearsal.plan import Command

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
