"""The disk under a run: faults as errors a user can mend, files that appear whole or not at all, and no way out of it.

Everything is first written under a hidden, random name (`.0123456789abcdef.tmp`) beside its final place, synced, and
renamed. What a killed process leaves is therefore either whole or hidden, and `sweep` removes the hidden.

A run may come from somebody else. Its folder may be reached through links, since users put runs on other disks; below
it every folder is opened from the one above it, and neither folder nor file may be a link:

    folder_below ─▶ open_below ─▶ opened, read_below     by descriptor
                  └▶ checked                             for libraries that take a path
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

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_NO_FOLDER = frozenset({errno.ENOTDIR, errno.EEXIST})
_NO_FILE = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})
"""What opening a link (without following it), a socket or FIFO, or a folder to write answers."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # without waiting for the other end of a FIFO
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")
_IN_WORDS = re.compile(r"\(os error ([0-9]+)\)|: Input/output error \(([0-9]+)\)$")
"""How the libraries in Rust (safetensors, tokenizers) and torch say an errno."""
MOST_BYTES = 32 << 20
"""Of a file that is read whole: recipes, states, descriptions, locks."""
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
    except Exception as error:  # tokenizers raise bare ones
        mendable = _mendable(path, _code(error), then)
        if mendable is None:
            raise
        raise mendable from error


def _code(error: Exception) -> int | None:
    """The errno that says the same as the error."""
    if isinstance(error, FileNotFoundError):
        return errno.ENOENT  # safetensors leaves the number out
    if isinstance(error, OSError):
        return error.errno
    if isinstance(error, sqlite3.Error):
        return _SQLITE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)  # the low byte is the kind
    in_words = None if isinstance(error, EarlError) else _IN_WORDS.search(str(error))
    return int(in_words[1] or in_words[2]) if in_words else None


def _mendable(path: Path, code: int | None, then: str) -> EarlError | None:
    """The error with rule and cure for one errno; None for a fault that is not the user's to mend."""
    if code in _FULL:
        return EarlError(f"no space left at {path}: free space, then {then}")
    if code in _REFUSED:
        return EarlError(f"{path} is refused ({os.strerror(code or 0)}): permit it, or choose another folder")
    if code in _NO_FOLDER:
        return EarlError(f"{path} stands where a folder is needed, or below a file: choose another folder")
    if code in _NO_FILE:
        return EarlError(f"{path} stands where a file is needed: move it away, or choose another place")
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


class OddFile(EarlError):
    """A run holds a link, a FIFO or the like where it has a file or folder of its own."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"{path} is {what}: below a run's folder earl opens plain files and folders only, each with one name where "
            "it is written; look where it came from, then put a copy of what belongs there in its place, or remove it"
        )


@contextmanager
def folder_below(root: Path, path: Path) -> Iterator[int]:
    """The descriptor of `root`, or of a folder below it that is reached without a link.

    Raises:
        OddFile: where a folder on the way is a link or no folder.
    """
    descriptor = os.open(root, _FOLDER)
    try:
        for name in path.relative_to(root).parts:
            try:
                inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    raise OddFile(path, "a link or no folder, or lies below such") from error
                raise _named(error, path) from None
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def open_below(root: Path, path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file below `root`, reached without a link; to write, only one that has no second name.

    Raises:
        OddFile: for anything else that stands there, at once: nothing is waited for.
    """
    with folder_below(root, path.parent) as folder:
        try:
            descriptor = os.open(path.name, flags | _FILE, 0o666, dir_fd=folder)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise OddFile(path, "no plain file") from error
            raise _named(error, path) from None
    try:
        _check(os.fstat(descriptor), path, single=bool(flags & (os.O_WRONLY | os.O_RDWR)))
    except OddFile:
        os.close(descriptor)
        raise
    return descriptor


def opened(root: Path, path: Path) -> BufferedReader:
    """A file below `root` to read, as `open_below` opens it."""
    return os.fdopen(open_below(root, path), "rb")


def read_below(root: Path, path: Path) -> bytes:
    """What a file below `root` holds. Raises OddFile for more than `MOST_BYTES`."""
    with opened(root, path) as file, storage(path):
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OddFile(path, f"a file of more than {MOST_BYTES >> 20} MiB, though it is read whole")
    return data


def checked(root: Path, path: Path, single: bool = False) -> Path:
    """`path`, once it is known to be a plain file below `root`, or missing; for libraries that take no descriptor.

    It is looked at and not opened: closing a database would drop the locks that this process has on it.

    Args:
        single: whether it may have no second name, because it is written where it stands.
    """
    with folder_below(root, path.parent) as folder, suppress(FileNotFoundError):
        _check(os.stat(path.name, dir_fd=folder, follow_symlinks=False), path, single)
    return path


def checked_database(path: Path, read_only: bool = False) -> Path:
    """The SQLite database at the top of a run, once it and the files beside it are checked."""
    checked(path.parent, path, single=not read_only)
    for end in ("wal", "shm", "journal"):  # readers write these as well
        checked(path.parent, path.with_name(f"{path.name}-{end}"), single=True)
    return path


def _check(status: os.stat_result, path: Path, single: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OddFile(path, "no plain file")
    if single and status.st_nlink > 1:
        raise OddFile(path, f"a file with {status.st_nlink} names (hard links)")


def _named(error: OSError, path: Path) -> OSError:
    """The error with the whole path: one of a call by descriptor names the last part of it."""
    return OSError(error.errno, error.strerror, str(path))


def temporary(path: Path) -> Path:
    """A hidden, random name beside `path`, under which it is written before it is renamed."""
    return path.with_name(f".{secrets.token_hex(8)}.tmp")


def replace_file(path: Path, write: Callable[[BinaryIO], object], root: Path | None = None) -> None:
    """Let `write` fill a new file, then put it in the place of `path` in one stroke.

    A link at `path` is replaced, never written through. Folders on the way may be links, but for those below `root`.

    Raises EarlError when the disk refuses; `path` is then as it was before.
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
    """A new temporary file; its lock tells `sweep` that somebody writes it, and the kernel drops it with the writer."""
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
    """A new folder under a temporary name beside `path`, removed at the end unless it was renamed.

    Its lock tells `remove_abandoned` that somebody fills it, as that of `_new_file`.
    """
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
    """Remove from a folder what killed processes left of theirs of `new_folder`."""
    with folder_below(folder, folder) as inside, os.scandir(inside) as entries:
        for entry in [*entries]:
            if _TEMPORARY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                _remove_unless_written(entry.name, inside)


def write_text(path: Path, text: str, root: Path | None = None) -> None:
    """Write a text file whole or not at all, as `replace_file` does."""
    replace_file(path, lambda file: file.write(text.encode()), root)


def void(_: object) -> None:
    """Drop a value that a callback must not return."""


def sync(path: Path) -> None:
    """Wait until the file or folder itself is on the disk, so that a rename never outruns its contents."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(name: str, folder: int) -> None:
    """Remove what has that name in an open folder, if anything has; of a link the link.

    A folder first loses its name, so that nobody sees it half removed.
    """
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
    """Remove what killed processes left under temporary names. Only for who holds the run's lock.

    A file stays while another process, such as one that writes a report, has it open.
    """
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
    except OSError:  # a link, a socket: nothing that earl writes; or gone
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
    """The name of a step's file or folder: step-000012."""
    return f"step-{step:06d}"


def step_of(path: Path) -> int | None:
    """The step that a name made by `step_name` stands for; None for any other name."""
    head, _, digits = path.name.partition(".")[0].partition("step-")
    return int(digits) if not head and digits.isascii() and digits.isdigit() else None
