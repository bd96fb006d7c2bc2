"""The disk under a run: faults as errors a user can mend, and files that appear whole or not at all.

Everything is first written under a hidden temporary name (`.NAME.tmp`) beside its final place, synced, and
renamed. What a killed process leaves is therefore either whole or hidden, and `sweep` removes the hidden.
"""

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from earl.errors import EarlError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_NO_FOLDER = frozenset({errno.ENOTDIR, errno.EEXIST})
_SQLITE = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_IOERR: errno.EIO,  # also what a full tmpfs answers for the shared-memory file
    sqlite3.SQLITE_CORRUPT: errno.EILSEQ,
    sqlite3.SQLITE_NOTADB: errno.EILSEQ,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
}


@contextmanager
def storage(path: Path, then: str = "continue with --resume") -> Iterator[None]:
    """Turn faults of the disk at `path` (full, read-only, refused, damaged database) into EarlError.

    `then` is what the user does once there is space again.
    """
    try:
        yield
    except (OSError, sqlite3.Error, SafetensorError) as error:
        mendable = _mendable(path, _code(error), then)
        if mendable is None:
            raise
        raise mendable from error


def _code(error: Exception) -> int | None:
    """The errno that says the same as the error."""
    if isinstance(error, OSError):
        return error.errno
    if isinstance(error, sqlite3.Error):
        return _SQLITE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)  # the low byte is the kind
    return next((code for code in _FULL if f"os error {code})" in str(error)), None)  # safetensors: only in words


def _mendable(path: Path, code: int | None, then: str) -> EarlError | None:
    """The error with rule and cure for one errno; None for a fault that is not the user's to mend."""
    if code in _FULL:
        return EarlError(f"no space left at {path}: free space, then {then}")
    if code in _REFUSED:
        return EarlError(f"{path} is refused ({os.strerror(code or 0)}): permit it, or choose another folder")
    if code in _NO_FOLDER:
        return EarlError(f"{path} stands where a folder is needed, or below a file: choose another folder")
    if code == errno.ENOENT:
        return EarlError(f"{path} has vanished while it was in use: leave the run's folder alone, then {then}")
    if code == errno.EIO:
        return EarlError(f"the disk failed at {path} (I/O error): check it and free space, then {then}")
    if code == errno.EBUSY:
        return EarlError(f"{path} is locked by another process: wait until it ends, then try again")
    if code == errno.EILSEQ:
        return EarlError(
            f"{path} is damaged, not a readable SQLite database: move it and its -wal and -shm files away "
            f"(the recorded metrics are lost, the checkpoints are not), then {then}"
        )
    return None


def temporary(path: Path) -> Path:
    """The hidden name under which `path` is written before it is renamed."""
    return path.with_name(f".{path.name}.tmp")


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file, then put it in the place of `path` in one stroke.

    Raises EarlError when the disk refuses; `path` is then as it was before.
    """
    partial = temporary(path)
    with storage(path):
        try:
            write(partial)
            sync(partial)
            partial.replace(path)
            sync(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    replace_file(path, lambda partial: void(partial.write_text(text, encoding="utf-8")))


def void(_: object) -> None:
    """Drop a value that a callback must not return."""


def sync(path: Path) -> None:
    """Wait until the file or folder itself is on the disk, so that a rename never outruns its contents."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or folder; a folder first loses its name, so that nobody sees it half removed."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    hidden = path if path.name.startswith(".") else path.rename(path.with_name(f".{path.name}.removed.tmp"))
    shutil.rmtree(hidden)


def sweep(folder: Path) -> None:
    """Remove what a killed process left under temporary names. Only for who holds the run's lock."""
    with storage(folder):
        for leftover in folder.glob(".*.tmp"):
            remove(leftover)


def step_name(step: int) -> str:
    """The name of a step's file or folder: step-000012."""
    return f"step-{step:06d}"


def step_of(path: Path) -> int | None:
    """The step that a name made by `step_name` stands for; None for any other name."""
    head, _, digits = path.name.partition(".")[0].partition("step-")
    return int(digits) if not head and digits.isascii() and digits.isdigit() else None
