"""The processes of a host, known by the namespace that they are in: no name is matched, nobody else's is met."""

import os
import signal
import time
from pathlib import Path

from earl.errors import EarlError

PATIENCE_SECONDS = 30.0


def inside(namespace: Path) -> list[int]:
    """Process ids in a namespace, given by the file that it is bound to; none when it is bound to none."""
    found = _identity(namespace)
    if found is None:
        return []
    kinds = ("net", "uts")
    own = {_identity(Path("/proc/self/ns") / kind) for kind in kinds}
    assert found not in own, f"{namespace} is the namespace of this very process"
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [number for number in numbers if found in {_identity(Path(f"/proc/{number}/ns/{kind}")) for kind in kinds}]


def send(namespace: Path, number: signal.Signals) -> int:
    """Send a signal to every process in a namespace; says to how many."""
    members = inside(namespace)
    for member in members:
        _send(member, number)
    return len(members)


def kill(namespace: Path) -> None:
    """Kill what is in a namespace, until nothing is. Raises EarlError when something cannot be killed."""
    end = time.monotonic() + PATIENCE_SECONDS
    while send(namespace, signal.SIGKILL):
        if time.monotonic() > end:
            raise EarlError(f"processes {inside(namespace)} in {namespace} cannot be killed; see what they wait for")
        time.sleep(0.05)


def stopped(process: int) -> bool:
    """Whether a process is frozen by a signal."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"


def _send(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return  # it ended by itself


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode behind a path: the same for all ways to one namespace."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
