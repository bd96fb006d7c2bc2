"""Sandboxes on this machine. `inside.py` is the program that makes them: all by itself, or as the first process of what
bubblewrap, nsjail, docker or podman has made."""

import marshal
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from earl.actions.pool import granted
from earl.config import SandboxConfig
from earl.errors import EarlError
from earl.sandbox import inside
from earl.sandbox.base import ExecResult

GRACE_SECONDS = 5.0
START_SECONDS = 60.0
"""At most until a sandbox has begun, and until it has ended: a container takes its time for both."""
FOLDER = str(Path(__file__).parent)
WRITER = "import sys\ndel sys.path[0]\nimport pathlib\n"  # not a pathlib.py that a program left in the scratch folder
WRITER += "path = pathlib.Path(sys.argv[1])\npath.parent.mkdir(parents=True, exist_ok=True)\n"
WRITER += "path.write_bytes(sys.stdin.buffer.read())"


def _program(function: str) -> list[str]:
    """The command that runs a function of inside.py, without the packages of a virtual environment."""
    python = getattr(sys, "_base_executable", sys.executable)
    code = f"import sys; sys.path[:0] = [{FOLDER!r}]; import inside; del sys.path[0]; inside.{function}()"
    return [python, "-P", "-s", "-S", "-X", "utf8", "-c", code]


def layers_here() -> dict[str, str]:
    """Each layer and kind of sandbox, with what stands against it on this machine; "" where it is there."""
    if sys.platform != "linux":
        return {"linux": f"this is {sys.platform}; sandboxes are made by Linux"}
    output = subprocess.run(_program("probe"), capture_output=True, text=True, check=True).stdout
    found = dict(line.split("\t") for line in output.splitlines())
    return {**found, **{f"kind {kind}": fault(kind) for kind in ("local", *PROGRAMS)}}


def fault(kind: str) -> str:
    """Why this machine has no sandbox of a kind; "" where it has."""
    sandbox = LocalSandbox(SandboxConfig.model_validate({"kind": kind, "require": []}))
    try:
        result = sandbox.exec(["python", "-c", "print('ran')"])
        sandbox.terminate()
    except EarlError as error:
        return str(error).removesuffix("; see earl doctor")
    return "" if result.stdout == b"ran\n" else f"a program did not run: {result.text}"


class _Server:
    """The process that forks sandboxes, one for each process that uses them."""

    def __init__(self) -> None:
        self.owner, self._lock = os.getpid(), threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"
        environment = {"PATH": path, "HOME": "/scratch", "TMPDIR": "/scratch", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(
            _program("serve"),
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for who asks
        )
        theirs.close()

    def make(self, channel: socket.socket, limits: dict[str, object]) -> int:
        """A descriptor of the new sandbox's first process, or of the program that makes it."""
        with self._lock:
            socket.send_fds(self._control, [marshal.dumps(limits)], [channel.fileno()])
            said, found, _, _ = socket.recv_fds(self._control, 1 << 16, 1)
        if not found:
            raise EarlError(f"no sandbox can be made here: {said.decode() or 'its server ended'}; see earl doctor")
        return found[0]

    def close(self) -> None:
        self._control.close()
        self.process.wait()


_one_server: _Server | None = None
_server_lock = threading.Lock()


def _server() -> _Server:
    global _one_server
    with _server_lock:
        if _one_server is None or _one_server.owner != os.getpid() or _one_server.process.poll() is not None:
            _one_server = _Server()
        return _one_server


def stop_server() -> None:
    """End the server, and all sandboxes with it; the next one starts it again."""
    global _one_server
    with _server_lock:
        if _one_server is not None and _one_server.owner == os.getpid():
            _one_server.close()
        _one_server = None


class LocalSandbox:
    """A sandbox on this machine, of whichever kind. Linux only. A command runs on the cores of its action.

    Files stay from command to command until `terminate`; processes do not, but for the interpreter of `SESSION`. A
    command never raises for what its program does.

    Raises:
        EarlError: from `exec` and `write_file`, where a sandbox cannot be made.
    """

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()
        self.layers: list[str] = []
        self._lock = threading.Lock()
        self._ends: tuple[socket.socket, BufferedReader] | None = None
        self._process = -1

    def exec(self, command: Sequence[str], given: bytes = b"", seconds: float | None = None) -> ExecResult:
        """Run a command in the scratch folder, with `given` as standard input. ["python", "-c", CODE] is fastest."""
        with self._lock:  # one command at a time
            return self._exec([*command], given, float(self.config.seconds if seconds is None else seconds))

    def _exec(self, command: list[str], given: bytes, seconds: float) -> ExecResult:
        began, request = time.monotonic(), marshal.dumps((command, given, seconds, granted()))
        channel, answers = self._open()
        with suppress(OSError):  # it ended, which its answer tells too
            channel.sendall(struct.pack("<I", len(request)) + request)
        if not self.layers:
            self.layers = self._begin(answers)
        channel.settimeout(seconds + GRACE_SECONDS)
        try:
            return _result(answers)
        except (OSError, ValueError):  # it ended, does not answer, or says why it ends
            self.terminate()
            return ExecResult("lost", 0, b"", b"", 0, time.monotonic() - began)

    def write_file(self, path: str, content: bytes) -> ExecResult:
        """Write a file, relative to the scratch folder, and the folders above it."""
        return self.exec(["python", "-c", WRITER, path], content)

    def terminate(self) -> None:
        """End all processes and remove all files; the next command begins anew."""
        if self._ends is None:
            return
        for end in self._ends:
            end.close()
        self._ends, self.layers = None, []
        ended = select.poll()
        ended.register(self._process, select.POLLIN)
        if not ended.poll(START_SECONDS * 1000):
            raise EarlError("a sandbox does not end; report it")
        os.close(self._process)

    def _open(self) -> tuple[socket.socket, BufferedReader]:
        """Where commands are written, and answers read; a new sandbox finds its first command when it has begun."""
        if self._ends is None:
            limits = limits_of(self.config)
            channel, theirs = socket.socketpair()
            with theirs:
                self._process = _server().make(theirs, limits)
            channel.settimeout(START_SECONDS)
            self._ends = channel, channel.makefile("rb")
        return self._ends

    def _begin(self, answers: BufferedReader) -> list[str]:
        """The layers, which a sandbox says first; before, the program that makes it may warn, or say why it cannot."""
        said = b""
        try:
            while not (line := answers.readline()).startswith(b"ok "):
                if not line:
                    raise ConnectionError("the sandbox ended")
                said += line
        except OSError as error:
            self.terminate()
            fault = said.decode("utf-8", "replace").strip() or str(error)
            raise EarlError(f"no sandbox can be made here: {fault}; see earl doctor") from None
        return line.decode().split()[1:]


def _result(answers: BufferedReader) -> ExecResult:
    how, code, out, err, cut, seconds = answers.readline().split()
    output = answers.read(int(out) + int(err))
    if len(output) < int(out) + int(err):
        raise ConnectionError("the sandbox ended")
    return ExecResult(how.decode(), int(code), output[: int(out)], output[int(out) :], int(cut), float(seconds))


# The command lines of other programs.

PROGRAMS = {"bubblewrap": "bwrap", "nsjail": "nsjail", "docker": "docker", "podman": "podman"}
CAPABILITIES = ("SETUID", "SETGID", "KILL")
"""What the first process needs to be another user than its commands, and to end them."""


def limits_of(config: SandboxConfig) -> dict[str, Any]:
    """The message that asks the server for a sandbox: [sandbox], and the program that makes it, if any."""
    limits = config.model_dump()
    if config.kind == "local":
        return {**limits, "argv": [], "environment": None}
    if (program := shutil.which(PROGRAMS[config.kind])) is None:
        fault = f"sandbox.kind = {config.kind!r} needs the program {PROGRAMS[config.kind]}, which is not in PATH"
        raise EarlError(f"{fault}; install it or set another kind; see earl doctor")
    code = f"{Path(inside.__file__).read_text(encoding='utf-8')}\nenter({limits!r})\n"
    if config.kind in inside.CONTAINERS:
        words = [*_container(config), "python3", "-P", "-s", "-X", "utf8", "-c", code]
        return {**limits, "argv": [program, *words], "environment": dict(os.environ)}
    python = [getattr(sys, "_base_executable", sys.executable), "-P", "-s", "-S", "-X", "utf8", "-c", code]
    made = _bubblewrap(config) if config.kind == "bubblewrap" else _nsjail(config)
    return {**limits, "argv": [program, *made, "--", *python], "environment": None}


def _visible_paths(config: SandboxConfig) -> list[str]:
    own = [path for path in (sys.base_prefix, *config.read) if not path.startswith("/usr/")]
    return [path for path in (*inside.SYSTEM, *own) if Path(path).exists()]


def _bubblewrap(config: SandboxConfig) -> list[str]:
    words = [f"--unshare-{name}" for name in ("pid", "net", "ipc", "uts", "cgroup")]
    words += ["--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
    if os.geteuid():
        words += ["--unshare-user", "--uid", str(inside.USER), "--gid", str(inside.USER)]
    else:  # the server has mapped users
        words += [word for name in CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    for path in _visible_paths(config):
        words += [word for above in [*Path(path).parents][-2::-1] for word in ("--dir", str(above))]  # else 0700
        link = Path(path).is_symlink()
        words += ["--symlink", str(Path(path).readlink()), path] if link else ["--ro-bind", path, path]
    words += ["--dir", "/dev"]
    for device in inside.DEVICES:
        words += ["--dev-bind", device, device]
    return [*words, "--proc", "/proc", "--dir", "/scratch", "--symlink", "/scratch", "/tmp", "--remount-ro", "/"]


def _nsjail(config: SandboxConfig) -> list[str]:
    words = ["--mode", "o", "--quiet", "--keep_env", "--keep_caps", "--disable_rlimits", "--time_limit", "0"]
    words += ["--nice_level", "0", "--pass_fd", "3", "--proc_rw", "--cwd", "/", "--iface_no_lo"]
    if os.geteuid():
        words += ["--user", str(inside.USER), "--group", str(inside.USER)]
    else:
        words += ["--disable_clone_newuser", "--user", "0", "--group", "0"]
    for path in _visible_paths(config):
        link = Path(path).is_symlink()
        words += ["--symlink", f"{Path(path).readlink()}:{path}"] if link else ["--bindmount_ro", path]
    for device in inside.DEVICES:
        words += ["--bindmount", device]
    return [*words, "--tmpfsmount", "/scratch", "--symlink", "/scratch:/tmp"]


def _container(config: SandboxConfig) -> list[str]:
    memory = config.memory_mb + config.scratch_mb + inside.OWN_MB
    scratch = f"rw,exec,nosuid,nodev,size={config.scratch_mb}m"
    if config.kind == "docker":  # podman refuses a bound on the number of files
        scratch += f",nr_inodes={config.scratch_mb * 64}"
    words = ["run", "--rm", "--interactive", "--pull=never", "--network=none", "--read-only", "--user=0"]
    words += [f"--tmpfs=/scratch:{scratch}", "--workdir=/scratch", "--hostname=sandbox", "--log-driver=none"]
    words += [f"--memory={memory}m", f"--memory-swap={memory}m"]
    words += [f"--pids-limit={config.processes + inside.OWN_PROCESSES}"]
    words += ["--security-opt=no-new-privileges", "--cap-drop=ALL", *(f"--cap-add={name}" for name in CAPABILITIES)]
    words += [f"--volume={path}:{path}:ro" for path in config.read]
    words += ["--env=HOME=/scratch", "--env=TMPDIR=/scratch", "--env=LANG=C.UTF-8", "--env=PYTHONHASHSEED=0"]
    return [*words, *([f"--runtime={config.runtime}"] if config.runtime else []), config.image]
