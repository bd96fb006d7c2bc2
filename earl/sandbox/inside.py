"""The program behind `LocalSandbox`: a server that forks sandboxes, and the first process of each of them.

    LocalSandbox ─▶ serve() ─fork into new namespaces─▶ become_first() ─▶ first_process(), pid 1 ─fork─▶ the command
          │                        └─exec─▶ bwrap, docker, …  ─▶ enter() ─┘ │
          └──────────────── commands and results, over a socket of its own ─┘

It imports nothing of earl and little of Python, since each command is a fork of it. A command has no way out of what
is set up here:

    user, pid, mount, net, ipc, uts, cgroup   namespaces of its own: no process, file, or network of the host
    mounts        a root of its own: programs and libraries read-only, /scratch of bounded size, no /proc
    identity      no root, no capability, no_new_privs, an empty environment, no open file of the host
    rlimits       memory of a process, processes, files and their size, core dumps, priority
    cgroup        memory and processes of the sandbox as a whole
    landlock      writes only in /scratch; no TCP; no signal or socket out of the command
    seccomp       no system call that makes namespaces or mounts, traces, loads code into the kernel, or has a network

The first process ends the whole tree when a command is over, late, or too large. It dies with its socket or server.
"""

import _ctypes  # ctypes, signal, socket and os themselves take long to import
import _signal  # type: ignore[import-not-found]
import _socket
import errno
import marshal
import posix
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Limits = dict[str, "Any"]  # the fields of SandboxConfig
Request = tuple[list[str], bytes, float, tuple[int, ...]]
"""The words of a command, its standard input, the seconds it may take, and the cores that it runs on; none: all."""
LIBC = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # the program itself
CHANNEL, PROC, ANSWERS, EVENTS = 3, 4, 5, 6
"""Descriptors of a first process; the channel and its answers are one socket, or two pipes of a container."""
LAST = (1 << 31) - 1
"""The highest descriptor there can be."""
CLONE = 56 if posix.uname().machine == "x86_64" else 220
"""The number of the system call that os.fork makes without flags."""
CONTAINERS = ("docker", "podman")
"""Kinds of sandboxes that have namespaces, mounts and cgroups before `enter`."""
USER = 1000
"""Who runs commands, as seen inside."""
HOST_USERS = range(61184, 65520)
"""Who that is on the host, where the server is root: for each sandbox another one, since the kernel counts descriptors
in flight, pipes and polled files by user. Of the numbers that systemd gives to services for as long as they run."""
NAMESPACES = {
    "user": 0x10000000, "pid": 0x20000000, "mount": 0x00020000, "net": 0x40000000,
    "ipc": 0x08000000, "uts": 0x04000000, "cgroup": 0x02000000,
}  # fmt: skip
FOLDER, LINK = 0o040000, 0o120000
SESSION = ["python", "-i"]
"""The command whose interpreter stays, with its variables, for the next one."""
CGROUPS = "/sys/fs/cgroup"
OWN_MB, OWN_PROCESSES = 64, 8
"""What a sandbox uses beside its commands."""
POLL_SECONDS = 0.02
FLOOD = 128
"""Times the kept output, after which a command is ended."""
SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
UNCOUNTED = "/dev/zero"
"""The device whose shared memory stays where no process holds its pages: not there without a cgroup that counts it."""
SOCKET_BYTES = 416 << 10
"""What may be under way in a socket, which no process's memory has."""
ROOTS = ("/mnt", "/srv", "/tmp", "/var/tmp", "/opt", "/home")
"""Where the new root is mounted while it is filled: the first folder that has nothing in it that is needed."""


class Function(_ctypes.CFuncPtr):
    """Of the C library; it returns an int."""

    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO


class Bytes(_ctypes._SimpleCData):  # type: ignore[type-arg]
    """A pointer to bytes, which `bytes` of it shows."""

    _type_ = "z"


def libc(name: str, *arguments: object) -> int:
    returned: int = Function(_ctypes.dlsym(LIBC, name))(*arguments)
    return returned


def checked(returned: int, what: str) -> int:
    if returned < 0:
        number = _ctypes.get_errno()
        raise OSError(number, f"{what}: {posix.strerror(number)}")
    return returned


def call(number: int, what: str, *arguments: object) -> int:
    """A system call that Python has no function for."""
    return checked(libc("syscall", number, *arguments), what)


def prctl(option: int, value: int, what: str) -> None:
    checked(libc("prctl", option, value, 0, 0, 0), what)


# The server: makes sandboxes.


def serve() -> None:
    """Make a sandbox for each message, limits and a socket, until the other side is gone."""
    control, parent = _socket.socket(fileno=0), posix.getppid()
    prctl(36, 1, "child subreaper")
    for number in (_signal.SIGHUP, _signal.SIGQUIT):  # ignored, also by what is started, after nohup or with &
        _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    ready = select.poll()
    ready.register(0, select.POLLIN)
    made: dict[int, list[str]] = {}  # by the descriptor of a first process, its cgroup
    remove_left_cgroups()
    while posix.getppid() == parent:
        found = ready.poll(1000)
        if not found:
            preload()
        reap()  # also what a program that makes sandboxes has left
        for descriptor, _ in found:
            if descriptor:  # a first process has ended
                ready.unregister(descriptor)
                posix.close(descriptor)
                remove(made.pop(descriptor))
                continue
            message, told, *_ = control.recvmsg(1 << 18, _socket.CMSG_SPACE(4))
            if not message:
                end_all(made)
            channel = int.from_bytes(told[0][2], "little")
            limits = marshal.loads(message)
            folders = [] if limits["kind"] in CONTAINERS else make_cgroup(limits)  # they make one themselves
            try:
                watch = posix.pidfd_open(make(channel, limits, folders))
                made[watch] = folders
                ready.register(watch, select.POLLIN)
                control.sendmsg([b"made"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, watch.to_bytes(4, "little"))])
            except OSError as error:
                control.send(str(error.strerror).encode())
                reap()
                remove(folders)
            posix.close(channel)
    end_all(made)


def preload() -> None:
    """Import what many programs do, which takes 11 ms: the server when idle, for its later sandboxes."""
    __import__("json")
    __import__("os")


def end_all(made: dict[int, list[str]]) -> None:
    """End all sandboxes, remove their cgroups, which would outlive this process, and end."""
    for watch in made:
        try:
            _signal.pidfd_send_signal(watch, _signal.SIGKILL)
        except ProcessLookupError:
            pass
    try:
        while True:
            posix.waitpid(-1, 0)
    except ChildProcessError:
        pass
    for folders in made.values():
        remove(folders)
    posix._exit(0)


def reap() -> None:
    try:
        while posix.waitpid(-1, posix.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def make(channel: int, limits: Limits, folders: list[str]) -> int:
    """The process id of a new sandbox's first process, or of the program that makes it: a fork in new namespaces."""
    own = sum(flag for name, flag in NAMESPACES.items() if name != "cgroup")  # it enters its cgroup first
    flags = 0 if limits["kind"] in CONTAINERS else NAMESPACES["user"] if limits["argv"] else own
    wait, go = posix.pipe()
    try:
        first = call(CLONE, "namespaces", flags | _signal.SIGCHLD, 0, 0, 0, 0)
        if not first:
            posix.close(go)
            become_first(channel, wait, limits, folders)
        if flags:
            map_ids(first)
        posix.write(go, b"1")
        return first
    finally:
        posix.close(wait)
        posix.close(go)  # if it waits, it ends


def map_ids(process: int) -> None:
    """Who the processes of a user namespace are on the host: the user; where that is root, one of `HOST_USERS`."""
    lines = f"0 0 1\n{USER} {HOST_USERS[process % len(HOST_USERS)]} 1\n" if posix.geteuid() == 0 else ""
    if not lines:
        write(f"/proc/{process}/setgroups", "deny")
    write(f"/proc/{process}/gid_map", lines or f"{USER} {posix.getegid()} 1\n")
    write(f"/proc/{process}/uid_map", lines or f"{USER} {posix.geteuid()} 1\n")


def read(path: str, folder: int | None = None) -> str:
    """A short file; "" where it is not there, or no more."""
    try:
        file = posix.open(path, posix.O_RDONLY, dir_fd=folder)
    except OSError:
        return ""
    try:
        return posix.read(file, 1 << 12).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        posix.close(file)


def type_of(path: str) -> int:
    """`FOLDER`, `LINK` or another; 0: there is nothing."""
    try:
        return posix.lstat(path).st_mode & 0o170000
    except OSError:
        return 0


def write(path: str, text: str, folder: int | None = None) -> None:
    file = posix.open(path, posix.O_WRONLY, dir_fd=folder)
    try:
        posix.write(file, text.encode())
    finally:
        posix.close(file)


def become_first(channel: int, wait: int, limits: Limits, folders: list[str]) -> None:
    """Go on as a first process, or as the program that makes one, by `enter`. Faults go to the channel."""
    try:
        prctl(1, _signal.SIGKILL, "death with the server")
        for folder in folders:  # the kernel waits to move a process of version 2, and moves a thread at once
            write(folder + ("/tasks" if type_of(f"{folder}/tasks") else "/cgroup.procs"), "0")
        events = memory_events(folders)
        if not posix.read(wait, 1):
            posix._exit(1)
        if not limits["argv"]:
            checked(libc("unshare", NAMESPACES["cgroup"]), "cgroup namespace")
            first_process(limits, channel, channel, events)
        for number, descriptor in enumerate((channel, channel, channel, posix.dup(events))):
            posix.dup2(descriptor, number)
        call(436, "close_range", 4, LAST, 0)
        _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
        posix.execve(limits["argv"][0], limits["argv"], limits["environment"] or posix.environ)
    except BaseException as error:
        posix.write(channel, f"{getattr(error, 'strerror', error)}\n".encode())
    finally:
        posix._exit(1)


# The first process of a sandbox: runs commands, one at a time.


def enter(limits: Limits) -> None:
    """The first process where another program has made the sandbox, and started this as a file of its own."""
    try:
        preload()
        own = [CGROUPS, f"{CGROUPS}/memory"]
        first_process(limits, 0, 1, memory_events(own) if limits["kind"] in CONTAINERS else 3)
    except BaseException as error:
        posix.write(1, f"{getattr(error, 'strerror', error)}\n".encode())
    finally:
        posix._exit(1)


def first_process(limits: Limits, channel: int, answers: int, events: int) -> None:
    libc("sethostname", b"sandbox", 7)
    layers = layers_here() + ["cgroup"] * bool(posix.pread(events, 1, 0))
    missing = [name for name in limits["require"] if name not in layers]
    if missing:
        raise OSError(0, f"missing: {', '.join(missing)}")
    proc = mounts(limits, layers)
    posix.chdir("/scratch")
    write("self/oom_score_adj", "900", proc)  # where memory is short, it ends before the processes of the host
    prctl(4, 0, "not to be traced")
    own = (channel, proc, answers, events)
    above = max(EVENTS, *own) + 1  # the server has a descriptor for each sandbox, so they may have any numbers
    for number, descriptor in enumerate([posix.dup2(old, above + number) for number, old in enumerate(own)]):
        posix.dup2(descriptor, CHANNEL + number)
    call(436, "close_range", EVENTS + 1, LAST, 0)
    nothing = posix.open("/dev/null", posix.O_RDWR)
    for number in range(3):
        posix.dup2(nothing, number)
    posix.close(nothing)
    send(f"ok {' '.join(layers)}\n".encode())
    session = Session()
    while (request := receive()) is not None:
        send(Command(limits, layers, session, request).run())
    posix._exit(0)


def receive() -> "Request | None":
    """The next message of the other side; None: it is gone."""
    size = read_all(4)
    return marshal.loads(read_all(int.from_bytes(size, "little"))) if size else None


def read_all(size: int) -> bytes:
    found = b""
    while len(found) < size and (more := posix.read(CHANNEL, size - len(found))):
        found += more
    return found if len(found) == size else b""


def send(message: bytes) -> None:
    while message:
        message = message[posix.write(ANSWERS, message) :]


class Session:
    """The interpreter that stays between commands; it is stopped while none of its own runs."""

    process = 0  # 0: none
    control = out = err = -1
    alive = False
    former = False
    """Whether one has ended that the agent may count on."""

    def close(self) -> None:
        for descriptor in (self.control, self.out, self.err) if self.process else ():
            posix.close(descriptor)
        self.former, self.process, self.alive = self.former or bool(self.process), 0, False

    def resume(self, code: bytes, cores: tuple[int, ...]) -> bool:
        """Whether it goes on, with this program, on these cores."""
        if not self.alive or not alive(self.process):
            return False
        for thread in threads(self.process) if cores else ():
            posix.sched_setaffinity(int(thread), cores)
        posix.kill(self.process, _signal.SIGCONT)
        return give(self.control, code)


def give(control: int, code: bytes) -> bool:
    message = len(code).to_bytes(4, "little") + code
    try:
        return posix.write(control, message) == len(message)
    except OSError:  # full, or closed by what runs in it
        return False


class Command:
    """One command, from its start until nothing of it is left but the session."""

    def __init__(self, limits: Limits, layers: list[str], session: Session, request: Request) -> None:
        self.limits, self.layers, self.session = limits, layers, session
        self.words, self.given, self.seconds, self.cores = request
        self.kept: dict[int, bytearray] = {}  # by the end of its pipe: standard output, then error
        self.written, self.code = 0, -1
        self.poll, self.kills = select.poll(), memory_kills()

    def run(self) -> bytes:
        began, session = time.monotonic(), self.session
        if self.words == SESSION:
            return self.run_in_session(began)
        child, feed = self.start()
        watch = watch_of(child)
        for descriptor in (watch, CHANNEL, *self.kept):
            self.poll.register(descriptor, select.POLLIN)
        if self.given:
            self.poll.register(feed, select.POLLOUT)
        else:
            posix.close(feed)
        how = self.wait(child, watch, feed, began + self.seconds)
        status = self.end_beside(session, child) if session.alive else self.end(child)
        self.take_rest()
        for descriptor in (watch, *self.kept, *((feed,) if self.given else ())):
            posix.close(descriptor)
        return self.told(how, posix.waitstatus_to_exitcode(status), began)

    def run_in_session(self, began: float) -> bytes:
        """The program is what was given. It ends with the session, or when that says so, by a byte, its exit code."""
        session, anew = self.session, b""
        if not session.resume(self.given, self.cores):
            session.close()
            anew = b"[a new session: variables of the former one are gone]\n" * session.former
            self.start_session(session)
            give(session.control, self.given)
        self.given, self.kept = b"", {session.out: bytearray(), session.err: bytearray(anew)}
        watch = watch_of(session.process)
        for descriptor in (watch, CHANNEL, session.control, *self.kept):
            self.poll.register(descriptor, select.POLLIN)
        how, code = self.wait(session.process, watch, session.control, began + self.seconds), self.code
        posix.close(watch)
        if how == "exit" and code >= 0:
            self.end_beside(session, 0)
            self.take_rest()
        else:
            status = self.end(session.process)
            self.take_rest()
            session.close()
            code = posix.waitstatus_to_exitcode(status)
        return self.told(how, code, began)

    def take_rest(self) -> None:
        for descriptor in self.kept:
            while self.take(descriptor) and self.written < FLOOD * self.limits["output_kb"] * 1024:
                pass

    def told(self, how: str, code: int, began: float) -> bytes:
        """The answer; a negative code is a signal's number."""
        out, err = self.kept.values()
        how = "signal" if how == "exit" and code < 0 else how
        how = "memory" if how in ("exit", "signal") and memory_kills() > self.kills else how
        cut = max(0, self.written - len(out) - len(err))
        head = f"{how} {abs(code)} {len(out)} {len(err)} {cut} {time.monotonic() - began}\n"
        return head.encode() + bytes(out) + bytes(err)

    def start(self) -> tuple[int, int]:
        """Fork the command; its process, and where its standard input is written."""
        (source, feed), (out, out_end), (err, err_end) = posix.pipe(), posix.pipe(), posix.pipe()
        child = posix.fork()
        if not child:
            self.close_in(source, out_end, err_end)
            become(self.words)
        for descriptor in (source, out_end, err_end):
            posix.close(descriptor)
        for descriptor in (feed, out, err):
            posix.set_blocking(descriptor, False)
        self.kept = {out: bytearray(), err: bytearray()}
        return child, feed

    def close_in(self, *descriptors: int) -> None:
        """Leave this process, a new one, nothing but these, as 0, 1, 2, …"""
        try:
            for number, descriptor in enumerate(descriptors):
                posix.dup2(descriptor, number)
            prctl(4, 1, "to be traced")  # else its files in /proc are the host's root's
            write("self/oom_score_adj", "1000", PROC)  # where memory is short it ends, and not what told it to run
            prctl(4, 0, "not to be traced")
            call(436, "close_range", len(descriptors), LAST, 0)
            posix.setsid()
            if self.cores:
                posix.sched_setaffinity(0, self.cores)
            confine(self.limits, self.layers)
        except BaseException as error:
            posix.write(2, f"the sandbox could not be closed: {error}\n".encode())
            posix._exit(125)

    def start_session(self, session: Session) -> None:
        control, theirs = _socket.socketpair()
        (out, out_end), (err, err_end) = posix.pipe(), posix.pipe()
        child = posix.fork()
        if not child:
            self.close_in(posix.open("/dev/null", posix.O_RDONLY), out_end, err_end, theirs.fileno())
            interpreter()
        theirs.close()
        for descriptor in (out_end, err_end):
            posix.close(descriptor)
        session.process, session.control, session.out, session.err = child, control.detach(), out, err
        session.alive = True
        for descriptor in (session.control, out, err):
            posix.set_blocking(descriptor, False)

    def wait(self, process: int, watch: int, feed: int, until: float) -> str:
        """Until the command is over or at a limit, which is told."""
        checked_at = 0.0
        while (now := time.monotonic()) < until:
            for descriptor, _ in self.poll.poll(min(POLL_SECONDS, until - now) * 1000):
                if descriptor == CHANNEL:
                    posix._exit(0)  # nobody waits for it, and all processes end with this one
                if descriptor == watch or (descriptor == feed and self.words == SESSION and self.answered(feed)):
                    return "exit"
                if descriptor == feed:
                    if self.given:
                        self.feed(feed)
                elif not self.take(descriptor):
                    self.poll.unregister(descriptor)
            if self.written > FLOOD * self.limits["output_kb"] * 1024:
                return "output"
            if now - checked_at >= POLL_SECONDS:
                checked_at = now
                if posix.waitid(posix.P_PID, process, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT):
                    return "exit"
                held = memory_bytes() + (0 if "cgroup" in self.layers else sockets() * SOCKET_BYTES)
                if held > self.limits["memory_mb"] << 20 or memory_kills() > self.kills:
                    return "memory"
        return "timeout"

    def answered(self, control: int) -> bool:
        """Whether the session says that it has run the program; else it has closed its end, or ends."""
        try:
            said = posix.read(control, 1)
        except OSError:
            said = b""
        if said:
            self.code = said[0]
        else:
            self.poll.unregister(control)
        return bool(said)

    def feed(self, feed: int) -> None:
        try:
            self.given = self.given[posix.write(feed, self.given) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.given = b""
        if not self.given:
            self.poll.unregister(feed)
            posix.close(feed)

    def take(self, descriptor: int) -> bool:
        """Read some output; False: there is none now, or none any more."""
        try:
            more = posix.read(descriptor, 1 << 16)
        except BlockingIOError:
            return False
        room = self.limits["output_kb"] * 1024 - len(self.kept[descriptor])
        self.kept[descriptor] += more[: max(0, room)]
        self.written += len(more)
        return bool(more)

    def end(self, child: int) -> int:
        """End every process but this one; the status of the command."""
        assert posix.getpid() == 1, "it would end the processes of the host"
        status = 0
        while True:
            try:
                posix.kill(-1, _signal.SIGKILL)
            except ProcessLookupError:
                pass
            try:
                ended, how = posix.waitpid(-1, 0)
            except ChildProcessError:
                return status
            if ended == child:
                status = how

    def end_beside(self, session: Session, child: int) -> int:
        """End every process but this one and the session's, which is stopped; the status of the command. All are
        stopped first, since what runs can start more."""
        assert posix.getpid() == 1, "it would end the processes of the host"
        posix.kill(-1, _signal.SIGSTOP)
        status = 0
        while True:
            left = [one for one in processes() if one != session.process and alive(one)]
            for one in left:
                try:
                    posix.kill(one, _signal.SIGKILL)
                except ProcessLookupError:
                    pass
            while (ended := posix.waitpid(-1, posix.WNOHANG))[0]:
                if ended[0] == child:
                    status = ended[1]
                if ended[0] == session.process:
                    session.alive = False
                    return self.end(child) or status
            if not left:
                return status
            time.sleep(0.001)


def processes() -> list[int]:
    """All but this one."""
    return [int(name) for name in posix.listdir(PROC) if name.isdigit() and name != "1"]


def watch_of(process: int) -> int:
    """A descriptor to poll for the end of a process; gVisor has none, and `Command.wait` looks itself."""
    try:
        return posix.pidfd_open(process)
    except OSError:
        return posix.eventfd(0)


def alive(process: int) -> bool:
    """Whether a process runs, or is stopped. Its first thread may have ended before others; then its state is Z too."""
    told = read(f"{process}/stat", PROC).rpartition(") ")[2].split()
    return bool(told) and (told[0] not in "ZX" or int(told[17]) > 1)  # the number of threads


def memory_kills() -> int:
    """Processes that the kernel has ended at the limit of the sandbox's cgroup."""
    told = posix.pread(EVENTS, 1000, 0).partition(b"\noom_kill ")[2].split()
    return int(told[0]) if told else 0


def memory_bytes() -> int:
    """Of all processes here but this one, as far as it goes beyond a bare fork of it."""
    own = held_kib(1)
    return sum(max(0, held_kib(process) - own) for process in processes()) << 10


def held_kib(process: object) -> int:
    """Memory of a process, also where it is swapped out; not that of mapped files, which the system can take back."""
    told = read(f"{process}/status", PROC)
    if "\nVmRSS:" not in told:  # it has ended, or its first thread has, and only other threads tell
        others = (read(f"{process}/task/{thread}/status", PROC) for thread in threads(process))
        told = next((one for one in others if "\nVmRSS:" in one), "")
    rss, files, swap = (told.partition(f"\n{name}:")[2].split(None, 1) for name in ("VmRSS", "RssFile", "VmSwap"))
    return int((rss or "0")[0]) - int((files or "0")[0]) + int((swap or "0")[0])


def threads(process: object) -> list[str]:
    """The ids of its threads; none: it has ended."""
    try:
        folder = posix.open(f"{process}/task", posix.O_RDONLY, dir_fd=PROC)
    except OSError:
        return []
    try:
        return posix.listdir(folder)
    except OSError:
        return []
    finally:
        posix.close(folder)


def sockets() -> int:
    """All that are open in the sandbox, or on their way between its processes."""
    return int((read("1/net/sockstat", PROC).split() or "000")[2])


def become(words: list[str]) -> None:
    if words[0] == "python" and len(words) > 1 and words[1] not in ("-", "-m", "-i"):
        python(words[1:])
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)  # Python ignores it, and a program would inherit that
    try:
        execute(sys.executable if words[0] == "python" else words[0], words)
    except (OSError, ValueError) as error:
        posix.write(2, f"{words[0]}: {error}\n".encode("utf-8", "backslashreplace"))
    posix._exit(127)


def execute(program: str, words: list[str]) -> None:
    folders = posix.environ.get(b"PATH", b"/usr/bin:/bin").decode().split(":")
    for path in [program] if "/" in program else [f"{folder}/{program}" for folder in folders]:
        if type_of(path) or path == program:
            posix.execve(path, words, posix.environ)
    raise FileNotFoundError(errno.ENOENT, posix.strerror(errno.ENOENT))


def main_module() -> "dict[str, Any]":
    """The variables of a new program."""
    main = type(sys)("__main__")
    sys.modules["__main__"], sys.path[:0] = main, ["/scratch"]
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    vars(sys.modules["builtins"]).update(exit=sys.exit, quit=sys.exit)
    return main.__dict__


def interpreter() -> None:
    """Run the programs that descriptor 3 brings, one after the other; each is answered by a byte."""
    try:
        run_each(main_module())
    finally:
        posix._exit(1)


def run_each(names: "dict[str, Any]") -> None:
    sys.argv = [""]
    while len(size := posix.read(3, 4)) == 4:
        wanted, source, code = int.from_bytes(size, "little"), b"", 0
        while len(source) < wanted and (more := posix.read(3, wanted - len(source))):
            source += more
        reap()  # what was ended with the program before
        try:
            exec(compile(source, "<session>", "exec"), names)
        except SystemExit as error:
            finish(error.code if isinstance(error.code, int) else int(error.code is not None))
        except BaseException as error:
            code = tell(error)
        sys.stdout.flush()
        sys.stderr.flush()
        posix.write(3, bytes([code]))


def python(words: list[str]) -> None:
    """Go on as a Python program: -c CODE or a file, then its arguments."""
    code = 0
    try:
        names = main_module()
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(words[1].encode("utf-8", "surrogatepass"), names)  # the first call of compile would take 1 ms
        else:
            sys.argv = words
            with open(words[0], "rb") as file:
                source = file.read()
            exec(compile(source, words[0], "exec"), names)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException as error:
        code = tell(error)
    finish(code & 255)


def tell(error: BaseException) -> int:
    """Print a traceback as of a program that nothing called."""
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    sys.__excepthook__(type(error), error, error.__traceback__)
    return 1


def finish(code: int) -> None:
    """As an interpreter ends: other threads, what is to be done at exit, what is to be written yet."""
    try:
        for module, function in (("threading", "_shutdown"), ("atexit", "_run_exitfuncs")):
            if module in sys.modules:
                getattr(sys.modules[module], function)()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        code = code or 120
    posix._exit(code)


# The layers.


def mounts(limits: Limits, layers: list[str]) -> int:
    """A root of its own, which has `SYSTEM`, Python and devices alone; returns an open /proc, which is not in it. Other
    programs than this one make such a root themselves; /proc stays in a container's, and Landlock refuses it."""
    if limits["kind"] in CONTAINERS:
        posix.chmod("/scratch", 0o777)
        return posix.open("/proc", posix.O_RDONLY | posix.O_DIRECTORY)
    if limits["kind"] != "local":
        return scratch_and_proc("", limits)
    own = [one for one in (sys.base_prefix, *limits["read"]) if not one.startswith("/usr/")]
    sources = [*SYSTEM, *own, *(one for one in DEVICES if "cgroup" in layers or one != UNCOUNTED)]
    root = next(
        one for one in ROOTS if type_of(one) == FOLDER and not any(f"{path}/".startswith(f"{one}/") for path in sources)
    )
    mount(None, "/", None, 0x44000)  # MS_REC | MS_PRIVATE
    mount("tmpfs", root, "tmpfs", 6, "size=1m,nr_inodes=4k,mode=755")  # MS_NOSUID | MS_NODEV
    for source in sources:
        show(source, root + source)
    for folder in ("/scratch", "/proc"):
        posix.mkdir(root + folder)
    posix.symlink("/scratch", root + "/tmp")
    attributes = (3).to_bytes(32, "little")  # MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID
    call(442, "mount_setattr", -100, root.encode(), 0x8000, attributes, len(attributes))  # AT_RECURSIVE
    mount("proc", root + "/proc", "proc", 14)  # MS_NOSUID | MS_NODEV | MS_NOEXEC
    proc = scratch_and_proc(root, limits)
    posix.chdir(root)
    checked(libc("pivot_root", b".", b"."), "pivot_root")
    checked(libc("umount2", b".", 2), "umount the former root")
    return proc


def scratch_and_proc(root: str, limits: Limits) -> int:
    size = f"size={limits['scratch_mb']}m,nr_inodes={limits['scratch_mb'] * 64},mode=711,uid={USER},gid={USER}"
    mount("tmpfs", root + "/scratch", "tmpfs", 6, size)
    proc = posix.open(root + "/proc", posix.O_RDONLY | posix.O_DIRECTORY)
    checked(libc("umount2", f"{root}/proc".encode(), 2), "umount /proc")
    return proc


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    checked(libc("mount", *words, flags, data.encode()), f"mount {target}")


def show(source: str, target: str) -> None:
    """Bind a file or folder of the host, where the host has it."""
    what = type_of(source)
    if not what:
        return
    make_folders(target if what == FOLDER else target.rpartition("/")[0])
    if what == LINK:
        posix.symlink(posix.readlink(source), target)
        return
    if what != FOLDER:
        posix.close(posix.open(target, posix.O_CREAT | posix.O_WRONLY, 0o644))
    mount(source, target, None, 0x5000)  # MS_BIND | MS_REC


def make_folders(path: str) -> None:
    above = ""
    for name in path.split("/")[1:]:
        above += f"/{name}"
        if not type_of(above):
            posix.mkdir(above)


def confine(limits: Limits, layers: list[str]) -> None:
    """Give up everything that a command does not have; for this process and all that it will start."""
    memory, files = limits["memory_mb"] << 20, limits["scratch_mb"] << 20
    shared = limits["kind"] in CONTAINERS and "cgroup" in layers  # the user with other containers; the cgroup counts
    for name, kind, most in (
        ("address space", 9, memory + (64 << 20)),  # the first 64 MiB are Python's own, mostly shared
        ("processes", 6, limits["processes"]),
        ("file size", 1, files),
        ("open files", 7, 256),
        ("core dump", 4, 1),  # not even into a program of the host's, which the kernel starts at 0
        ("locked memory", 8, 0),
        ("message queues", 12, 0),
        ("pending signals", 11, 256),
        ("nice", 13, 0),
        ("real-time priority", 14, 0),
    ):
        if name == "processes" and shared:
            continue
        returned = libc("setrlimit", kind, (most | most << 64).to_bytes(16, "little"))
        if not limits["runtime"]:  # gVisor has not each of them
            checked(returned, f"limit of {name}")
    capability = 0
    while libc("prctl", 24, capability, 0, 0, 0) == 0:  # out of the bounding set, up to the last that there is
        capability += 1
    if posix.getuid() == 0:
        posix.setgroups([])
        posix.setresgid(USER, USER, USER)
        posix.setresuid(USER, USER, USER)
    checked(libc("capset", (0x20080522).to_bytes(8, "little"), bytes(24)), "capset")
    prctl(38, 1, "no_new_privs")
    if "landlock" in layers:
        landlock()
    if "seccomp" in layers:
        seccomp(FILTER if "cgroup" in layers else FILTER_WITHOUT_CGROUP)


def layers_here() -> list[str]:
    """The optional layers that this kernel has."""
    found = ["seccomp"] if posix.uname().machine == "x86_64" and libc("prctl", 21, 0, 0, 0, 0) >= 0 else []
    return found + (["landlock"] if libc("syscall", 444, None, 0, 1) >= 1 else [])


def cgroup_parents() -> set[str]:
    """The folders in which a cgroup can be made that bounds memory and processes."""
    found = {}
    for line in read("/proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        given = names.split(",")
        folder = (f"{CGROUPS}/{given[0]}" if names else CGROUPS) + path.rstrip("/")
        if not names:  # version 2, where a folder has processes, or hands controllers on
            while "pids" not in (given := read(f"{folder}/cgroup.subtree_control").split()) and folder != CGROUPS:
                folder = folder.rpartition("/")[0]
        found.update(dict.fromkeys(given, folder))
    folders = {found.get(name, "") for name in ("memory", "pids")}
    return folders if all(type_of(one) == FOLDER for one in folders) else set()  # a container's may lie elsewhere


def make_cgroup(limits: Limits) -> list[str]:
    """The folders of a new cgroup, in each hierarchy; none where this machine offers none."""
    memory, folders = (limits["memory_mb"] + limits["scratch_mb"] + OWN_MB) << 20, list[str]()
    bounds = {
        "memory.max": memory, "memory.swap.max": 0, "pids.max": limits["processes"] + OWN_PROCESSES,
        "memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory,
    }  # fmt: skip
    name = f"earl-{posix.getpid()}-{time.monotonic_ns()}"
    try:
        for parent in cgroup_parents():
            posix.mkdir(f"{parent}/{name}")
            folders.append(f"{parent}/{name}")
            for file, bound in bounds.items():
                if type_of(f"{parent}/{name}/{file}"):
                    write(f"{parent}/{name}/{file}", str(bound))
    except OSError:
        remove(folders)
        return []
    return folders


def remove(folders: list[str]) -> None:
    for folder in folders:
        try:
            posix.rmdir(folder)
        except OSError:  # removed by another server
            pass


def remove_left_cgroups() -> None:
    """Of servers that were killed."""
    for parent in cgroup_parents():
        for name in posix.listdir(parent):
            if name.startswith("earl-") and not type_of(f"/proc/{name.split('-')[1]}"):
                remove([f"{parent}/{name}"])


def memory_events(folders: list[str]) -> int:
    """The open file that counts what the kernel ends at a cgroup's limit of memory; an empty one without a limit."""
    for folder in folders:
        for bound, events in (("memory.max", "memory.events"), ("memory.limit_in_bytes", "memory.oom_control")):
            value = read(f"{folder}/{bound}").strip()
            if value.isdigit() and int(value) < 1 << 60:
                return posix.open(f"{folder}/{events}", posix.O_RDONLY)
    return posix.open("/dev/null", posix.O_RDONLY)


def probe() -> None:
    """Print each layer, and what is the matter with it, if anything."""
    for name, flag in NAMESPACES.items():
        child = posix.fork()
        if not child:
            posix._exit(_ctypes.get_errno() if libc("unshare", flag | NAMESPACES["user"]) < 0 else 0)
        fault = posix.WEXITSTATUS(posix.waitpid(child, 0)[1])
        print(f"{name} namespace\t{posix.strerror(fault) if fault else ''}")
    here = layers_here()
    for name in ("seccomp", "landlock"):
        print(f"{name}\t{'' if name in here else 'this kernel or processor has none'}")
    cgroup = make_cgroup({"memory_mb": 32, "scratch_mb": 1, "processes": 1})
    print(f"cgroup\t{'' if cgroup else 'no cgroup with memory and pids is there, or this user may write none'}")
    remove(cgroup)


def landlock() -> None:
    """Reading everywhere in the root but /proc, writing in the scratch folder and to /dev/null."""
    version = libc("syscall", 444, None, 0, 1)
    rights = (1 << (13, 14, 15, 15, 16)[min(version, 5) - 1]) - 1
    net, scope = 3 if version >= 4 else 0, 3 if version >= 6 else 0
    ruleset = (rights | net << 64 | scope << 128).to_bytes(24, "little")[: (8, 8, 8, 16, 16, 24)[min(version, 6) - 1]]
    rules = call(444, "landlock", ruleset, len(ruleset), 0)
    shown = ["/"]
    if type_of("/proc/self"):
        shown = [
            f"/{name}" for name in posix.listdir("/") if name not in ("proc", "sys") and type_of(f"/{name}") == FOLDER
        ]
    reads = [(path, 0b1101) for path in shown]
    for path, allowed in (*reads, ("/scratch", rights & ~0b100001000000), ("/dev", 0b1110)):
        folder = posix.open(path, posix.O_PATH)
        call(445, "landlock rule", rules, 1, (allowed | folder << 64).to_bytes(12, "little"), 0)
        posix.close(folder)
    call(446, "landlock", rules, 0)
    posix.close(rules)


REFUSED = (
    # tracing and other processes' memory and descriptors
    101, 310, 311, 312, 438, 440, 448,
    # mounts, namespaces, roots, handles of files
    155, 161, 165, 166, 272, 308, 303, 304, 428, 429, 430, 431, 432, 433, 442, 457, 458, 467,
    # the kernel itself: modules, kexec, bpf, perf, tracing of faults, keys, its log, swap, quota, accounting
    174, 175, 176, 177, 178, 180, 246, 313, 320, 321, 298, 323, 248, 249, 250, 103, 163, 167, 168, 169, 179, 443,
    # io_uring, which takes other calls past this filter
    425, 426, 427,
    # what all processes of the host have a common number of (asynchronous I/O, inotify), and writing out all its disks
    206, 253, 294, 162, 306,
    # clocks, host names, ports, descriptor tables
    159, 164, 227, 305, 170, 171, 172, 173, 154, 156,
    # memory that no file system and no limit counts, also pages that only a pipe holds (278, vmsplice), and where it is
    319, 447, 278, 29, 30, 31, 67, 64, 65, 66, 220, 68, 69, 70, 71, 240, 241, 242, 243, 244, 245, 237, 238, 239,
    256, 279,
    # cores, priorities, personalities, terminals, watching whole file systems
    203, 141, 142, 144, 251, 314, 135, 153, 300, 301,
    # landlock itself, another filter
    444, 445, 446, 317,
)  # fmt: skip
"""System calls of x86-64 by number, answered with EPERM."""
ANSWERED = {
    # fsync, fdatasync, sync_file_range, as done: files in /scratch are in memory, and no disk of the host is flushed
    74: 0, 75: 0, 277: 0,
    # setxattr and its kin: of an access control list no file system and no cgroup counts the memory, 64 KiB of a file
    188: errno.EOPNOTSUPP, 189: errno.EOPNOTSUPP, 190: errno.EOPNOTSUPP, 463: errno.EOPNOTSUPP,
}  # fmt: skip
"""System calls without an effect, and what they return in its place."""
NEWEST = 469
"""The last number that this filter was written for, of Linux 6.18; later ones are answered with ENOSYS."""
LOAD, JUMP, EQUAL, ANY_BIT, ABOVE, GIVE = 0x20, 0x05, 0x15, 0x45, 0x35, 0x06
"""Instructions of the filter; `ABOVE` is >=. Negative in `Rule`: where it does not hold."""
Rule = tuple[int, *tuple[tuple[int, int, int, bool], ...]]
"""A system call, and tests in order: place of a half argument (low halves are 0, 2, 4, …), instruction, value, and
whether the call is refused where it holds; then it is decided. A call that no test decides is allowed."""
RULES: tuple[Rule, ...] = (
    (56, (0, ANY_BIT, sum(NAMESPACES.values()) | 0x80, True)),  # clone into new namespaces, also that of clocks
    (41, (0, -EQUAL, 1, True)),  # socket and socketpair of another family than AF_UNIX
    (53, (0, -EQUAL, 1, True)),
    # setsockopt: filters of sockets, by BPF, whose code all processes of the host have a common memory for
    (54, *((4, EQUAL, option, True) for option in (26, 50, 51, 52))),
    # prctl: a filter of system calls, by BPF too; options since Linux 5.11, such as a table of futexes of any size
    (157, (0, EQUAL, 22, True), (0, ABOVE, 59, True)),
    # ioctl: typing into a terminal; of network interfaces, for which the kernel loads modules
    (16, (2, EQUAL, 0x5412, True), (2, ABOVE, 0x8C00, False), (2, ABOVE, 0x8900, True)),
    (72, (2, EQUAL, 1024, True), (2, EQUAL, 1026, True)),  # fcntl: leases of files, watching folders
    (9, (6, ANY_BIT, 0x40000, True)),  # mmap: reserved memory, MAP_HUGETLB
    (160, (0, EQUAL, 4, True)),  # setrlimit of core dumps, which 0 would begin
    # prlimit: of other processes; of core dumps, but to read it
    (302, (0, -EQUAL, 0, True), (2, -EQUAL, 4, False), (4, -EQUAL, 0, True), (5, -EQUAL, 0, True)),
)
UNCOUNTED_MEMORY: Rule = (9, (6, -ANY_BIT, 0x20, False), (6, ANY_BIT, 1, True))
"""mmap with MAP_ANONYMOUS and MAP_SHARED, of which only a cgroup counts what no process maps."""


def seccomp_filter(rules: "tuple[Rule, ...]") -> bytes:
    refuse, absent, kill, allow = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS, 0x80000000, 0x7FFF0000
    program = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, 0xC000003E), (GIVE, 0, 0, kill), (LOAD, 0, 0, 0)]  # x86-64 alone
    program += [(ABOVE, 1, 0, NEWEST + 1), (EQUAL, 0, 1, 435), (GIVE, 0, 0, absent)]  # clone3: no filter sees its flags
    for number, answer in ANSWERED.items():
        program += [(EQUAL, 0, 1, number), (GIVE, 0, 0, 0x50000 | answer)]
    program += [(EQUAL, len(REFUSED) - place, 0, number) for place, number in enumerate(REFUSED)]
    program += [(JUMP, 0, 0, 1), (GIVE, 0, 0, refuse)]
    for number, *tests in rules:
        program.append((EQUAL, 0, 2 * len(tests) + 3, number))
        for place, (half, code, value, refused) in enumerate(tests):
            far = 2 * (len(tests) - place) - (1 if refused else 0)
            program += [(LOAD, 0, 0, 16 + 4 * half), (abs(code), far, 0, value) if code > 0 else (-code, 0, far, value)]
        program += [(JUMP, 0, 0, 1), (GIVE, 0, 0, refuse), (LOAD, 0, 0, 0)]
    program.append((GIVE, 0, 0, allow))
    return b"".join(
        (code | yes << 16 | no << 24 | value << 32).to_bytes(8, "little") for code, yes, no, value in program
    )


FILTER, FILTER_WITHOUT_CGROUP = seccomp_filter(RULES), seccomp_filter((*RULES, UNCOUNTED_MEMORY))


def seccomp(program: bytes) -> None:
    told = (len(program) // 8).to_bytes(8, "little") + bytes(Bytes(program))
    checked(libc("prctl", 22, 2, told, 0, 0), "seccomp")
