"""Sandboxes on this machine, by its kernel alone; `inside.py` is the program that makes them."""

import marshal
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from earl.actions.pool import granted
from earl.config import SandboxConfig
from earl.errors import EarlError
from earl.sandbox.base import ExecResult

GRACE_SECONDS = 5.0
FOLDER = str(Path(__file__).parent)
WRITER = "import pathlib, sys\npath = pathlib.Path(sys.argv[1])\npath.parent.mkdir(parents=True, exist_ok=True)\n"
WRITER += "path.write_bytes(sys.stdin.buffer.read())"


def _program(function: str) -> list[str]:
    """The command that runs a function of inside.py, without the packages of a virtual environment."""
    python = getattr(sys, "_base_executable", sys.executable)
    code = f"import sys; sys.path[:0] = [{FOLDER!r}]; import inside; del sys.path[0]; inside.{function}()"
    return [python, "-P", "-s", "-S", "-X", "utf8", "-c", code]


def layers_here() -> dict[str, str]:
    """Each layer that this machine is asked for, with what stands against it; "" where it is there."""
    if sys.platform != "linux":
        return {"linux": f"this is {sys.platform}; sandboxes are made by Linux"}
    told = subprocess.run(_program("probe"), capture_output=True, text=True, check=True).stdout
    found = dict(line.split("\t") for line in told.splitlines())
    sandbox, fault = LocalSandbox(SandboxConfig(require=[])), ""
    try:
        result = sandbox.exec(["python", "-c", "print('ran')"])
        fault = "" if result.stdout == b"ran\n" else f"a program did not run: {result.text}"
        sandbox.terminate()
    except EarlError as error:
        fault = str(error)
    return {**found, "a sandbox of them": fault}


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

    def make(self, channel: socket.socket, limits: dict[str, object]) -> tuple[int, list[str]]:
        with self._lock:
            socket.send_fds(self._control, [marshal.dumps(limits)], [channel.fileno()])
            answer = self._control.recv(1 << 16).decode()
        process, _, told = answer.partition(" ")
        if not int(process or 0):
            raise EarlError(f"no sandbox can be made here: {told or 'its server ended'}; see earl doctor")
        return int(process), told.split()

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
    """A `Sandbox` of namespaces, Landlock and seccomp. Linux only. A command runs on the cores of its action.

    Raises:
        EarlError: from `exec` and `write_file`, where a sandbox cannot be made.
    """

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()
        self.layers: list[str] = []
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._process = -1

    def exec(self, command: Sequence[str], given: bytes = b"", seconds: float | None = None) -> ExecResult:
        with self._lock:  # one command at a time
            return self._exec([*command], given, float(self.config.seconds if seconds is None else seconds))

    def _exec(self, command: list[str], given: bytes, seconds: float) -> ExecResult:
        began = time.monotonic()
        channel = self._open()
        channel.settimeout(seconds + GRACE_SECONDS)
        request = marshal.dumps((command, given, seconds, granted()))
        try:
            channel.sendall(struct.pack("<I", len(request)) + request)
            return self._result(channel)
        except OSError:  # it ended, or does not answer
            self.terminate()
            return ExecResult("lost", 0, b"", b"", 0, time.monotonic() - began)

    def write_file(self, path: str, content: bytes) -> ExecResult:
        return self.exec(["python", "-c", WRITER, path], content)

    def terminate(self) -> None:
        if self._channel is None:
            return
        self._channel.close()
        self._channel = None
        ended = select.poll()
        ended.register(self._process, select.POLLIN)
        if not ended.poll(GRACE_SECONDS * 1000):
            raise EarlError("a sandbox does not end; report it")
        os.close(self._process)

    def _open(self) -> socket.socket:
        if self._channel is None:
            self._channel, theirs = socket.socketpair()
            with theirs:
                process, self.layers = _server().make(theirs, self.config.model_dump())
            self._process = os.pidfd_open(process)
        return self._channel

    def _result(self, channel: socket.socket) -> ExecResult:
        head = b""
        while not head.endswith(b"\n"):
            head += self._read(channel, 1)
        how, code, out, err, cut, seconds = head.split()
        stdout, stderr = self._read(channel, int(out)), self._read(channel, int(err))
        return ExecResult(how.decode(), int(code), stdout, stderr, int(cut), float(seconds))

    def _read(self, channel: socket.socket, size: int) -> bytes:
        found = b""
        while len(found) < size:
            if not (more := channel.recv(size - len(found))):
                raise ConnectionError("the sandbox ended")
            found += more
        return found
