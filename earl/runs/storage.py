"""Disk access of a run: disk faults as EarlError, atomic writes, and no link followed inside the run's folder.

Files are written under a hidden, random name (`.0123456789abcdef.tmp`), synced, and renamed; so what a killed process
leaves is whole or hidden, and `sweep` removes the hidden. A run may come from an untrusted source: links are allowed on
the way to its folder; below it every folder is opened from its parent, and no folder or file may be a link:
    folder_below ─▶ open_below ─▶ opened, read_below by descriptor; `checked` for libraries that take a path
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from earl.errors import EarlError

_NO_FILE = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})
"""Errors of opening a link (without following it), a socket or FIFO, or a folder for writing."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: opening a FIFO does not wait for the other end
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
_ERRNO_IN_WORDS = re.compile(r"\(os error ([0-9]+)\)|: Input/output error \(([0-9]+)\)$")
"""How Rust libraries (safetensors, tokenizers) and torch name an errno."""
MOST_BYTES = 32 << 20  # of a file that is read whole: recipes, states, descriptions, locks
RESUME = "continue with --resume"
DAMAGED = (
    "{path} is damaged, not a {what}: move it and its -wal and -shm files away "
    "(the recorded metrics are lost, the checkpoints are not), then {then}"
)
_MENDABLE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "no space left at {path}: free space, then {then}"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "{path} is refused ({why}): permit it, or move the run"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "{path} stands where a folder is needed: choose another folder"),
    **dict.fromkeys(_NO_FILE, "{path} stands where a file is needed: move it away, or choose another place"),
    errno.ENOENT: "{path} has vanished while it was in use: leave the run's folder alone, then {then}",
    errno.EIO: "the disk failed at {path} (I/O error): check it and free space, then {then}",
    errno.EBUSY: "{path} is locked by another process: wait until it ends, then try again",
    errno.EILSEQ: DAMAGED.replace("{what}", "readable SQLite database"),
}
"""What is wrong and its cure, for the faults that a user can mend."""
_SQLITE = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_IOERR: errno.EIO,  # also what a full tmpfs returns for the shared-memory file
    sqlite3.SQLITE_CORRUPT: errno.EILSEQ,
    sqlite3.SQLITE_NOTADB: errno.EILSEQ,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
}


@contextmanager
def storage(path: Path, then: str = RESUME) -> Iterator[None]:
    """Turn faults of the disk at `path` (full, read-only, refused, damaged database) into EarlError.
    `then` is what the user does once the fault is fixed."""
    try:
        yield
    except Exception as error:  # tokenizers raises bare Exceptions
        code = _errno_of(error)
        if code not in _MENDABLE:
            raise
        raise EarlError(_MENDABLE[code].format(path=path, then=then, why=os.strerror(code))) from error


def _errno_of(error: Exception) -> int:
    """The errno of a fault of the disk; 0 for any other error."""
    if isinstance(error, OSError):  # safetensors leaves the number out
        return errno.ENOENT if isinstance(error, FileNotFoundError) else error.errno or 0
    if isinstance(error, sqlite3.Error):
        return _SQLITE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, 0)  # the low byte is the kind
    in_words = None if isinstance(error, EarlError) else _ERRNO_IN_WORDS.search(str(error))
    return int(in_words[1] or in_words[2]) if in_words else 0


class OddFile(EarlError):
    """A link, a FIFO or the like where a run has a file or folder of its own."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"{path} is {what}: below a run's folder earl opens plain files and folders only, each with one name where "
            "it is written; look where it came from, then put a copy of what belongs there in its place, or remove it"
        )


@contextmanager
def folder_below(root: Path, path: Path) -> Iterator[int]:
    """The descriptor of `root`, or of a folder below it. Raises OddFile where a folder on the way is a link or no
    folder."""
    descriptor = os.open(root, _FOLDER)
    try:
        for name in path.relative_to(root).parts:
            try:
                inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    raise OddFile(path, "a link or no folder, or lies below such") from error
                raise _with_whole_path(error, path) from None
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def open_below(root: Path, path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file below `root` without following links; for writing, only a file with one hard link.
    Raises OddFile for anything else, without blocking."""
    with folder_below(root, path.parent) as folder:
        try:
            descriptor = os.open(path.name, flags | _FILE, 0o666, dir_fd=folder)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise OddFile(path, "no plain file") from error
            raise _with_whole_path(error, path) from None
    try:
        _check(os.fstat(descriptor), path, single=bool(flags & (os.O_WRONLY | os.O_RDWR)))
    except OddFile:
        os.close(descriptor)
        raise
    return descriptor


def opened(root: Path, path: Path) -> BufferedReader:
    return os.fdopen(open_below(root, path), "rb")


def read_below(root: Path, path: Path) -> bytes:
    """Read a file below `root` whole. Raises OddFile for more than `MOST_BYTES`."""
    with opened(root, path) as file, storage(path):
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OddFile(path, f"a file of more than {MOST_BYTES >> 20} MiB, though it is read whole")
    return data


def checked(root: Path, path: Path, single: bool = False) -> Path:
    """Check that `path` is a plain file below `root`, or missing; for libraries that take no descriptor.

    `single` refuses a file with more than one hard link, for files that are written in place. The file is not opened:
    closing a database would drop the locks that this process has on it.
    """
    with folder_below(root, path.parent) as folder, suppress(FileNotFoundError):
        _check(os.stat(path.name, dir_fd=folder, follow_symlinks=False), path, single)
    return path


def checked_database(path: Path, read_only: bool = False) -> Path:
    """Check the SQLite database of a run and the files beside it."""
    checked(path.parent, path, single=not read_only)
    for end in ("wal", "shm", "journal"):  # readers write these as well
        checked(path.parent, path.with_name(f"{path.name}-{end}"), single=True)
    return path


def _check(status: os.stat_result, path: Path, single: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OddFile(path, "no plain file")
    if single and status.st_nlink > 1:
        raise OddFile(path, f"a file with {status.st_nlink} names (hard links)")


def _with_whole_path(error: OSError, path: Path) -> OSError:
    """The error with the whole path: calls by descriptor name only its last part."""
    return OSError(error.errno, error.strerror, str(path))


def temporary(path: Path) -> Path:
    """A hidden, random name beside `path`, for writing before the rename."""
    return path.with_name(f".{secrets.token_hex(8)}.tmp")


def replace_file(path: Path, write: Callable[[BinaryIO], object], root: Path | None = None) -> None:
    """Let `write` fill a new file, then replace `path` by it atomically.

    A link at `path` is replaced, never written through. Folders on the way may be links, except below `root`.
    Raises EarlError when the disk refuses; `path` is then unchanged.
    """
    with storage(path), folder_below(root or path.parent, path.parent) as folder:
        name, file = _new_file(path, folder)
        try:
            with file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
                os.rename(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)


def _new_file(path: Path, folder: int) -> tuple[str, BinaryIO]:
    """A new temporary file. Its lock tells `sweep` that it is in use; the kernel drops the lock with the process."""
    while True:
        name = temporary(path).name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
        file = os.fdopen(os.open(name, flags, 0o666, dir_fd=folder), "wb")
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return name, file
        file.close()  # swept before it was locked


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A new folder under a temporary name beside `path`, removed at the end unless it was renamed. Locked against
    `remove_abandoned` as the file of `_new_file` is against `sweep`."""
    while True:
        partial = temporary(path)
        partial.mkdir()
        with suppress(FileNotFoundError):  # removed before it was opened
            folder = os.open(partial, _FOLDER)
            fcntl.flock(folder, fcntl.LOCK_EX)
            if partial.is_dir():
                break
            os.close(folder)  # or before it was locked
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(folder)


def remove_abandoned(folder: Path) -> None:
    """Remove the folders that killed processes left from `new_folder`."""
    with folder_below(folder, folder) as inside, os.scandir(inside) as entries:
        for entry in [*entries]:
            if _TEMPORARY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                _remove_unless_written(entry.name, inside)


def write_text(path: Path, text: str, root: Path | None = None) -> None:
    """Write a text file atomically, as `replace_file` does."""
    replace_file(path, lambda file: file.write(text.encode()), root)


def sync(path: Path) -> None:
    """Wait until the file or folder itself is on disk, so that a rename never precedes its contents."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(name: str, folder: int) -> None:
    """Remove a file, link or folder of that name in an open folder, if it exists; links are not followed.
    A folder is renamed first, so that no process sees it half removed."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=folder)
        return
    if not name.startswith("."):
        shown, name = name, temporary(Path(name)).name
        os.rename(shown, name, src_dir_fd=folder, dst_dir_fd=folder)
    shutil.rmtree(name, dir_fd=folder)


def sweep(root: Path, folder: Path) -> None:
    """Remove temporary files that killed processes left. The caller holds the run's lock.
    A file stays while another process, such as one that writes a report, has it locked."""
    if not folder.is_dir():
        return
    with storage(folder), folder_below(root, folder) as inside:
        with os.scandir(inside) as entries:
            hidden = [entry.name for entry in entries if entry.name.startswith(".") and entry.name.endswith(".tmp")]
        for name in hidden:
            _remove_unless_written(name, inside)


def _remove_unless_written(name: str, folder: int) -> None:
    try:
        descriptor = os.open(name, os.O_RDONLY | _FILE, dir_fd=folder)
    except OSError:  # a link or a socket, which earl never writes; or gone
        remove(name, folder)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(name, folder)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)


def step_name(step: int) -> str:
    return f"step-{step:06d}"


def step_of(path: Path) -> int | None:
    """The step in a name made by `step_name`; None for any other name."""
    head, _, digits = path.name.partition(".")[0].partition("step-")
    return int(digits) if not head and digits.isascii() and digits.isdigit() else None
