"""Records which process owns a resource that outlives it, so that only leftovers of dead processes are removed.

Process ids are reused; together with start time and boot id they identify one process. Run as a program, this file
waits for the end of its parent and removes the parent's session folder.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

FILE = "owner.json"
SHORT = Path("/tmp")
"""Holds Ray's sessions, regardless of TMPDIR: the path of a Unix socket is limited to 107 bytes."""
PATIENCE_SECONDS = 10.0
GRACE_SECONDS = 1.0
"""Time for children of a killed process to end by themselves."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, identified by more than its number."""

    process: int
    """0: no owner; the resource stays until it is removed by name."""
    started: int
    boot: str
    space: str
    """The PID namespace; containers have their own."""

    @classmethod
    def this(cls) -> Self:
        """This process. Without /proc its end cannot be detected later."""
        if not _BOOT.exists():
            return cls(os.getpid(), 0, "", "")
        return cls(
            os.getpid(), _started(os.getpid()), _BOOT.read_text().strip(), str(Path("/proc/self/ns/pid").readlink())
        )

    @property
    def rebooted(self) -> bool:
        """Whether the machine has rebooted since: files may be left, but no processes or namespaces."""
        return bool(self.boot) and _BOOT.exists() and self.boot != _BOOT.read_text().strip()

    @property
    def gone(self) -> bool:
        if not self.process or not self.boot or self.rebooted:
            return self.rebooted
        return self.space == Owner.this().space and _started(self.process) != self.started

    def write(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")


def owner_of(folder: Path) -> Owner | None:
    try:
        return Owner(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def session_folder(prefix: str) -> Iterator[Path]:
    """Make a session folder with a short name, removed when the context ends. Leftovers of dead processes go first.

    If this process is killed, a watcher process removes the folder and ends the processes with open files in it.
    """
    sweep(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=SHORT))
    Owner.this().write(folder)
    command = [sys.executable, "-m", "earl.rehearsal.owner", prefix, str(SHORT)]
    beside = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, env=beside, start_new_session=True) as watcher:
        try:
            yield folder
        finally:
            _remove(folder)
            watcher.kill()


def sweep(prefix: str) -> None:
    """Remove session folders of this user's dead processes, and kill processes that still have files open there."""
    for folder in SHORT.glob(f"{prefix}*"):
        own = not folder.is_symlink() and folder.is_dir() and folder.stat().st_uid == os.geteuid()
        if own and (owner := owner_of(folder)) and owner.gone:
            _remove(folder)


def _remove(folder: Path) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while folder.exists() and time.monotonic() < end:
        for process in _writers(folder) - {os.getpid()}:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _writers(folder: Path) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if str(path.readlink()).startswith(f"{folder}/"):
                found.add(int(path.parts[2]))
    return found


def state_of(process: int) -> list[str]:
    """What /proc tells of a process after its name: its state, such as R, and more; empty if there is none."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _started(process: int) -> int:
    fields = state_of(process)
    return int(fields[19]) if fields and fields[0] not in "ZX" else -1


if __name__ == "__main__":
    SHORT = Path(sys.argv[2])
    sys.stdin.read()  # returns when the parent has ended or no longer needs this process
    time.sleep(GRACE_SECONDS)
    sweep(sys.argv[1])
