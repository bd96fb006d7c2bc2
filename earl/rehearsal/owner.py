"""Who made something that outlives a process, so that the next start can remove what a dead one left, and nothing else.

A process number alone would be another process's later: with its start time and the machine's boot it is one process.
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
"""Where sessions of Ray lie, whatever TMPDIR says: the path of a Unix socket ends at 107 bytes."""
PATIENCE_SECONDS = 10.0
GRACE_SECONDS = 1.0
"""For what was started by a process that was killed to end by itself."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Owner:
    """A process.

    Example:
        Owner(process=4711, started=812345, boot="5f0c…", space="pid:[4026531836]")
    """

    process: int
    """0: nobody; what it made stays until it is taken away by name."""
    started: int
    """In the kernel's ticks since the boot."""
    boot: str
    space: str
    """Where the process number counts: containers have their own."""

    @classmethod
    def this(cls) -> Self:
        """This process. Where there is no /proc nobody can tell later whether it has ended."""
        if not _BOOT.exists():
            return cls(os.getpid(), 0, "", "")
        return cls(
            os.getpid(), _started(os.getpid()), _BOOT.read_text().strip(), str(Path("/proc/self/ns/pid").readlink())
        )

    @property
    def rebooted(self) -> bool:
        """Whether the machine was started anew since: files may be left, and no process or namespace."""
        return bool(self.boot) and _BOOT.exists() and self.boot != _BOOT.read_text().strip()

    @property
    def gone(self) -> bool:
        """Whether the process has ended for certain."""
        if not self.process or not self.boot or self.rebooted:
            return self.rebooted
        return self.space == Owner.this().space and _started(self.process) != self.started

    def write(self, folder: Path) -> None:
        """Note the owner of a folder."""
        (folder / FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")


def owner_of(folder: Path) -> Owner | None:
    """Whose a folder is; None: this is not noted there."""
    try:
        return Owner(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def session_folder(prefix: str) -> Iterator[Path]:
    """A short-named folder of this process, until the context ends; those that dead ones of this user left go first.

    A process beside this one removes it where this one is killed, and ends what still writes into it.
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
    """Remove the session folders that dead processes of this user left, and end what still has files open there."""
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
    """Processes that have files of a folder open."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if str(path.readlink()).startswith(f"{folder}/"):
                found.add(int(path.parts[2]))
    return found


def _started(process: int) -> int:
    """When a process was started; -1: there is none."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return -1
    fields = stat.rpartition(")")[2].split()
    return -1 if fields[0] in "ZX" else int(fields[19])


if __name__ == "__main__":
    SHORT = Path(sys.argv[2])
    sys.stdin.read()  # returns when the process that started this one has ended, or needs it no longer
    time.sleep(GRACE_SECONDS)
    sweep(sys.argv[1])
