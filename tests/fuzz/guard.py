"""Runs what may go wrong in a child process, and says which invariant broke.

    parent ── fork ─▶ child: action 0, 1, 2, …      one line of JSON before and after each, through a pipe
       └ watches its time and memory, kills it, and forks again for the actions that are left

Invariants: an action succeeds or refuses clearly; it takes neither 10 s nor 1 GiB; its output has no traceback and
nothing that steers a terminal; nothing outside the case's folders is written, read or connected to.
"""

import ctypes
import faulthandler
import hashlib
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_SECONDS = 10.0
MOST_BYTES = 768 << 20
"""That an action adds to the memory it finds: what a command imports by itself makes it 1 GiB."""
HARD_BYTES = 8 << 30
"""More than this cannot be had at all, should the child be faster than its watch."""
FILE_BYTES = 256 << 20
PERIOD_SECONDS = 0.05
SECRET = "CANARY-5e1f09"
"""Stands in the canary's files: where it is found, a file was read that is none of the run's."""
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff]")
MARKUP = (b"<script>window.harmed", b"<img src=x onerror", b"<svg onload")
"""Of hostile texts: as it stands in a page only where it is not escaped."""
PROCESSES = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn", "subprocess.Popen"}
NETWORK = {"socket.bind", "socket.connect", "socket.getaddrinfo", "socket.sendto"}
CHANGES = {
    **dict.fromkeys(("os.chmod", "os.chown", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.utime"), 1),
    **dict.fromkeys(("os.rename", "os.link"), 2),
}
"""Audit events that change the file system, and how many of their first arguments are paths."""


Seconds = tuple[float, float]
"""Of computing, and on the clock."""


@dataclass(frozen=True)
class Action:
    """Something to try: it returns an exit code, or raises for an invariant of its own that broke."""

    case: str
    """What `--case` takes to try it again, such as "run:17"."""
    label: str
    call: Callable[[], int | None]
    codes: tuple[int | None, ...] = (None, 0, 2)


@dataclass(frozen=True)
class Finding:
    """An invariant that broke."""

    case: str
    label: str
    fault: str
    where: str
    """The same for all findings of one cause."""
    output: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.fault, self.where


@dataclass
class Sandbox:
    """A worker's folders: what a case may use, and beside it the canary, which nothing may touch."""

    root: Path
    before: dict[str, Any] = field(default_factory=dict)

    @property
    def case(self) -> Path:
        return self.root / "case"

    @property
    def canary(self) -> Path:
        return self.root / "canary"

    def renew(self) -> Path:
        """An empty folder for a case; its working, home and temporary folders are in it."""
        shutil.rmtree(self.case, ignore_errors=True)
        for name in ("work", "home", "tmp"):
            (self.case / name).mkdir(parents=True)
        (self.root / "pages").write_text("[]")
        return self.case

    def plant(self, run: Path | None = None) -> None:
        """Make the canary anew: a key, a secret, an empty folder, and a run where there is one to copy."""
        shutil.rmtree(self.canary, ignore_errors=True)
        (self.canary / "empty").mkdir(parents=True)
        for name in ("key", "secret.json", "secret.toml", "page.html"):
            (self.canary / name).write_text(f'secret = "{SECRET}"\n')
        (self.canary / "copied").write_text("no secret\n")
        if run is not None:
            shutil.copytree(run, self.canary / "victim")
            recipe = self.canary / "victim" / "config.toml"
            recipe.write_text(f"# {SECRET}\n{recipe.read_text()}")
        self.before = self._seen()

    def changed(self) -> list[str]:
        """What of the canary is no longer as it was planted."""
        now = self._seen()
        return sorted(name for name in {*now, *self.before} if now.get(name) != self.before.get(name))

    def _seen(self) -> dict[str, Any]:
        return {str(path.relative_to(self.canary)): _facts(path) for path in self.canary.rglob("*")}

    def written(self) -> list[tuple[str, str]]:
        """What is wrong with what commands wrote: the canary's secret in it, or a page that runs what a run says."""
        found, planted = [], json.loads((self.root / "pages").read_text())
        for path in {*self.case.rglob("*.html"), *(self.case / "work").rglob("*")}:
            if not path.is_file() or path.is_symlink():
                continue
            if path.stat().st_nlink == 1 and path.stat().st_size <= FILE_BYTES:  # a planted hole may be a TiB
                data = path.read_bytes()
                found += [("leak", f"secret in {path.name}")] * (SECRET.encode() in data)
                found += [("page", f"markup in {path.name}")] * (
                    path.suffix == ".html" and _written_at(path) not in planted and any(m in data for m in MARKUP)
                )
        return found

    def note_pages(self) -> None:
        """Remember the pages that stand here before any command, in a file that the parent reads."""
        pages = [_written_at(path) for path in self.case.rglob("*.html") if path.is_file() and not path.is_symlink()]
        (self.root / "pages").write_text(json.dumps(pages))


def _written_at(path: Path) -> list[Any]:
    """A page, and when it was written."""
    return [os.fsencode(path).hex(), path.lstat().st_mtime_ns]


def _facts(path: Path) -> tuple[Any, ...]:
    found = path.lstat()
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return found.st_mode, found.st_ino, found.st_uid, found.st_mtime_ns if digest else 0, digest


def check(
    sandbox: Sandbox,
    actions: Sequence[Action],
    took: dict[str, list[Seconds]],
    prepare: Callable[[], Any] = lambda: None,
) -> list[Finding]:
    """Try all actions and return what broke; `took` gains what each took, by label.

    Args:
        prepare: is called in the child before the first action, when nothing is watched yet.
    """
    findings: list[Finding] = []
    first, tried = 0, False
    while first < len(actions):
        number = len(actions)
        for said in _followed(sandbox, actions, first, prepare if first == 0 else lambda: None):
            if "began" in said:
                number, tried = said["began"], True
                continue
            case, label = actions[number].case, actions[number].label
            took.setdefault(label, []).append(said["seconds"])
            findings += [Finding(case, label, fault, where, said["output"]) for fault, where in said["faults"]]
        first = number + 1
    if not tried:  # the mutation itself took too long, or wrote through a link of the one before
        took.setdefault("no command: bad mutation", []).append((0.0, 0.0))
        return []
    faults = [("outside", f"changed {name}") for name in sandbox.changed()]
    faults += sandbox.written()
    labels = " + ".join(dict.fromkeys(action.label for action in actions))
    return findings + [Finding(actions[0].case, labels, fault, where) for fault, where in faults[:3]]


def _followed(
    sandbox: Sandbox, actions: Sequence[Action], first: int, prepare: Callable[[], Any]
) -> Iterator[dict[str, Any]]:
    """What a child says of its actions, and at the end what was to be said of it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(sandbox, actions, first, prepare, writing)
    os.close(writing)
    began, buffer, reason, told, found = time.monotonic(), b"", "", 0.0, _resident_bytes(child)
    seen, began_any = [(began, 0.0)], False
    while True:
        ready, _, _ = select.select([reading], [], [], PERIOD_SECONDS)
        if ready:
            data = os.read(reading, 1 << 16)
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                said = json.loads(line)
                if "began" in said:
                    began_any = True
                    began, told = time.monotonic(), _state(child)[1]
                    seen = [(began, told)]
                yield said
                reason = "" if "began" in said else "done"
        used = _state(child)[1] - told
        if not reason and (reason := _excess(child, began, told, seen, found)):
            os.kill(child, signal.SIGUSR1)  # it writes where it is
            time.sleep(PERIOD_SECONDS)
            os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reading)
    _end_group(child)
    output = sandbox.root.joinpath("output").read_bytes()[-3000:].decode(errors="replace")
    if reason == "":
        reason = f"died of {os.waitstatus_to_exitcode(status)}"
    if not began_any:
        return  # the mutation itself, which may build a bomb, took too long: there is nothing to try
    if reason != "done":
        where = _last_frames(sandbox.root / "stack")
        yield {"faults": [(reason, where)], "output": output, "seconds": (used, time.monotonic() - began)}


def _excess(child: int, began: float, told: float, seen: list[tuple[float, float]], found: int) -> str:
    """Why a child is to be killed; empty: it is not.

    A hang is 10 s of computing, or of sleep. Time in which it could run, but others did, is not its own.
    """
    if _resident_bytes(child) - found > MOST_BYTES:
        return "memory"
    now, (state, used) = time.monotonic(), _state(child)
    if used - told >= MOST_SECONDS:
        return "hang"
    if state == "R" or used - seen[-1][1] > 0.01:
        seen.append((now, used))  # it was at work until now
    asleep, whole = now - max(began, seen[-1][0]), now - began
    return "hang" if asleep >= MOST_SECONDS or (whole >= 10 * MOST_SECONDS and asleep > 0) else ""


def _resident_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()


def _state(process: int) -> tuple[str, float]:
    """Whether a process sleeps (S) or could run (R), and the seconds that it has computed, its own children with it."""
    children = Path(f"/proc/{process}/task/{process}/children")
    known = [process, *(map(int, children.read_text().split()) if children.exists() else ())]
    states, seconds = "", 0.0
    for one in known:
        with suppress(OSError):  # it may have ended
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            states += fields[0]
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return "R" if "R" in states else "S", seconds


def _end_group(child: int) -> None:
    """End what a child started and left behind."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return


def _last_frames(stack: Path) -> str:
    """Where a child was when it was killed."""
    lines = re.findall(r'File "([^"]+)", line \d+ in (\S+)', stack.read_text(errors="replace"))
    return " < ".join([f"{Path(file).name}:{name}" for file, name in lines if _own(file) or "/fuzz/" in file][:2])


def _own(file: str) -> bool:
    """Whether a file is earl's."""
    return "/site-packages/" not in file and re.search(r"/(earl|agents|envs|cli)/", file) is not None


def _child(sandbox: Sandbox, actions: Sequence[Action], first: int, prepare: Callable[[], Any], pipe: int) -> None:
    """Do the actions from `first` on; never returns."""
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its parent
    output, peaks = _redirected(sandbox), os.open("/proc/self/clear_refs", os.O_WRONLY)
    faulthandler.register(signal.SIGUSR1, sandbox.root.joinpath("stack").open("w"), all_threads=False)
    try:
        prepare()
        if first == 0:
            sandbox.note_pages()
    except BaseException:
        traceback.print_exc()
        os._exit(99)
    touched, found = _watched(sandbox), _resident_bytes(os.getpid())
    resource.setrlimit(resource.RLIMIT_DATA, (HARD_BYTES, HARD_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for number in range(first, len(actions)):
        _tell(pipe, {"began": number})
        place, began, computed = os.lseek(output, 0, os.SEEK_END), time.perf_counter(), time.process_time()
        os.pwrite(peaks, b"5", 0)  # the peak of memory begins anew
        faults = _tried(actions[number])
        seconds = (time.process_time() - computed, time.perf_counter() - began)
        sys.stdout.flush()
        sys.stderr.flush()
        text = ""
        if (size := os.lseek(output, 0, os.SEEK_END)) > place:
            text = os.pread(output, size - place, place).decode(errors="replace")
        faults += ([] if faults else _in_output(text)) + [("outside", what) for what in dict.fromkeys(touched)]
        if _peak_bytes() - found > MOST_BYTES:
            faults.append(("memory", ""))
        touched.clear()
        said = {"faults": faults, "seconds": seconds, "output": text[-3000:] if faults else ""}
        _tell(pipe, said)
    os._exit(0)


def _tell(pipe: int, said: dict[str, Any]) -> None:
    data = json.dumps(said).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


def _redirected(sandbox: Sandbox) -> int:
    """Output into a file, no input, and every folder that a user has inside the sandbox."""
    output = os.open(sandbox.root / "output", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), open(1, "w", errors="replace"), open(2, "w", errors="replace")  # noqa: SIM115
    home, work = str(sandbox.case / "home"), sandbox.case / "work"
    os.environ |= {"HOME": home, "TMPDIR": str(sandbox.case / "tmp"), "TERM": "xterm"}
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        os.environ[name] = f"{home}/{name.lower()}"
    os.chdir(work)
    sys.dont_write_bytecode = True
    return output


def _watched(sandbox: Sandbox) -> list[str]:
    """A list that gains what the child does outside of its folders, from now on."""
    allowed = (f"{sandbox.case}/", f"{sandbox.root}/stack", "/dev/")
    touched: list[str] = []

    def outside(path: Any) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        whole = Path(os.fsdecode(path))
        return not str(whole.parent.resolve() / whole.name).startswith(allowed)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            if args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) and isinstance(args[0], (str, bytes)):
                real = os.path.realpath(os.fsdecode(args[0]))
                if not f"{real}/".startswith(allowed):
                    touched.append(f"open {_nameless(real, sandbox)} for writing")
        elif event in CHANGES:
            touched.extend(
                f"{event} {_nameless(os.fsdecode(p), sandbox)}" for p in args[: CHANGES[event]] if outside(p)
            )
        elif (event in PROCESSES and not _own_program(args)) or (event in NETWORK and not _loopback(args)):
            touched.append(f"{event} {args[:2]!r}"[:200])

    sys.addaudithook(hook)
    return touched


def _loopback(args: tuple[Any, ...]) -> bool:
    """Whether a connection is to a server of this very test, which listens on loopback, or a socket in a file."""
    address = args[1] if len(args) > 1 else ""
    host = args[0] if isinstance(args[0], str) else address[0] if isinstance(address, tuple) else ""
    return host in ("", "127.0.0.1")


def _own_program(args: tuple[Any, ...]) -> bool:
    """Whether a process is Python with a program of earl's own."""
    return len(args) > 1 and args[0] == sys.executable and any(_own(str(word)) for word in args[1][1:])


def _nameless(path: str, sandbox: Sandbox) -> str:
    return path.replace(str(sandbox.root), "")


def _tried(action: Action) -> list[tuple[str, str]]:
    """What broke of an action itself."""
    try:
        code = action.call()
    except BaseException as error:
        traceback.print_exc()
        return [(type(error).__name__, frames(error))]
    return [] if code in action.codes else [("exit", f"code {code} of {action.label}")]


def frames(error: BaseException) -> str:
    """Where an error arose: the last two of earl's functions, and the last of all."""
    own = [f"{Path(f.filename).name}:{f.name}" for f in traceback.extract_tb(error.__traceback__) if _own(f.filename)]
    last = traceback.extract_tb(error.__traceback__)[-1]
    inner = "" if _own(last.filename) else f" < {Path(last.filename).name}:{last.name}"
    broken = f": {error}"[:100] if isinstance(error, AssertionError) else ""
    return " > ".join(own[-2:]) + inner + broken


def _in_output(text: str) -> list[tuple[str, str]]:
    faults = []
    if "Traceback (most recent call last)" in text and "Error" in text:
        faults.append(("traceback", text.strip().splitlines()[-1].partition(":")[0]))
    if found := STEERING.search(text):
        faults.append(("steering", f"U+{ord(found[0]):04X}"))
    if SECRET in text:
        faults.append(("leak", "secret in the output"))
    return faults


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10
